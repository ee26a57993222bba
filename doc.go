// Package relock provides distributed locks on Redis: reentrant locks, fair locks, read/write locks, locks on several
// names or servers, semaphores and elections. It uses go-redis, and shares its locks with Redisson, so that a Go
// service and a Java service exclude each other.
//
//	client, err := relock.New(rdb) // any go-redis client: single, Sentinel, Cluster
//	...
//	lock := client.NewLock("lock:orders:42")
//	if err := lock.Lock(ctx); err != nil {
//		return err
//	}
//	defer lock.Unlock(ctx)
//
// # Getting started
//
// A process creates one [Client] with [New] and shares it. The Client creates locks by name. Two values with the same
// name stand for the same lock. Creating one sends no request, so create it where you need it.
//
// There are four ways to acquire a lock. All lock types have them: [Locker] and [Acquirer] list the methods.
//
//   - Do and TryDo call a function while they hold the lock, with a context that is canceled if the lock is lost. Prefer
//     them. TryDo waits for a bounded time, and reports whether the function was called.
//   - Lock and Unlock work like those of a mutex.
//   - TryLock waits for a bounded time, and returns false if another owner still holds the lock.
//   - Acquire and TryAcquire return the lock as a value, a [Hold]: for a lock that is stored in a struct, passed to
//     another goroutine, or held with a lease that the work extends.
//
// # Terms
//
//   - lease: how long Redis keeps a lock for its owner. It is renewed automatically, unless the caller has asked for an
//     explicit lease. A crashed owner blocks others until its lease has expired.
//   - owner: who holds a lock. It is the calling goroutine, or the owner that the context carries.
//   - hold: the possession of a lock by one owner, from its first Lock until its last Unlock, or until the lock is
//     lost.
//   - token: a number that is greater for each new hold of a lock, so that the resource that the lock protects can
//     reject requests of earlier holders.
//
// # Ownership
//
// The owner of a lock is the calling goroutine, which relock identifies by its ID (read with the module
// petermattis/goid). Any number of goroutines may share a Locker, and they exclude one another. The goroutine that
// holds the lock may acquire it again, through any Locker of that type with that name and Client; it then has to call
// Unlock once for each Lock. No owner can release the lock of another owner.
//
// A function that is called by the holder, in the same goroutine, can therefore acquire the lock again without
// blocking. A goroutine that is started while the lock is held cannot: it is another owner. The goroutines of an
// errgroup, for example, do not own the lock of the goroutine that started them: if one of them calls Lock, it waits
// for a lock that is not released before the group has finished. In an HTTP server, requests that are served at the
// same time have different owners. However, requests on one HTTP/1.1 connection are served one after the other by the
// same goroutine. If a handler returns without calling Unlock, the lock stays held, and the next request on that
// connection acquires it again instead of waiting. Use Do, or defer Unlock.
//
// [ContextWithOwner] adds an owner to a context. Use it for a lock that one goroutine acquires and another one
// releases, and for several goroutines that work on one task under one lock, such as those of an errgroup. Goroutines
// that share an owner do not exclude one another. A [Hold] has an owner of its own, which the contexts of
// [Hold.Context] and [Hold.Guard] carry.
//
// # Leases
//
// Lock uses the watchdog timeout as the lease (30 seconds by default), and renews it every third of that time, until
// the last Unlock. LockLease, TryLock and TryAcquire can ask for an explicit lease, which is not renewed: the lock
// expires with it. [Hold.Extend] extends an explicit lease.
//
// The Client starts the clock of a lease before it sends the request that acquires or renews the lock:
//
//	valid until = sent + lease - drift, drift = 1% of the lease + 2ms
//
// Redis starts its own clock later, when it runs the request. So the Client considers the lock lost before Redis can
// grant it to another owner, and a slow network makes the validity shorter, never longer.
//
// # Losing a lock
//
// A lock can be lost while its holder works: Redis was restarted without its data, an operator has released the lock by
// force, or the network was down for a whole lease. The context that Guard returns, and that Do passes to its function,
// is then canceled with the cause [ErrLockLost], by a local timer if Redis is unreachable. Use that context for
// everything that the lock protects. Unlock returns ErrLockLost, too.
//
// Losing a lock does not revert what was done before. Write the work so that the next holder can start it again.
//
// # Waiting
//
// Of the goroutines of a process that wait for the same lock, one asks Redis, and the others wait behind it in order.
// When a holder releases a Lock or a write lock, the next goroutine of its process gets it without a request. When the
// hand-off window ([WithHandoffWindow]) is over, the lock passes to the next process instead. The readers of a process
// acquire a read lock together.
//
// Processes that wait for a [Lock], for a write lock, or for a permit of a semaphore have a wait queue in Redis, with
// one entry for each process. The request that releases the lock grants it to the first process in the queue and
// notifies only that process, whose Lock returns without another request. A process whose goroutines still wait joins
// the queue again at the end. A [FairLock] has an entry for each goroutine instead. Readers of different processes are
// served in no particular order: a release notifies all of them and the first writer, and they try again.
//
// Notifications may be lost. A waiter therefore also asks Redis by itself, once in each poll interval
// ([WithPollInterval]).
//
// Every wait ends when its context is done, even while a request hangs. The caller then holds nothing, and a request in
// flight is rolled back. The call returns at once. While Redis is fast, its request runs on the goroutine of its caller:
// then the call returns within 200 milliseconds, or within 250 if the request had to wait for a connection. If the Redis
// client has a ReadTimeout of one second or less, a request may run there also when Redis is slow, or is a Cluster. Then
// the call returns when that timeout has passed, or up to 1.25 seconds later if the request had to wait for a
// connection.
//
// # When Redis fails
//
// Any request may be lost, repeated or run late. A repeated request has the same effect as a single one, and never
// releases the lock of another owner. A request whose caller has given up is rolled back, and acquires nothing if Redis
// runs it after that. If Redis does not answer, the rollback goes on in the background. So a request that Redis runs
// after a pause may have the lock for a few seconds, until it is rolled back. If its process has ended meanwhile, it has
// the lock until the lease that it asked for has expired. An Unlock whose answer was lost is sent again, and returns nil
// if Redis has run the first request.
//
// Lock returns an error after a few retries if it cannot reach Redis: within two seconds if a single server refuses
// connections, and after about five seconds if all Sentinels or all nodes of a Cluster refuse them, or if nothing
// answers. A caller that has already had an answer from Redis retries for one watchdog timeout. The answer may be that
// the lock is held, or that Redis is loading its data, failing over or moving a slot of a Cluster. A caller that waits
// for the lock also retries that long if Redis then refuses its password, or its user: credentials may be being rotated.
// A caller that has had no answer yet is told of such a refusal at once.
//
// While a slot of a Cluster moves, Redis answers TRYAGAIN to requests with several keys, so that locks that need
// several keys can be neither acquired nor released until it has moved. A Lock is acquired and released with one key
// meanwhile, without its wait queue, and one with [Fenced] is released. No lock can be released by force.
//
// # Errors
//
// Every error describes the operation, the lock and what happened. Match them with errors.Is and errors.As:
//
//   - [ErrBusy]: the context was done while other owners had the lock. The error also matches that of the context.
//   - [ErrNotHeld]: the caller does not hold the lock.
//   - [ErrLockLost]: the caller held the lock, and has lost it. This error also matches ErrNotHeld, so check for
//     ErrLockLost first. [ErrMaxHold] matches both: the lock was held for as long as [MaxHold] allows.
//   - [ErrInvalid]: a name, option or argument is not valid, or the lock does not allow the call.
//   - [ErrNotALock]: a key of the lock holds data of another kind.
//   - [ErrClosed]: the Client is closed.
//   - [ErrDetached]: the cause of the contexts of a hold that was detached, to move to another process: [Hold.Detach].
//   - [ErrNotSynced]: too few replicas have confirmed the lock, where [WithSyncedReplicas] asks for them.
//   - [*QuorumError]: too few servers of a RedLock have granted the request, with the answer of each.
//   - the error of the context, and its cause, if the context was done first.
//
// That another owner holds the lock when their wait has passed is not an error of TryLock, TryDo and TryAcquire: they
// return false. [Lock.TryDo] describes how an HTTP handler tells a busy lock from a Redis that cannot be asked.
//
// # Lock types
//
// Start with [Lock]. A [FairLock] serves all goroutines of all processes in order. A [RWLock] can be held by many
// readers or one writer. A [MultiLock] acquires several locks, all or none, in an order that keeps two of them from
// waiting for each other. A [RedLock] is held on a majority of independent servers, and survives the loss of the
// others. A [Semaphore] has n permits. An [Election] chooses one of several processes as the leader.
//
// # Fencing tokens
//
// A lock that was created with [Fenced] has a token for every hold, which is greater than the tokens of all earlier
// holds. Send it along with every read and write, and have the resource reject a token that is lower than the highest
// one it has received. Only a token stops a holder that was paused beyond its lease and does not know it yet. Package
// fence has PostgreSQL, MySQL, MariaDB and SQLite do that.
//
// # Sentinel, Cluster and replicas
//
// A Client works with a *redis.Client, with the clients of redis.NewFailoverClient and redis.NewFailoverClusterClient
// for Sentinel, and with a *redis.ClusterClient; also with a type that embeds one of them, and with an AutoPipeliner.
// [New] rejects a *redis.Ring. In a Cluster the name of a lock determines its slot, and notifications stay in the
// shard. With [WithSyncedReplicas] a lock is acquired only if replicas have confirmed it.
//
// # Closing
//
// Close cancels all waits and the contexts of Guard with [ErrClosed], and renews no leases any more. It releases no
// locks, because their holders may still be working. Unlock continues to work, and a lock that is not released expires
// with its lease. [Client.Shutdown] waits for the holders first. Close the Redis client after the Client.
//
// # Inspecting locks
//
// [Client.Inspect] returns who holds a lock and who waits for it, for all lock types and for Redisson's clients, too.
// The command relockctl, in cmd/relockctl, does the same in a shell. The package relocktest has a Client for unit
// tests.
//
// # What a lock in Redis cannot guarantee
//
// Redis replicates asynchronously: a failover can lose a lock that was acquired just before, and then two owners hold
// it. [WithSyncedReplicas] makes that less likely. A process that is paused for longer than its lease may continue for
// a moment with a lock that another owner holds by then. If neither may happen, have the resource check a fencing
// token: see [Fenced]. A [RedLock] does not depend on replication, but on servers that keep their data.
//
// The pages in docs/ go further: which lock to use, how to run it in production, what can go wrong and what happens
// then, and how to migrate from Redisson or redsync.
package relock
