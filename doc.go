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
// by name; two locks of one name are the same lock, so make them where they are
// needed. Making one sends nothing.
//
// There are three ways to take a lock. Do runs a function under it, with a ctx that
// ends if the lock is lost; prefer it. Lock and Unlock are those of a mutex. TryLock
// waits no longer than it is told, and answers false when somebody else has the
// lock. All locks have the same methods: see [Locker].
//
// # Ownership
//
// The owner of a hold is the calling goroutine. A lock may be shared by any number
// of goroutines, and they exclude one another; the same goroutine may lock again,
// through any lock of that name on that Client, and unlocks as often: the hold count
// says how often. Nobody can unlock what somebody else holds.
//
// For a lock that is taken in one goroutine and released in another, or re-entered
// by the goroutines that share a piece of work, there is [WithOwner], which gives a
// ctx an owner. Goroutines that share an owner do not exclude one another.
//
// # Leases
//
// Every hold has a lease, so that a crashed holder blocks others for no longer
// than that. Lock takes the watchdog's (30 seconds), and the watchdog renews it
// every third, until the last Unlock. LockLease and TryLock can ask for a lease
// that is not renewed: the hold is over when it has run out.
//
// A hold is trusted from before the request that took or renewed it was sent:
//
//	trusted until = sent + lease - drift, drift = 1% of the lease + 2ms
//
// so that a slow network shortens the trust and never stretches it. Redis begins to
// count later than that; whoever holds a lock stops to trust it before anybody else
// can have it.
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
// What was done until then stays done. So work under a lock should bear to be begun
// again by the next holder.
//
// # Waiting
//
// Of one process, one goroutine for each name asks Redis; the others queue behind it,
// first come, first served. A holder that unlocks leaves the lock to the next one in
// that queue without a request, for a slice of time ([WithHandoverSlice]); then the
// other processes have the first chance. Readers of one process come in together, with
// one request. Between processes there is no order, but for a
// [FairLock]. Who waits is woken by a message when the lock is released, and asks
// again by itself at least every max wake delay (1 second), so that a message that
// got lost costs time and nothing else.
//
// The end of ctx ends every wait, also while a request hangs. Nothing is held then,
// and what was on its way is undone.
//
// # Trouble
//
// Any request may be lost, sent again or answered late. No repeat counts twice or
// frees somebody else's hold; an attempt that was given up is undone; an Unlock
// whose answer was lost is sent again, and returns nil if it had happened.
// Lock fails after a few tries when it cannot reach Redis: within a second or two
// where connections are refused, some seconds where nothing answers. A caller who
// has heard of Redis, be it that the lock is busy, or that Redis is loading, failing
// over or moving a slot of a Cluster, rides out one watchdog timeout. While its slot
// moves, a lock of more than one key (all but the plain one) can be neither taken
// nor given back: Redis answers TRYAGAIN, and callers are kept waiting.
//
// # Errors
//
// Every error says what was asked, of which lock, and what happened, and is matched
// with errors.Is and errors.As:
//
//   - [ErrNotHeld]: the caller does not hold the lock.
//   - [ErrLockLost]: it did, and lost it. It matches ErrNotHeld too: ask for it first.
//   - [ErrInvalid]: a name, lease, option or set of locks that makes no sense.
//   - [ErrClosed]: the Client is closed.
//   - [ErrNotSynced]: too few replicas have confirmed, where that was asked for.
//   - [*QuorumError]: what the servers of a RedLock answered, where too few did it.
//   - the error of ctx, and its cause, when that ended first.
//
// That somebody else has the lock is no error: TryLock returns false.
//
// # Lock types
//
// [Lock] is the plain one, and the one to begin with. [FairLock] is first come, first
// served over all processes. [RWLock] lets many read or one write. [MultiLock] is
// many locks at once, all or none, in an order that keeps two of them from waiting
// for each other. [RedLock] is held on a quorum, a majority, of independent servers,
// and survives the loss of the others.
//
// # Fencing tokens
//
// A lock that is made with [Fenced] draws a token for every hold that is greater than
// those of all holds before it. Send it along with what you write, and have the
// resource refuse a token that is lower than one it has seen. That is the only thing
// that stops a holder who was paused beyond its lease and does not know it yet.
//
// # Sentinel, Cluster, replicas
//
// A Client works on what go-redis has: a *redis.Client, one from
// redis.NewFailoverClient for Sentinel, or a *redis.ClusterClient. A *redis.Ring is
// refused. On a Cluster the name of a lock decides on its slot, and wake-ups stay in
// the shard. With [WithSyncedReplicas] a lock counts only when replicas have
// confirmed it.
//
// # Closing
//
// Close ends the waiting and the guards with [ErrClosed], and stops renewing. It
// releases nothing, because holders may still be at work; Unlock goes on working,
// and what nobody unlocks lapses with its lease. Close the Client first and the
// Redis client after it.
//
// # Looking at locks
//
// [Client.Inspect] says who holds a lock and who waits for it, of whatever type and
// in whichever language; relockctl, in cmd/relockctl, says so in a shell. Package
// relocktest has a Client for unit tests.
//
// # What a lock in Redis cannot promise
//
// Redis replicates asynchronously: a record that was written just before a
// failover can be lost, and then two hold the lock. A process that is paused for
// longer than its lease, or a machine that was suspended, may go on for a moment
// with a lock that somebody else has by now. [WithSyncedReplicas] has replicas
// confirm a lock before it counts. Where none of that must happen, have
// whatever the lock protects check a fencing token: see [Fenced]. A [RedLock] does
// not depend on replication, but on nodes that do not forget.
//
// The pages in docs/ go further: which lock to take, how to run it, what can go
// wrong and what happens then, and how to come here from Redisson or redsync.
package relock
