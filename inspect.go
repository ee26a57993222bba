package relock

// Inspect returns what Redis knows of a lock: who holds it, and who waits for it. It is for operators and tests.
//
// Rules: Inspect only reads, in one request, so its result was true at one moment. It reports the contents of the
// record and guesses nothing. A record that no lock writes is an error, and not a lock without holders. The number by
// which a waiter is granted the lock is not in the result.

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/relock-go/relock/internal/record"
)

// An Inspection is the state of a lock in Redis at one moment: see [Client.Inspect].
type Inspection struct {
	// Name is the name of the lock, without the prefix of [WithKeyPrefix].
	Name string
	// At is the time at which Redis ran the inspection. Like all times here it is measured by the clock of Redis.
	At time.Time
	// Type is the type of the lock, as far as its keys in Redis show it: TypeLock, TypeFair, TypeReadWrite,
	// TypeSemaphore, or TypeNone if the lock has no holders and no known waiters.
	//
	// A fair lock without waiters looks like a plain lock, unless a waiter has crashed. A lock may have waiters and no
	// holder, and then it has the type that the first waiter waits for. A semaphore of which no permit is held looks
	// like any key with a number: see Ambiguous.
	Type LockType
	// Mode is the mode of a read/write lock that is held: "write" while there is a writer, which may also read, and
	// "read" otherwise. It is "" for other locks.
	Mode string
	// Holders are the holders of the lock. Only read/write locks and semaphores have more than one. Those of a semaphore
	// are sorted by the time at which they expire; a hold of several permits is one holder (see Holder.Permits), and
	// each permit of a Java service is one. Readers of one Client that share an entry in Redis (see [RWLock]) are one
	// holder here. A writer that also reads is listed first, and again as a reader.
	Holders []Holder
	// TTL is the remaining lease in Redis, in whole milliseconds. It is 0 if the lock is not held, and negative if its
	// key has no expiry, which only another program can cause. For a semaphore it is the longest remaining lease of a
	// permit, and negative if a Java service holds a permit without a lease.
	TTL time.Duration
	// Waiters are those who wait for the lock, in the order of its wait queue: the first 1,000 of them. Each waiter of
	// a fair lock is listed. Of all other locks there is one waiter for each process that is in the queue: it stands
	// for all goroutines of its Client that wait for the lock. Behind them are, in no particular order, the writers
	// without a position in the queue, such as readers that wait for the write lock. Callers that have no position are
	// not listed, because Redis does not know them: waiting readers, Java services except in the queue of a fair lock,
	// and a RedLock.
	Waiters []Waiter
	// Waiting is the number of waiters, including those that are Gone. It is greater than the number of Waiters if
	// there are more than 1,000. It does not exceed 20,000 for a fair lock.
	Waiting int
	// Gone is the number of Waiters that cannot be reached (ReachableNo), usually because their processes have crashed.
	// So Waiting-Gone waiters are left. A release passes over those that are gone, and removes them if they are in
	// front of the waiter that gets the lock. Until then they stay in the queue, as long as others wait.
	Gone int
	// More reports whether there are more than 10,000 holders, or permits that are held, which is the most that Holders
	// has, or more waiters than Waiters has.
	More bool
	// Ambiguous reports whether Type is TypeSemaphore and no permit is held. The key then has a number, and nothing
	// shows what the number counts: it may be a semaphore, or an RCountDownLatch, an RSemaphore or an RAtomicLong of
	// Redisson, or a counter of an application.
	Ambiguous bool
	// Available is the number of free permits of a semaphore, and 0 for other locks. It is negative if SetPermits has
	// set the number of permits below the number that is held.
	Available int
	// Token is the fencing token of the holder if this Client holds the lock, and otherwise the last token that Redis
	// has issued for this name; it is 0 if there is none. Redis does not know whether another holder has that token:
	// the holder may have acquired the lock without [Fenced], and a process that hands a lock off among its goroutines
	// obtains up to 256 tokens at once.
	Token int64
}

// Held reports whether the lock has a holder whose lease has not expired.
func (i Inspection) Held() bool {
	return slices.ContainsFunc(i.Holders, func(h Holder) bool { return h.Remaining != 0 })
}

// A Contender is an owner that holds a lock or waits for it.
type Contender struct {
	// Field identifies the hold or the waiter in Redis: it is "client:owner". For a hold of this package ":" and a
	// number follow. The number of a waiter of this package is not shown. A detached hold has four
	// hexadecimal digits in its place.
	Field string
	// Client is the UUID of the client: [Client.ID], or that of a RedissonClient. It is "" if Field has another form,
	// which neither of them writes, and for a Java permit of a semaphore, whose Field is its ID in hexadecimal.
	Client string
	// Owner is the owner within that client: "goroutine 7", "owner 7" for one that ContextWithOwner has created, or
	// "thread 7" in a Java service, and "detached" for a hold that was detached. In this package it is the owner that
	// acquired the lock from Redis: its process may have handed the lock off since (see [WithHandoffWindow]), or readers
	// may share its entry. If Client is "", Owner is the same as Field, or "permit ID" for a Java permit.
	Owner string
	// Label and Host are the label and the host name of the process: see [WithLabel]. They are "" for a Client without
	// a label, for a Java service, and if Redis does not return them within a second.
	Label, Host string
}

// A Holder is one hold of a lock.
type Holder struct {
	Contender
	// Write reports whether this is the hold of the writer of a read/write lock.
	Write bool
	// HoldCount is the number of times that the holder has to call Unlock. It may be too high if Redis was out of
	// memory when it stored an Unlock that was not the last one.
	HoldCount int
	// Detached reports whether the hold was detached, and no process has attached it since: see [Hold.Detach]. Client,
	// Label and Host are those of the Client that has detached it.
	Detached bool
	// Permits is the number of permits that the holder has of a semaphore: see [Semaphore.AcquireN]. It is 0 for other
	// locks.
	Permits int
	// Remaining is the remaining lease of the holder, in whole milliseconds, and negative if the lease has no end. It
	// is 0 for a reader whose lease has expired: it no longer holds the lock, and the next attempt on the lock removes
	// its entry. A writer, and the holder of any other lock except a semaphore, has the lease of the key.
	Remaining time.Duration

	// id is the Field with its number if it is detached, for [Client.ForceUnlock]. It is a secret, and fmt does not
	// print what a pointer leads to.
	id *string
}

// A Waiter is an owner that waits for a lock.
type Waiter struct {
	Contender
	// Write reports whether the waiter waits for the write lock of a read/write lock.
	Write bool
	// Permits is the number of permits of a semaphore that the waiter wants: see [Semaphore.AcquireN]. It is 0 for other
	// locks.
	Permits int
	// Since is the time at which the waiter got its present position in the wait queue, or earlier, in whole seconds
	// (rounded down) by the clock of Redis. A process keeps its position while its goroutines wait one after the
	// other, and gets a new one each time it has released the lock to others, or has lost its subscription. A waiter
	// of a fair lock keeps its position when it loses its subscription, but its Since starts anew. So a waiter may have
	// waited longer than Since shows, but not less. Since is zero if Redis does not store it: for a Java service, for a
	// waiter that may not subscribe to its channel, and for a writer without a position.
	Since time.Time
	// Reachable reports whether the message that grants the lock to the waiter would reach its process.
	Reachable Reachability
	// Deadline is the time at which Java services remove the waiter from the queue of a fair lock, if it is the first
	// one then. It is zero for other locks.
	Deadline time.Time
	// AliveUntil is the time until which a waiter of this package is considered alive unless it asks again. Only waiters of
	// a fair lock and writers have it. It is zero for a Java waiter.
	AliveUntil time.Time
}

// A Reachability describes whether a waiter can be told that the lock is its own.
type Reachability string

const (
	// ReachableYes means that a connection to this Redis server is subscribed to the channel of the waiter. Its process
	// may be paused all the same, and the connection may be one that Redis has not noticed to be broken.
	ReachableYes Reachability = "yes"
	// ReachableNo means that no connection to this Redis server is subscribed to the channel of the waiter: its process
	// has ended, or is connecting again. A waiter of this package is passed over then. Connections to replicas, which
	// Java services can be configured to use, do not count.
	ReachableNo Reachability = "no"
	// ReachableUnknown is for waiters that ask Redis instead of subscribing, and for all waiters if the Redis user has
	// no permission for PUBSUB NUMSUB (in a Cluster PUBSUB SHARDNUMSUB).
	ReachableUnknown Reachability = "unknown"
)

// Inspect returns who holds the lock with the given name, and who waits for it. It works for every type of lock, of
// this package and of Redisson, and for all owners and clients. For a MultiLock or a RedLock, inspect the locks of
// which it consists.
//
// Inspect sends a single request, which changes nothing in Redis; when it returns, the lock may already have another
// holder. If it finds clients of this package, it sends another request for their labels. At most 10,000 holders and
// 1,000 waiters are returned: see [Inspection.More].
//
// The error is ErrInvalid for a bad name, ErrNotALock if a key of the lock holds data of another kind, and ErrClosed
// after Close. The Redis user needs permission for GET and for the keys in docs/security.md.
func (c *Client) Inspect(ctx context.Context, name string) (i Inspection, err error) {
	what := record.Inspect(c.wire(), name)
	switch err = checkKeys(c, name, what.Keys); {
	case err != nil:
	case ctx == nil:
		err = errNilContext
	default:
		answer := c.engine().AskLong(ctx, what)
		if err = answer.Err; err == nil {
			i, err = readInspection(what.Keys[0], answer.Value)
		}
	}
	i.Name = name
	for _, h := range i.Holders {
		if h.Client == c.ID() {
			i.Token = cmp.Or(c.engine().HeldToken(what.Keys[0], strings.TrimSuffix(h.Field, record.WriteSuffix)), i.Token)
		}
	}
	c.addLabels(ctx, &i)
	return i, failed("inspect", name, err)
}

// inspect is Client.Inspect for the lock of h, for the method op.
func (h *handle) inspect(ctx context.Context, op string) (Inspection, error) {
	if err := h.usable(ctx); err != nil {
		return Inspection{}, h.fail(op, err)
	}
	return h.client.Inspect(ctx, h.name)
}
