//go:build go1.25

package locks

// ErrBusy, and a false without an error, of all lock types: see internal/engine/busy.go, whose tests have the rule itself.

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/bubble"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A busyCase is a lock that another process keeps from its callers.
type busyCase struct {
	name  string
	waits func(c []*Client) Locker // of the process that waits; it has a Client on each of three servers
	keeps func(v *locktest.Virtual, c []*Client) (release func())
}

// kept returns how the other process holds the lock that newLock makes.
func kept(newLock func(c []*Client) Locker) func(v *locktest.Virtual, c []*Client) (release func()) {
	return func(v *locktest.Virtual, c []*Client) func() {
		ctx := ContextWithOwner(ctx)
		l := newLock(c)
		require.NoError(v, l.Lock(ctx))
		return func() { assert.NoError(v, l.Unlock(ctx)) }
	}
}

func busyCases() []busyCase {
	lock := func(c []*Client) Locker { return c[0].NewLock("l") }
	fair := func(c []*Client) Locker { return c[0].NewFairLock("l") }
	read := func(c []*Client) Locker { return c[0].NewRWLock("l").Read() }
	write := func(c []*Client) Locker { return c[0].NewRWLock("l").Write() }
	semaphore := func(c []*Client) Locker { return c[0].NewSemaphore("l", 1) }
	red := func(c []*Client) Locker {
		return c[0].NewRedLock(c[0].NewLock("l"), c[1].NewLock("l"), c[2].NewLock("l"))
	}
	return []busyCase{
		{"lock", lock, kept(lock)},
		{"lock behind others", lock, func(v *locktest.Virtual, c []*Client) func() {
			return both(kept(lock)(v, c), v.Waiter(lock(c)))
		}},
		{"fair", fair, kept(fair)},
		{"fair behind others", fair, func(v *locktest.Virtual, c []*Client) func() {
			return both(kept(fair)(v, c), v.Waiter(fair(c)))
		}},
		{"read", read, kept(write)},
		{"read behind a writer that waits", read, func(v *locktest.Virtual, c []*Client) func() {
			return both(kept(read)(v, c), v.Waiter(write(c)))
		}},
		{"write", write, kept(read)},
		{"semaphore", semaphore, kept(semaphore)},
		{"MultiLock", func(c []*Client) Locker { return c[0].NewMultiLock(c[0].NewLock("l"), c[0].NewLock("m")) }, kept(lock)},
		{"MultiLock of servers", func(c []*Client) Locker { return c[0].NewMultiLock(c[0].NewFairLock("l"), c[1].NewLock("m")) }, kept(fair)},
		{"red", red, kept(red)},
	}
}

func both(f, g func()) func() {
	return func() {
		f()
		g()
	}
}

// The calls whose context ends, and those whose wait passes, which report whether they have acquired the lock.
var (
	callsWithCtx = map[string]func(ctx context.Context, l Locker) error{
		"Lock":      func(ctx context.Context, l Locker) error { return l.Lock(ctx) },
		"LockLease": func(ctx context.Context, l Locker) error { return l.LockLease(ctx, time.Minute) },
		"Do":        func(ctx context.Context, l Locker) error { return l.Do(ctx, nothing) },
		"Acquire":   func(ctx context.Context, l Locker) error { return locktest.Second(l.(Acquirer).Acquire(ctx)) },
		"TryLock":   func(ctx context.Context, l Locker) error { return locktest.Second(l.TryLock(ctx, time.Hour, 0)) },
		"TryDo":     func(ctx context.Context, l Locker) error { return locktest.Second(l.TryDo(ctx, time.Hour, nothing)) },
	}
	callsWithWait = map[string]func(l Locker, wait time.Duration) (bool, error){
		"TryLock": func(l Locker, wait time.Duration) (bool, error) { return l.TryLock(ctx, wait, 0) },
		"TryDo":   func(l Locker, wait time.Duration) (bool, error) { return l.TryDo(ctx, wait, nothing) },
		"TryAcquire": func(l Locker, wait time.Duration) (bool, error) {
			_, ok, err := l.(Acquirer).TryAcquire(ctx, wait, 0)
			return ok, err
		},
	}
)

// Callers of one process, the first of which is in front of the other ones, wait for a lock that another process has.
// They are told that it is busy, however often its lease was renewed meanwhile. If Redis stops to answer while they wait,
// they are not told so.
func TestBusyIsToldFromAnOutage(t *testing.T) {
	t.Parallel()
	const begins = 1500 * time.Millisecond // of the outage
	for _, c := range busyCases() {
		for how, outage := range map[string]func(f func(), links ...*bubble.Link){
			"held": nil, "refused": locktest.Refusing, "silent": locktest.Silent,
		} {
			t.Run(c.name+"/"+how, func(t *testing.T) {
				locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
					var mine, others []*Client
					var links []*bubble.Link
					for i := range 3 {
						client, link := v.Client(i)
						mine, links = append(mine, client), append(links, link)
						other, _ := v.Client(i)
						others = append(others, other)
					}
					release := c.keeps(v, others)
					busy, wait := outage == nil, 6*time.Second
					if busy {
						wait = 40 * time.Second // longer than the lease in the first answer
					}
					done := make(chan bool)
					n := 0
					for name, call := range callsWithCtx {
						n++
						go func() {
							defer func() { done <- true }()
							ctx, cancel := context.WithTimeout(ctx, wait)
							defer cancel()
							err := call(ctx, c.waits(mine))
							assert.ErrorIs(v, err, context.DeadlineExceeded, name)
							assert.Equal(v, busy, errors.Is(err, ErrBusy), "%s: %v", name, err)
						}()
						time.Sleep(time.Millisecond)
					}
					for name, call := range callsWithWait {
						n++
						go func() {
							defer func() { done <- true }()
							ok, err := call(c.waits(mine), wait)
							assert.False(v, ok, name)
							assert.Equal(v, busy, err == nil, "%s: %v", name, err)
							assert.NotErrorIs(v, err, ErrBusy, name)
						}()
						time.Sleep(time.Millisecond)
					}
					await := func() {
						for range n {
							<-done
						}
					}
					if busy {
						await()
					} else {
						time.Sleep(begins)
						outage(await, links...)
						time.Sleep(time.Minute)
					}
					release()
				})
			})
		}
	}
}

// The caller in front waits on, and asks Redis seldom, because it has a place in the line. What its poller finds out counts
// for the callers behind it.
func TestBusyBehindACallerThatWaitsOn(t *testing.T) {
	for name, outage := range map[string]bool{"held": false, "silent": true} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
				c, link := v.Client(0)
				other, _ := v.Client(0)
				release := kept(func([]*Client) Locker { return other.NewLock("l") })(v, nil)
				ended := v.Waiter(c.NewLock("l"))
				result := make(chan error)
				go func() {
					ok, err := c.NewLock("l").TryLock(ctx, 65*time.Second, 0)
					assert.False(v, ok)
					result <- err
				}()
				time.Sleep(60 * time.Second) // two leases, and the front asks itself after 80s at the soonest
				var err error
				if outage {
					locktest.Silent(func() { err = <-result }, link)
				} else {
					err = <-result
				}
				assert.Equal(v, outage, err != nil, "TryLock: %v", err)
				time.Sleep(time.Minute)
				release()
				ended()
			})
		})
	}
}

// A campaign is one of the calls that match ErrBusy.
func TestCampaignIsToldThatAnotherOneLeads(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		c, link := v.Client(0)
		other, _ := v.Client(0)
		term, err := other.NewElection("e").Campaign(ctx)
		require.NoError(v, err)
		campaign := func() error {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			return locktest.Second(c.NewElection("e").Campaign(ctx))
		}
		err = campaign()
		assert.ErrorIs(v, err, ErrBusy)
		assert.ErrorIs(v, err, context.DeadlineExceeded)
		locktest.Silent(func() { err = campaign() }, link)
		assert.ErrorIs(v, err, context.DeadlineExceeded)
		assert.NotErrorIs(v, err, ErrBusy)
		time.Sleep(time.Minute)
		require.NoError(v, term.Resign(ctx))
	})
}

// A caller that wants several permits is told that they are busy if others hold them, or wait ahead of it. It is not, if
// the semaphore has fewer by now.
func TestAcquireNIsBusyUnlessThereAreTooFewPermits(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		c, _ := v.Client(0)
		other, _ := v.Client(0)
		mine, s := c.NewSemaphore("s", 5), other.NewSemaphore("s", 5)
		held, err := s.AcquireN(ctx, 3)
		require.NoError(v, err)
		calls := func(busy bool, lowered int) {
			v.Helper()
			go func() {
				time.Sleep(2 * time.Second)
				assert.NoError(v, s.SetPermits(ctx, lowered))
			}()
			short, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			_, err := mine.AcquireN(short, 4)
			assert.ErrorIs(v, err, context.DeadlineExceeded)
			assert.Equal(v, busy, errors.Is(err, ErrBusy), "AcquireN: %v", err)
			assert.NoError(v, s.SetPermits(ctx, 5))
			go func() {
				time.Sleep(2 * time.Second)
				assert.NoError(v, s.SetPermits(ctx, lowered))
			}()
			hold, ok, err := mine.TryAcquireN(ctx, 4, 5*time.Second, 0)
			assert.Nil(v, hold)
			assert.False(v, ok)
			assert.Equal(v, busy, err == nil, "TryAcquireN: %v", err)
			assert.Equal(v, !busy, errors.Is(err, ErrInvalid), "TryAcquireN: %v", err)
			assert.NoError(v, s.SetPermits(ctx, 5))
		}
		calls(true, 5)
		calls(false, 3)
		waits := make(chan error)
		go func() {
			hold, err := s.AcquireN(ctx, 5) // ahead: the two permits that are free are kept for it
			waits <- err
			waits <- hold.Release(ctx)
		}()
		time.Sleep(time.Second)
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err = mine.AcquireN(short, 2)
		assert.ErrorIs(v, err, ErrBusy)
		require.NoError(v, held.Release(ctx))
		assert.NoError(v, <-waits)
		assert.NoError(v, <-waits)
	})
}

// A RedLock is busy if more nodes than it may miss have answered that others hold the lock. Otherwise the error has the
// answer of each node.
func TestRedLockIsBusyIfTooManyNodesAreTaken(t *testing.T) {
	for name, test := range map[string]struct {
		taken, silent int
		busy          bool
	}{
		"a majority is taken":                       {2, 0, true},
		"a majority is taken, and a node is silent": {2, 1, true},
		"a node is taken, and a node is silent":     {1, 1, false},
		"a node is taken, and a majority is silent": {1, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
				var locks []Locker
				var links []*bubble.Link
				var first *Client
				for i := range 3 {
					c, link := v.Client(i)
					if first == nil {
						first = c
					}
					locks, links = append(locks, c.NewLock("l")), append(links, link)
					if other, _ := v.Client(i); i < test.taken {
						require.NoError(v, other.NewLock("l").Lock(ctx))
					}
				}
				l := first.NewRedLock(locks...)
				locktest.Silent(func() {
					for _, wait := range []time.Duration{0, time.Second, 1100 * time.Millisecond, 1200 * time.Millisecond} {
						ok, err := l.TryLock(ctx, wait, 0)
						assert.False(v, ok)
						assert.Equal(v, test.busy, err == nil, "a wait of %v: %v", wait, err)
						if !test.busy {
							assert.ErrorAs(v, err, new(*QuorumError))
						}
						short, cancel := context.WithTimeout(ctx, wait)
						if err = l.Lock(short); wait > 0 {
							assert.Equal(v, test.busy, errors.Is(err, ErrBusy), "a wait of %v: %v", wait, err)
						}
						assert.ErrorIs(v, err, context.DeadlineExceeded)
						cancel()
					}
				}, links[3-test.silent:]...)
				time.Sleep(time.Minute)
			})
		})
	}
}
