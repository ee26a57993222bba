// Package relock is Redisson's family of distributed locks, for Go services on Redis.
//
//	client, err := relock.New(rdb) // any go-redis client: single, Sentinel, Cluster
//	...
//	lock := client.NewLock("lock:orders:42")
//	if err := lock.Lock(ctx); err != nil {
//		return err
//	}
//	defer lock.Unlock(ctx)
//
// The record in Redis is Redisson's own, so a Go service and a Java service
// exclude each other.
//
// # Getting started
//
// A process makes one [Client] with [New] and shares it. The Client hands out locks
// by name; two locks of one name are the same lock, so make a lock where you need it.
// Making a lock sends nothing.
//
// There are four ways to take a lock. Do runs a function under the lock, with a context
// that is canceled if the lock is lost; prefer Do. Lock and Unlock work like those of a mutex. TryLock
// waits for a given time at most, and returns false when another owner has the
// lock. All locks have the same methods: see [Locker].
//
// Acquire, the fourth way, takes a lock as a value, a [Hold], and TryAcquire does so within a time: for a lock that is
// stored in a struct, passed to another goroutine, or held with a lease that the work extends.
//
// # Ownership
//
// The owner of a hold is the calling goroutine. Any number of goroutines may share a
// lock, and they exclude one another. The goroutine that holds the lock may lock it again,
// through any lock of that name on that Client, and then unlocks it as often: the hold
// count reports how often. No owner can unlock the hold of another owner.
//
// [WithOwner] gives a ctx an owner. Use it for a lock that one goroutine takes and another
// one releases, or that several goroutines re-enter because they share a piece of work.
// Goroutines that share an owner do not exclude one another. A [Hold] has an owner of its
// own, which the contexts of [Hold.Context] and [Hold.Guard] carry.
//
// # Leases
//
// Every hold has a lease, so that a crashed holder blocks other owners no longer
// than its lease lasts. Lock takes the lease of the watchdog (30 seconds), and the watchdog
// renews it every third, until the last Unlock. LockLease and TryLock can ask for a lease
// that is not renewed: the hold is over when the lease has run out. [Hold.Extend] lets such
// a hold last longer.
//
// A hold is valid from before the request that took or renewed it was sent:
//
//	trusted until = sent + lease - drift, drift = 1% of the lease + 2ms
//
// A slow network therefore shortens the trust and never stretches it. Redis begins to
// count the lease later than the process counts the trust, so a holder stops trusting its
// lock before another owner can have it.
//
//	          Lock                  renewal confirmed
//	fresh ───────────▶ holding ◀───────────────────────┐
//	                    │   │ └─────────────────────────┘
//	        last Unlock │   │ no record, or no renewal confirmed in time
//	                    ▼   ▼
//	                 over   lost ──▶ guards end, Unlock and the next Lock say ErrLockLost
//
// # Losing a lock
//
// A lock can be lost while its holder works: Redis was restarted without its data,
// an operator freed the lock, the network was down for a whole lease. The holder
// is told: the ctx that Guard returns, and that Do passes on, ends with cause
// [ErrLockLost], by a local timer if Redis cannot be reached. Use that ctx for
// everything that the lock protects. Unlock, too, returns ErrLockLost.
//
// Losing the lock does not revert the work that was done before. So write that work so that
// the next holder can begin it again.
//
// # Waiting
//
// In one process, one goroutine for each name asks Redis; the others queue behind it,
// first come, first served. A holder that unlocks leaves the lock to the next goroutine in
// that queue without a request, for a slice of time ([WithHandoverSlice]); then other
// processes have their turn. Readers of one process come in together, with one request.
//
// Processes that wait for a plain [Lock], to write, or for a permit, stand in a line in Redis, one place for each
// process. The request that unlocks grants the lock to the first of them and wakes it alone; its Lock returns without
// asking. A process whose goroutines still wait joins the line again at its end. A [FairLock] has a place for each
// goroutine instead, and passes in the same way. Readers have no order between processes: a release wakes all of them,
// and the first writer, and they try again.
//
// A waiter also asks again by itself at least every poll interval (1 second), so that a lost
// message costs time and nothing else. For those that wait in a line, one request looks whether
// their locks are still held. Waiters of a semaphore ask for themselves.
//
// A context that is done ends every wait, also while a request hangs. Then nothing is held,
// and an attempt that was under way is undone. With a ReadTimeout of the Redis client of one
// second or less, a caller whose ctx is canceled while its request hangs returns when that
// timeout is over, or 1.25 seconds after the request if there was no connection for it.
//
// # Trouble
//
// Any request may be lost, sent again or answered late. No repeated request counts twice or
// frees the hold of another owner. An attempt that its caller gave up is undone. An Unlock
// whose answer was lost is sent again, and returns nil if it had happened.
//
// Lock fails after a few tries when it cannot reach Redis: within two seconds
// where one server refuses connections, and after about five seconds where all Sentinels or
// all nodes of a Cluster refuse them, or nothing answers. A caller that
// has had an answer from Redis retries for one watchdog timeout. The answer may be that the
// lock is busy, or that Redis is loading, failing over or moving a slot of a Cluster. While
// its slot moves, a lock that needs more than one key can be neither taken nor released:
// Redis answers TRYAGAIN, and callers are kept waiting. A plain lock needs one, and goes on
// without its line; a fenced one can be released.
//
// # Errors
//
// Every error describes what was asked, of which lock, and what happened, and is matched
// with errors.Is and errors.As:
//
//   - [ErrNotHeld]: the caller does not hold the lock.
//   - [ErrLockLost]: the caller held the lock, and lost it. This error matches ErrNotHeld too: check for
//     ErrLockLost first.
//   - [ErrInvalid]: a name, lease, option or set of locks that makes no sense.
//   - [ErrNotALock]: a key of the lock holds data that no lock makes.
//   - [ErrClosed]: the Client is closed.
//   - [ErrNotSynced]: too few replicas have confirmed, where [WithSyncedReplicas] asks for that.
//   - [*QuorumError]: what each server of a RedLock answered, where too few granted the request.
//   - the error of ctx, and its cause, when ctx ended first.
//
// A lock that another owner has is no error: TryLock returns false.
//
// # Lock types
//
// [Lock] is the plain one, and the one to begin with. [FairLock] is first come, first
// served over all goroutines of all processes. [RWLock] lets many read or one write. [MultiLock] is
// many locks at once, all or none, in an order that keeps two of them from waiting
// for each other. [RedLock] is held on a quorum, a majority, of independent servers,
// and survives the loss of the other servers. [Semaphore] lets at most n owners in at a time.
//
// An [Election] chooses one of several processes as the leader. It is a fenced lock whose
// holds are terms.
//
// # Fencing tokens
//
// A lock that is made with [Fenced] draws a token for every hold. The token is greater than
// the tokens of all earlier holds. Send it along with every write, and have the
// resource refuse a token that is lower than one it has received. Only a token stops a holder
// that was paused beyond its lease and does not know it yet.
//
// # Sentinel, Cluster, replicas
//
// A Client works with the clients of go-redis: a *redis.Client, one from
// redis.NewFailoverClient for Sentinel, or a *redis.ClusterClient. A *redis.Ring is
// refused. On a Cluster the name of a lock decides on its slot, and wake-ups stay in
// the shard. With [WithSyncedReplicas] a lock counts only when replicas have
// confirmed it.
//
// # Closing
//
// Close ends the waiting and the guards with [ErrClosed], and stops renewing. It
// releases nothing, because holders may still be at work. Unlock goes on working,
// and a hold that is not unlocked ends with its lease. Close the Client first and the
// Redis client after it.
//
// # Looking at locks
//
// [Client.Inspect] says who holds a lock and who waits for it, for every lock type and
// for Redisson's clients too; relockctl, in cmd/relockctl, says so in a shell. Package
// relocktest has a Client for unit tests.
//
// # What a lock in Redis cannot promise
//
// Redis replicates asynchronously: a failover can lose a record that was written just
// before it, and then two owners hold the lock. A process that is paused for
// longer than its lease, or a machine that was suspended, may go on for a moment
// with a lock that another owner has by now. [WithSyncedReplicas] has replicas
// confirm a lock before it counts. Where neither may happen, have the resource
// that the lock protects check a fencing token: see [Fenced]. A [RedLock] does
// not depend on replication, but on nodes that do not forget.
//
// # Glossary
//
// The documentation, the errors, the metrics and the code use these words in one meaning:
//
//   - name: the text that identifies a lock, and the Redis key of its record.
//   - owner: the goroutine that locks, or the owner that its ctx carries ([WithOwner]).
//   - hold: what one owner has of one lock, from the first Lock until the last Unlock, or until the hold is lost.
//   - level: one Lock or TryLock that succeeded and is not unlocked yet; every level needs one Unlock.
//   - record: the state of a hold in Redis, which holds of one process can share or hand over.
//   - field: the name of a hold in its record: client, owner and number of the acquisition.
//   - lease: how long Redis keeps a record that is not renewed.
//   - trust: how long the process relies on a hold: the lease, counted from before the request, less the drift.
//   - watchdog: the goroutine of a Client that renews leases, and ends holds that can no longer be valid.
//   - guard: a ctx that is canceled when a hold can no longer be valid, or is released.
//   - attempt: one request for a level; Redis grants it or answers busy.
//   - undo: the request that takes back an attempt that may have been granted to a caller that has left.
//   - wait queue: the goroutines of one process that wait for one lock, in the order of their arrival.
//   - handover: an Unlock that leaves the lock and its record to the first waiter of the wait queue.
//   - slice: how long a process hands a lock over internally before it releases it to the other processes.
//   - wake-up: a message on a pub/sub channel which says that a lock may be free, or that it was granted to the process.
//   - line: the processes that wait for one plain lock, to write, or for a permit, in Redis, in the order in which they
//     joined; each has one place.
//   - grant: the record that the script of a release writes for the first place of the line, or for the first waiter of a
//     fair lock, and the message about it.
//   - permit: what an owner holds of a semaphore, which has a number of them.
//   - other half: the read lock of a write lock, and the write lock of a read lock, of one [RWLock].
//
// The pages in docs/ go further: which lock to take, how to run it, what can go
// wrong and what happens then, and how to come here from Redisson or redsync.
package relock
