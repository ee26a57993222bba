//go:build go1.25

package virtual

// Tests of MultiLocks in virtual time.
//
// Rules: a MultiLock has used none of its locks before it has all of them. What it gives back until then is free at once,
// and no event tells of it.

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/bubble"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A MultiLock gives back what it has acquired behind a busy lock. Nobody hears of that hold, and MinHold does not apply
// to it, for others and for itself.
func TestMultiLockGivesBackWhatItHasNotUsed(t *testing.T) {
	for name, newLock := range map[string]func(c *Client, opts ...LockOption) Locker{
		"lock":      func(c *Client, opts ...LockOption) Locker { return c.NewLock("y", opts...) },
		"fair":      func(c *Client, opts ...LockOption) Locker { return c.NewFairLock("y", opts...) },
		"write":     func(c *Client, opts ...LockOption) Locker { return c.NewRWLock("y", opts...).Write() },
		"semaphore": func(c *Client, opts ...LockOption) Locker { return c.NewSemaphore("y", 1, opts...) },
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
				ctx := context.Background()
				r := &locktest.Recorder{}
				other, _ := v.Client(0)
				c, _ := v.Client(0, WithObserver(r))
				busy, free := other.NewLock("x"), newLock(other)
				require.NoError(v, busy.Lock(ctx))
				l := c.NewMultiLock(c.NewLock("x"), newLock(c, MinHold(time.Minute)))
				isFree := func() {
					v.Helper()
					ok, err := free.TryLock(ctx, 0, 0)
					assert.NoError(v, err)
					if assert.True(v, ok, "it is held") {
						assert.NoError(v, free.Unlock(ctx))
					}
				}

				ok, err := l.TryLock(ctx, 0, 0)
				assert.NoError(v, err)
				assert.False(v, ok)
				isFree()
				for _, e := range r.Take() {
					assert.IsType(v, GaveUpEvent{}, e)
				}

				got := make(chan error)
				owner := ContextWithOwner(ctx)
				go func() { got <- l.Lock(owner) }()
				time.Sleep(time.Second)
				isFree()
				for _, e := range r.Take() {
					assert.IsType(v, WaitingEvent{}, e)
				}
				require.NoError(v, busy.Unlock(ctx))
				require.NoError(v, <-got)
				acquired := 0
				for _, e := range r.Take() {
					if assert.IsType(v, AcquiredEvent{}, e) {
						acquired++
					}
				}
				assert.Equal(v, 2, acquired)
				_, err = l.ForceUnlock(ctx)
				assert.NoError(v, err)
			})
		})
	}
}

// While a MultiLock waits, the explicit leases of the locks in front are extended when half of them is over, and they
// start anew when it has all of its locks.
func TestMultiLockLeaseStartsWhenAllAreHeld(t *testing.T) {
	const length = 10 * time.Second
	for _, waits := range []time.Duration{time.Second, 4 * time.Second, time.Minute} {
		locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
			ctx := context.Background()
			other, _ := v.Client(0)
			c, _ := v.Client(0)
			busy, first, last := other.NewLock("y"), c.NewLock("x"), c.NewLock("y")
			require.NoError(v, busy.Lock(ctx))
			got := make(chan error)
			owner := ContextWithOwner(ctx)
			l := c.NewMultiLock(first, last)
			go func() { got <- l.LockLease(owner, length) }()
			for end := time.Now().Add(waits); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				ttl, err := first.TTL(owner)
				assert.NoError(v, err)
				if time.Until(end) < waits {
					assert.Greater(v, ttl, 4*length/10)
				}
			}
			require.NoError(v, busy.Unlock(ctx))
			require.NoError(v, <-got)
			start := time.Now()
			for _, l := range []Locker{first, last} {
				ttl, err := l.TTL(owner)
				assert.NoError(v, err)
				assert.InDelta(v, length, ttl, float64(200*time.Millisecond))
			}
			guarded, err := l.Guard(owner)
			require.NoError(v, err)
			<-guarded.Done()
			assert.InDelta(v, lease.Validity(length), time.Since(start), float64(200*time.Millisecond))
		})
	}
}

// A call without a wait acquires free locks, whatever calls before it have given back. Of two such calls at once, one
// wins, also if each of them reaches another server sooner.
func TestMultiLocksThatDoNotWait(t *testing.T) {
	locktest.InVirtualTime(t, 2, func(v *locktest.Virtual) {
		ctx := context.Background()
		var locks []*MultiLock
		for process := range 2 {
			var parts []Locker
			for server, name := range []string{"x", "y"} {
				c, link := v.Client(server)
				link.Set(func(c *bubble.Conditions) { c.Latency = time.Duration(1+3*((process+server)%2)) * time.Millisecond })
				parts = append(parts, c.NewLock(name))
			}
			client, _ := v.Client(0)
			locks = append(locks, client.NewMultiLock(parts...))
		}
		for round := range 20 {
			for _, l := range locks {
				ok, err := l.TryLock(ctx, 0, 0)
				assert.NoError(v, err)
				assert.True(v, ok, "one after the other, round %d", round)
				assert.NoError(v, l.Unlock(ctx))
			}
			var won [2]bool
			var all sync.WaitGroup
			owner := ContextWithOwner(ctx)
			for i, l := range locks {
				all.Go(func() {
					ok, err := l.TryLock(owner, 0, 0)
					assert.NoError(v, err)
					won[i] = ok
				})
			}
			all.Wait()
			assert.True(v, won[0] != won[1], "of two, round %d: %v", round, won)
			for i, l := range locks {
				if won[i] {
					assert.NoError(v, l.Unlock(owner))
				}
			}
		}
	})
}

// attempts is a Locker whose attempts are up to the test.
type attempts struct {
	Locker
	try func() error
}

func (a attempts) Lock(context.Context) error { return a.try() }

func (a attempts) LockLease(context.Context, time.Duration) error { return a.try() }

func (a attempts) TryLock(context.Context, time.Duration, time.Duration) (bool, error) {
	return false, a.try()
}

// Code of the user ends the goroutine of a call, or panics, while a MultiLock acquires its locks: nothing is left.
func TestMultiLockLeavesNothingIfTheUserEndsTheCall(t *testing.T) {
	for how, end := range map[string]func(){"Goexit": runtime.Goexit, "panic": func() { panic("mine") }} {
		for _, name := range []string{"a", "n", "z"} { // before, between and behind the others
			for kind, acquire := range map[string]func(ctx context.Context, l *MultiLock){
				"Lock":         func(ctx context.Context, l *MultiLock) { _ = l.Lock(ctx) },
				"LockLease":    func(ctx context.Context, l *MultiLock) { _ = l.LockLease(ctx, time.Hour) },
				"TryLock":      func(ctx context.Context, l *MultiLock) { _, _ = l.TryLock(ctx, 0, 0) },
				"TryLock wait": func(ctx context.Context, l *MultiLock) { _, _ = l.TryLock(ctx, time.Minute, 0) },
			} {
				for answered := range 2 { // attempts before
					t.Run(how+" "+name+" "+kind, func(t *testing.T) {
						locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
							ctx := ContextWithOwner(context.Background())
							c, _ := v.Client(0)
							asked := 0
							ends := func() error {
								if asked++; asked > answered {
									end()
								}
								return nil
							}
							m, o, own := c.NewLock("m"), c.NewLock("o"), c.NewLock(name)
							l := c.NewMultiLock(m, o, attempts{own, ends})
							ended, panicked := make(chan struct{}), any(nil)
							go func() {
								defer close(ended)
								defer func() { panicked = recover() }()
								acquire(ctx, l)
								t.Error("the call has returned")
							}()
							<-ended
							if how == "panic" {
								assert.Equal(v, "mine", panicked)
							}
							synctest.Wait()
							for _, l := range []Locker{m, o, own} {
								held, err := l.IsLocked(ctx)
								assert.NoError(v, err)
								assert.False(v, held, "%s is held", l.Name())
							}
						})
					})
				}
			}
		}
	}
}
