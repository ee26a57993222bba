// Package relock is Redisson's family of distributed locks, for Go services on Redis.
//
//	client, err := relock.New(rdb) // any go-redis client: single, Sentinel, Cluster
//	...
//	lock := client.NewLock("orders:42")
//	if err := lock.Lock(ctx); err != nil {
//		return err
//	}
//	defer lock.Unlock(ctx)
//
// The record in Redis is Redisson's own, so a Go service and a Java service
// exclude each other.
//
// # Ownership
//
// The owner of a hold is the calling goroutine. A lock may be shared by any number
// of goroutines, and they exclude one another; the same goroutine may lock again,
// through any lock of that name on that Client, and unlocks as often; and nobody
// can unlock what somebody else holds. For a lock that is taken in one goroutine
// and released in another there is [WithOwner], which gives a ctx an owner.
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
// so that a slow network shortens the trust and never stretches it.
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
// # Lock types
//
// [Lock] is the plain one. [FairLock] is first come, first served over all
// processes. [RWLock] lets many read or one write. [MultiLock] is many locks at
// once, and [RedLock] a majority of locks on independent servers.
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
package relock
