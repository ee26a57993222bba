package relock

// The semaphore: at most n owners at a time.
//
// Rules: a hold has one permit, or as many as AcquireN was told, whatever its hold count; it has all of them, or it is
// lost. The field of the hold tells the IDs of its permits. The record is that of Redisson's RPermitExpirableSemaphore:
// see internal/lua/semaphore.lua. The number of permits is stored in Redis, and a Semaphore sets it only if it is not
// set yet. The caller of a process that found too few permits free has an entry in the wait queue in Redis until it is
// granted what it wants: see admitCountingLocked. While the first entry wants several permits, only Java takes those
// that become free.

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
)

const mostPermits = math.MaxInt32 // the highest number that Redisson can count

// A Semaphore has n permits, each of which one owner can hold, with a lease that is renewed automatically. It shares
// its permits with the RPermitExpirableSemaphore of Redisson. A permit whose lease has expired, because its process has
// crashed, is given to the next owner that asks.
//
// A Semaphore is a [Locker]: Lock acquires a permit, Unlock releases it, and the context of Guard is canceled when the
// permit is lost. An owner holds at most one permit: another Lock increments the hold count of that permit, so that an
// owner never waits for itself. To hold several permits at once, use [Semaphore.AcquireN], which acquires all of them
// or none. Callers that acquire one permit after the other may block each other.
//
// Processes that wait have a wait queue in Redis, as for a [Lock], and get permits in the order in which they joined
// it. A process has one entry, however many of its goroutines wait; after it was granted a permit it is behind the
// other processes. A process that has crashed loses its entry. A process that is paused can hold back a permit for up
// to 5s, or for a whole lease, as with a [Lock]. TryLock with a wait of 0 acquires a free permit ahead of the queue, unless
// the first process waits for several. Java services have no entry in it: if some of them are waiting, a permit is left
// free for them once in each hand-off window (see [WithHandoffWindow]).
//
// No notification is sent when a permit expires. So a waiter asks Redis when the first lease ends, and once in each
// poll interval (see [WithPollInterval]), or less often if more than 32 processes wait ahead of it.
//
// The number of permits is stored in Redis, in the key of the semaphore, and stays there even if no permit is held. The
// first use of a name sets it to the number that was passed to NewSemaphore. From then on the number in Redis applies,
// and other numbers passed to NewSemaphore have no effect, except that a Client logs the difference once for each name.
// So it is not enough to deploy a new number: [Semaphore.SetPermits] changes it, for all processes. If the key is
// deleted, the next use sets the number again. If the key of the permits that are held, {name}:timeout, is deleted,
// those permits are missing until SetPermits is called.
//
// IsLocked reports whether any permit is held. TTL returns the time until the leases of all permits have expired.
// ForceUnlock releases all permits. If it returns true and an error, it has released some of them.
//
// Java services that use the same permits compare leases with the clock of their machine, and this package with the
// clock of Redis. A permit that was acquired in Java without a lease never expires, and is lost if that service
// crashes.
type Semaphore struct {
	handle
	record *record.Semaphore
}

// NewSemaphore returns the semaphore with the given name. The argument permits applies only if the semaphore does not
// exist in Redis yet: see [Semaphore]. NewSemaphore sends no request. A bad name, a number of permits below 1 or above
// 2147483647, and the option [Fenced] are reported by the methods of the semaphore, as ErrInvalid.
//
// Use a name that no counter of your application has, and no RCountDownLatch, RSemaphore or RAtomicLong of Redisson. A
// semaphore of which no permit is held is just a number in a key, so any number of up to eleven digits in that key is
// taken for the number of free permits (see [Inspection.Ambiguous]).
func (c *Client) NewSemaphore(name string, permits int, opts ...LockOption) *Semaphore {
	o := newLockOptions(name, TypeSemaphore, opts)
	o.need(!o.traits.Fenced, "Fenced(): a semaphore has several holders at once, so none of their tokens is the newest")
	o.bad = cmp.Or(o.bad, checkPermits(permits, 1))
	l := record.NewSemaphore(c.wire(), o.traits, permits)
	return &Semaphore{newHandle(c, l, o), l}
}

func checkPermits(n, least int) error {
	if n < least || n > mostPermits {
		return invalid("%d permits: the number must be between %d and %d", n, least, mostPermits)
	}
	return nil
}

// AcquireN acquires n permits for a new owner, all of them or none, and returns them as one [Hold]: they have one
// lease, Release releases all of them, and if one of them is lost, the hold is lost, and the others are released. The
// hold count of the hold is 1, whatever n is. Otherwise AcquireN is like Acquire.
//
// A process that waits for n permits has one position in the wait queue. When it is the first one, the permits that
// become free are kept for it until there are n: neither the processes behind it nor a TryLock with a wait of 0 acquire
// them. So it does not starve, and up to n-1 permits are unused while it waits. If it is paused, others may acquire
// these after 5s, until it asks again. Java services have no position, and may acquire free permits before it does.
//
// An n below 1, above 1000, or above the number of permits in Redis is ErrInvalid. If [Semaphore.SetPermits] lowers
// that number below n while AcquireN waits, AcquireN lets the others go first, and waits until the number is raised
// again. If ctx is done before, the error does not match ErrBusy.
func (s *Semaphore) AcquireN(ctx context.Context, n int) (*Hold, error) {
	return s.several(n).Acquire(ctx)
}

// TryAcquireN is like [Semaphore.AcquireN], but waits for at most wait, with a lease as in TryAcquire. It reports
// whether the permits were acquired; if not, the Hold is nil. If SetPermits has lowered the number below n when wait
// has passed, the error is ErrInvalid.
func (s *Semaphore) TryAcquireN(ctx context.Context, n int, wait, lease time.Duration) (*Hold, bool, error) {
	return s.several(n).TryAcquire(ctx, wait, lease)
}

// several returns a handle whose holds have n permits each.
func (s *Semaphore) several(n int) *handle {
	h := s.handle
	switch {
	case n < 1 || n > record.MostAtOnce:
		h.bad = cmp.Or(h.bad, invalid("%d permits at once: must be between 1 and %d", n, record.MostAtOnce))
	case n > 1:
		h.lock = s.record.Several(n)
	}
	return &h
}

// SetPermits sets the number of permits in Redis, for all processes. It stays until the next SetPermits. Permits that
// are held are not revoked: if more than n of them are held, no owner gets a permit until fewer than n are held. With
// an n of 0 no owner gets a permit. SetPermits is a tool for operators, and may be repeated. It asks for the number first,
// and sets it unless it has changed since. So a request that Redis runs late, after SetPermits has returned an error, has no
// effect if the number is another one by then. The error is ErrInvalid for a negative n, and for one above 2147483647.
func (s *Semaphore) SetPermits(ctx context.Context, n int) error {
	err := s.usable(ctx)
	if err == nil {
		err = checkPermits(n, 0)
	}
	for r := (send.Reply{}); err == nil && r[0] == 0; {
		if r, err = s.client.engine().Ask(ctx, s.record.Count()); err == nil {
			r, err = s.client.engine().Ask(ctx, s.record.Set(r[0], n))
		}
	}
	return s.fail("set permits", err)
}

// Permits returns the number of permits, both free and held. If it is not set in Redis yet, it is the number that was
// passed to NewSemaphore.
func (s *Semaphore) Permits(ctx context.Context) (int, error) {
	r, err := s.count(ctx, "permits")
	return int(r[0]), err
}

// Available returns the number of free permits, which include those whose lease has expired. When Available returns,
// other owners may already have acquired them.
func (s *Semaphore) Available(ctx context.Context) (int, error) {
	r, err := s.count(ctx, "available permits")
	return int(max(r[1], 0)), err
}

func (s *Semaphore) count(ctx context.Context, op string) (send.Reply, error) {
	return ask(ctx, &s.handle, op, nil, func(e *engine.Engine, _ engine.Owner) (send.Reply, error) {
		return e.Ask(ctx, s.record.Count())
	})
}

// Holders returns the holders of permits, sorted by the time at which they expire. The Field of a Java permit is its
// ID, as Java prints it; Redis does not know which service holds it. Holders sends the requests of [Client.Inspect],
// which need more permissions in Redis than the other methods.
func (s *Semaphore) Holders(ctx context.Context) ([]Holder, error) {
	i, err := s.inspect(ctx, "holders")
	return i.Holders, err
}

// reportPermits logs, for one semaphore of the Client, that the number of permits in Redis differs from its own.
func (c *Client) reportPermits(kind contract.Lock, permits int) {
	c.in().permits.Do(func() {
		c.engine().Later(func() {
			c.engine().Log.Warn(
				"relock: the number of permits in Redis differs from the one passed to NewSemaphore, and the one in Redis "+
					"applies; SetPermits changes it",
				"lock",
				cutName(kind.Traits().Name),
				"permits",
				permits,
				"asked",
				kind.(*record.Semaphore).Permits,
			)
		})
	})
}
