//go:build go1.25

package virtual

// Tests of MultiLocks in virtual time.
//
// Rules: a MultiLock has used none of its locks before it has all of them. What it gives back until then is free at once,
// and no event tells of it.

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
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

// The answer of one server is late, so that its lock is asked for again. Half of the lease is left of the other one, too.
func TestMultiLockLateAnswerLeavesHalfOfEachLease(t *testing.T) {
	locktest.InVirtualTime(t, 2, func(v *locktest.Virtual) {
		owner := ContextWithOwner(ctx)
		c, _ := v.Client(0)
		far, link := v.Client(1)
		link.Set(func(c *bubble.Conditions) { c.Latency = 280 * time.Millisecond })
		time.AfterFunc(550*time.Millisecond, func() { link.Set(func(c *bubble.Conditions) { c.Latency = 0 }) })
		l := c.NewMultiLock(c.NewLock("x"), far.NewLock("y"))
		require.NoError(v, l.LockLease(owner, time.Second))
		guarded, err := l.Guard(owner)
		require.NoError(v, err)
		time.Sleep(lease.Validity(time.Second) / 2)
		assert.NoError(v, guarded.Err())
		_ = l.Unlock(owner)
	})
}

// A call without a wait acquires free locks, whatever calls before it have given back. Of two such calls at once, one
// wins, also if each of them reaches another server sooner.
func TestMultiLocksThatDoNotWait(t *testing.T) {
	locktest.InVirtualTime(t, 2, func(v *locktest.Virtual) {
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
							ctx := ContextWithOwner(ctx)
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

// A MultiLock that has lost a lock, of which it has not told, tells of no loss. It gives back that hold, and not a later one
// of another goroutine of its owner.
func TestMultiLockGivesBackOnlyWhatItHasAcquired(t *testing.T) {
	for name, length := range map[string]time.Duration{"renewed": 0, "explicit": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
				r := &locktest.Recorder{}
				other, _ := v.Client(0)
				c, _ := v.Client(0, WithObserver(r))
				busy, x := other.NewLock("y"), c.NewLock("x")
				require.NoError(v, busy.Lock(ctx))
				owner := ContextWithOwner(ctx)
				got := make(chan error)
				go func() {
					_, err := c.NewMultiLock(x, c.NewLock("y")).TryLock(owner, time.Hour, length)
					got <- err
				}()
				time.Sleep(time.Second)
				_, err := other.NewLock("x").ForceUnlock(ctx)
				require.NoError(v, err)
				time.Sleep(time.Second)
				if events := r.Take(); assert.Len(v, events, 1) {
					assert.IsType(v, WaitingEvent{}, events[0])
				}
				require.ErrorIs(v, x.Lock(owner), ErrLockLost)
				require.NoError(v, x.Lock(owner))
				guarded, err := x.Guard(owner)
				require.NoError(v, err)
				require.NoError(v, busy.Unlock(ctx))
				require.NoError(v, <-got)
				assert.NoError(v, guarded.Err(), "the hold of another goroutine was given back")
				n, err := x.HoldCount(owner)
				assert.NoError(v, err)
				assert.Equal(v, 2, n)
				for _, l := range []Locker{x, c.NewLock("y")} {
					_, err = l.ForceUnlock(ctx)
					assert.NoError(v, err)
				}
			})
		})
	}
}

// TryLock does not overstay its wait when one of its servers falls silent before all is held.
func TestMultiLockDoesNotOverstayASilentServer(t *testing.T) {
	for _, length := range []time.Duration{0, 3 * time.Second, 30 * time.Second} {
		locktest.InVirtualTime(t, 2, func(v *locktest.Virtual) {
			other, _ := v.Client(1)
			c, link := v.Client(0)
			d, _ := v.Client(1)
			busy := other.NewLock("y")
			require.NoError(v, busy.Lock(ctx))
			began, got := time.Now(), make(chan error)
			go func() {
				_, err := c.NewMultiLock(c.NewLock("x"), d.NewLock("y")).TryLock(ContextWithOwner(ctx), time.Second, length)
				got <- err
			}()
			time.Sleep(500 * time.Millisecond)
			link.Set(func(c *bubble.Conditions) { c.Held = [2]bool{true, true} })
			time.Sleep(400 * time.Millisecond)
			require.NoError(v, busy.Unlock(ctx))
			assert.NoError(v, <-got)
			assert.Less(v, time.Since(began), 1500*time.Millisecond)
			link.Set(func(c *bubble.Conditions) { c.Held = [2]bool{} })
			for _, l := range []Locker{c.NewLock("x"), other.NewLock("y")} {
				_, err := l.ForceUnlock(ctx)
				assert.NoError(v, err)
			}
		})
	}
}

// Whatever MultiLocks consist of, two of them do not wait for each other: what has several records has no place in the order.
func TestMultiLocksDoNotWaitForEachOther(t *testing.T) {
	for name, parts := range map[string]func(one, two [3]*Client) (a, b []Locker){
		"a RedLock": func(one, two [3]*Client) (a, b []Locker) {
			return []Locker{redLock(one, "b", "y", "z"), one[0].NewLock("m")}, []Locker{two[0].NewLock("m"), two[1].NewLock("y")}
		},
		"RedLocks": func(one, two [3]*Client) (a, b []Locker) {
			return []Locker{redLock(one, "b", "p", "z"), redLock(one, "k", "n", "q")},
				[]Locker{redLock(two, "c", "n", "q"), redLock(two, "w", "p", "z")}
		},
		"a majority": func(one, two [3]*Client) (a, b []Locker) {
			return []Locker{one[0].NewLock("m"), redLock(one, "b", "c", "d")},
				[]Locker{two[0].NewLock("b"), two[1].NewLock("c"), two[0].NewLock("m")}
		},
		"an embedded MultiLock": func(one, two [3]*Client) (a, b []Locker) {
			return []Locker{embedding{one[0].NewMultiLock(one[0].NewLock("a"), one[0].NewLock("z"))}, one[0].NewLock("m")},
				[]Locker{two[0].NewLock("m"), two[0].NewLock("z")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
				var one, two [3]*Client
				for i := range 3 {
					one[i], _ = v.Client(i)
					two[i], _ = v.Client(i)
				}
				a, b := parts(one, two)
				done := make(chan error)
				for _, l := range []*MultiLock{one[0].NewMultiLock(a...), two[0].NewMultiLock(b...)} {
					go func() {
						owner, cancel := context.WithTimeout(ContextWithOwner(ctx), time.Hour)
						defer cancel()
						var err error
						for end := time.Now().Add(3 * time.Second); err == nil && time.Now().Before(end); {
							if err = l.Lock(owner); err == nil {
								time.Sleep(time.Millisecond)
								err = l.Unlock(owner)
							}
						}
						done <- err
					}()
				}
				for range 2 {
					assert.NoError(v, <-done)
				}
			})
		})
	}
}

type embedding struct{ *MultiLock }

// redLock returns a RedLock with nodes of these names, one at each Client.
func redLock(c [3]*Client, names ...string) *RedLock {
	var nodes []Locker
	for i, name := range names {
		nodes = append(nodes, c[i].NewLock(name))
	}
	return c[0].NewRedLock(nodes...)
}

// An endsOnGaveUp is an Observer that ends the goroutine when the call gives up this lock.
type endsOnGaveUp struct {
	NopObserver
	name string
}

func (o endsOnGaveUp) GaveUp(_ context.Context, e GaveUpEvent) {
	if e.Lock.Name == o.name {
		runtime.Goexit()
	}
}

// The Observer ends the goroutine when it hears that a lock is given back for which the call has waited: nothing is left.
func TestMultiLockGivesBackIfTheObserverEndsTheGoroutine(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		other, _ := v.Client(0)
		c, _ := v.Client(0, WithObserver(endsOnGaveUp{name: "y"}))
		y, z := other.NewLock("y"), other.NewLock("z")
		require.NoError(v, y.Lock(ctx))
		require.NoError(v, z.Lock(ctx))
		l := c.NewMultiLock(c.NewLock("x"), c.NewLock("y"), c.NewLock("z"))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = l.TryLock(ContextWithOwner(ctx), 10*time.Second, 0)
		}()
		time.Sleep(time.Second)
		require.NoError(v, y.Unlock(ctx))
		<-ended
		time.Sleep(time.Minute)
		for _, name := range []string{"x", "y"} {
			held, err := other.NewLock(name).IsLocked(ctx)
			assert.NoError(v, err)
			assert.False(v, held, "%s is held", name)
		}
		require.NoError(v, z.Unlock(ctx))
	})
}

// TryLock does not overstay its wait twice: first while it gives back the locks behind a busy one, and then with another
// attempt on the busy one.
func TestMultiLockDoesNotOverstayTwice(t *testing.T) {
	locktest.InVirtualTime(t, 2, func(v *locktest.Virtual) {
		other, _ := v.Client(0)
		c, near := v.Client(0)
		d, far := v.Client(1)
		links := []*bubble.Link{near, far}
		for _, link := range links {
			link.Set(func(c *bubble.Conditions) { c.Latency = 5 * time.Millisecond })
		}
		owner := ContextWithOwner(ctx)
		l := c.NewMultiLock(c.NewLock("x"), d.NewLock("y"))
		require.NoError(v, l.Lock(owner))
		require.NoError(v, l.Unlock(owner))
		busy := other.NewLock("x")
		require.NoError(v, busy.Lock(ctx))
		const wait = 200 * time.Millisecond
		began, took := time.Now(), make(chan time.Duration)
		go func() {
			_, err := l.TryLock(owner, wait, 0)
			assert.NoError(v, err)
			took <- time.Since(began)
		}()
		time.Sleep(12 * time.Millisecond) // x was busy, and y is being given back
		locktest.Silent(func() { assert.LessOrEqual(v, <-took, wait+250*time.Millisecond) }, links...)
		require.NoError(v, busy.Unlock(ctx))
		time.Sleep(time.Minute)
	})
}

// Code of the user panics in Unlock of a lock that is given back because another one in front of it is busy. The call goes on,
// and the log says so.
func TestMultiLockLogsThePanicOfAnUnlock(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		other, _ := v.Client(0)
		var log strings.Builder
		c, _ := v.Client(0, WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		busy := other.NewLock("x")
		require.NoError(v, busy.Lock(ctx))
		l := c.NewMultiLock(c.NewLock("x"), panics{c.NewLock("y")})
		ok, err := l.TryLock(ContextWithOwner(ctx), time.Second, 0)
		assert.NoError(v, err)
		assert.False(v, ok)
		assert.Contains(v, log.String(), "panic=mine")
		synctest.Wait()
		require.NoError(v, busy.Unlock(ctx))
		_, err = c.NewLock("y").ForceUnlock(ctx)
		require.NoError(v, err)
	})
}

type panics struct{ Locker }

func (panics) Unlock(context.Context) error { panic("mine") }

// A faulty is a context of the user that calls end at the call with this number of one of its methods.
type faulty struct {
	context.Context
	calls *atomic.Int64
	at    int64
	end   func()
}

func (f faulty) count() {
	if f.calls.Add(1) == f.at {
		f.end()
	}
}

func (f faulty) Done() <-chan struct{} {
	f.count()
	return f.Context.Done()
}

func (f faulty) Err() error {
	f.count()
	return f.Context.Err()
}

// The context of the user panics, or ends the goroutine, at any of its calls: nothing is left.
func TestMultiLockWithAFaultyContext(t *testing.T) {
	for how, end := range map[string]func(){"Goexit": runtime.Goexit, "panic": func() { panic("mine") }} {
		for at, calls := int64(1), int64(1); at <= calls+1; at++ {
			locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
				c, _ := v.Client(0)
				bg := ctx
				parent, cancel := context.WithCancel(ContextWithOwner(bg))
				defer cancel()
				ctx := faulty{parent, new(atomic.Int64), at, end}
				x, y := c.NewLock("x"), c.NewLock("y")
				require.NoError(v, x.LockLease(parent, time.Second)) // it is not going to be unlocked
				l := c.NewMultiLock(x, y)
				ended, returned := make(chan struct{}), false
				go func() {
					defer close(ended)
					defer func() { _ = recover() }()
					err := l.Lock(ctx)
					returned = true
					if err == nil {
						assert.NoError(v, l.Unlock(parent))
						assert.NoError(v, x.Unlock(parent))
					}
				}()
				<-ended
				calls = ctx.calls.Load()
				time.Sleep(time.Minute)
				for _, l := range []Locker{x, y} {
					held, err := l.IsLocked(bg)
					assert.NoError(v, err)
					assert.False(v, held, "%s: %s is held after the call %d of %d; Lock has returned: %t", how, l.Name(), at, calls, returned)
				}
				_, _ = l.ForceUnlock(bg)
			})
		}
	}
}

// A panicsThen is a context of the user whose Done panics when the time has come.
type panicsThen struct {
	context.Context
	then *atomic.Bool
}

func (p panicsThen) Done() <-chan struct{} {
	if p.then.Load() {
		panic("mine")
	}
	return p.Context.Done()
}

// The context of the user panics when the patience of the call is over: not on a goroutine of the Client, where that would
// end the process.
func TestMultiLockWhoseContextPanicsWhenThePatienceIsOver(t *testing.T) {
	locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
		var one, two [3]*Client
		for i := range 3 {
			one[i], _ = v.Client(i)
			two[i], _ = v.Client(i)
		}
		bg := ctx
		busy := redLock(two, "q", "q", "q")
		require.NoError(v, busy.Lock(bg))
		parent, cancel := context.WithCancel(ContextWithOwner(bg))
		defer cancel()
		ctx := panicsThen{parent, new(atomic.Bool)}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer func() { _ = recover() }()
			_ = one[0].NewMultiLock(redLock(one, "o", "o", "o"), redLock(one, "q", "q", "q")).Lock(ctx)
		}()
		time.Sleep(10 * time.Millisecond) // it waits for q, and holds o
		ctx.then.Store(true)
		time.Sleep(time.Second)
		require.NoError(v, busy.Unlock(bg))
		<-ended
	})
}

// What single nodes of a RedLock have answered ends the call of a MultiLock no sooner than that of the RedLock.
func TestMultiLockWithARedLockThatHasAClosedNode(t *testing.T) {
	locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
		ctx, cancel := context.WithTimeout(ContextWithOwner(ctx), time.Minute)
		defer cancel()
		clients, links, locks := nodes(v)
		home, _ := v.Client(2)
		l := home.NewMultiLock(home.NewRedLock(locks...), home.NewLock("z"))
		require.NoError(v, l.Lock(ctx))
		require.NoError(v, l.Unlock(ctx))
		require.NoError(v, clients[0].Close())
		ended := make(chan error)
		locktest.Silent(func() {
			go func() { ended <- l.Lock(ctx) }()
			time.Sleep(2 * time.Second)
		}, links[1])
		if err := <-ended; assert.NoError(v, err) {
			assert.NoError(v, l.Unlock(ctx))
		}
	})
}

// x is acquired by an attempt whose answer comes when the time is up. y, which was given back before that, is not asked
// for again: the Observer must not hear that it was acquired.
func TestMultiLockTellsOfNoLockThatWasGivenBack(t *testing.T) {
	for at := time.Duration(0); at < 60*time.Millisecond; at += 5 * time.Millisecond {
		locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
			r := &locktest.Recorder{}
			other, _ := v.Client(0)
			c, link := v.Client(0, WithObserver(r))
			link.Set(func(c *bubble.Conditions) { c.Latency = 20 * time.Millisecond })
			busy := other.NewLock("x")
			owner := ContextWithOwner(ctx)
			l := c.NewMultiLock(c.NewLock("x"), c.NewLock("y"))
			require.NoError(v, l.Lock(owner))
			require.NoError(v, l.Unlock(owner))
			r.Take()
			require.NoError(v, busy.Lock(ctx))
			const wait = time.Second
			got := make(chan bool)
			go func() {
				ok, err := l.TryLock(owner, wait, 0)
				assert.NoError(v, err)
				got <- ok
			}()
			time.Sleep(wait - at)
			require.NoError(v, busy.Unlock(ctx))
			ok := <-got
			acquired, waits := 0, 0
			for _, e := range r.Take() {
				switch e.(type) {
				case AcquiredEvent:
					acquired++
				case WaitingEvent:
					waits++
				case GaveUpEvent:
					waits--
				}
			}
			if ok {
				assert.Equal(v, 2, acquired, "at %v", at)
				assert.NoError(v, l.Unlock(owner))
			} else {
				assert.Zero(v, acquired, "at %v: TryLock has returned false, and nothing is held", at)
				assert.Zero(v, waits, "at %v", at)
			}
			time.Sleep(time.Minute)
		})
	}
}

// The call waits for y, and its time is up while it gives back z, whose server has fallen silent. When it returns, its
// owner does not hold x.
func TestMultiLockHoldsNothingAfterASlowGiveBack(t *testing.T) {
	locktest.InVirtualTime(t, 2, func(v *locktest.Virtual) {
		other, _ := v.Client(0)
		near, _ := v.Client(0)
		far, link := v.Client(1)
		link.Set(func(c *bubble.Conditions) { c.Latency = 5 * time.Millisecond })
		owner := ContextWithOwner(ctx)
		x, busy := near.NewLock("x"), other.NewLock("y")
		l := near.NewMultiLock(x, near.NewLock("y"), far.NewLock("z"))
		require.NoError(v, l.Lock(owner))
		require.NoError(v, l.Unlock(owner))
		require.NoError(v, busy.Lock(ctx))
		done := make(chan error)
		go func() {
			_, err := l.TryLock(owner, 100*time.Millisecond, 0)
			assert.NoError(v, err)
			_, err = x.Guard(owner)
			done <- err
		}()
		time.Sleep(12 * time.Millisecond) // z is being given back
		locktest.Silent(func() { assert.ErrorIs(v, <-done, ErrNotHeld, "the owner holds x after TryLock has failed") }, link)
		require.NoError(v, busy.Unlock(ctx))
		time.Sleep(time.Minute)
	})
}

// Others hold y one after the other, always with one of them waiting, so that a place in the queue of y takes longer than
// MaxHold of x, or than three quarters of the lease of x. The MultiLock does not release y because of that.
func TestMultiLockWithMaxHoldIsNotStarved(t *testing.T) {
	for name, c := range map[string]struct {
		others        int
		section, long time.Duration
	}{
		"renewed":                {5, time.Second, 0},
		"explicit":               {5, time.Second, 3 * time.Second},
		"most of the lease over": {3, 900 * time.Millisecond, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
				mine, _ := v.Client(0)
				var stop atomic.Bool
				var all sync.WaitGroup
				for range c.others {
					other, _ := v.Client(0)
					all.Go(func() {
						owner := ContextWithOwner(ctx)
						for !stop.Load() {
							assert.NoError(v, other.NewFairLock("y").Lock(owner))
							time.Sleep(c.section)
							assert.NoError(v, other.NewFairLock("y").Unlock(owner))
						}
					})
				}
				time.Sleep(500 * time.Millisecond)
				owner := ContextWithOwner(ctx)
				l := mine.NewMultiLock(mine.NewLock("x", MaxHold(3*time.Second)), mine.NewFairLock("y"))
				ok, err := l.TryLock(owner, 10*time.Minute, c.long)
				assert.NoError(v, err)
				if assert.True(v, ok) {
					assert.NoError(v, l.Unlock(owner))
				}
				stop.Store(true)
				all.Wait()
			})
		})
	}
}

// The server is slow: half of the lease is not left after the second request, but more than a quarter. A MultiLock is acquired
// as a single lock is.
func TestMultiLockOnASlowServer(t *testing.T) {
	for _, wait := range []time.Duration{0, 10 * time.Second} {
		locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
			owner, cancel := context.WithTimeout(ContextWithOwner(ctx), time.Minute)
			defer cancel()
			c, link := v.Client(0)
			l := c.NewMultiLock(c.NewLock("x"), c.NewLock("y"))
			require.NoError(v, l.Lock(owner))
			require.NoError(v, l.Unlock(owner))
			link.Set(func(c *bubble.Conditions) { c.Latency = 30 * time.Millisecond })
			ok, err := l.TryLock(owner, wait, 100*time.Millisecond)
			assert.NoError(v, err, wait)
			assert.True(v, ok, wait)
			_, _ = l.ForceUnlock(ctx)
		})
	}
}

// The owner has x with an explicit lease, which needs no Unlock. A MultiLock that it does not acquire leaves that lease as it
// was: x is free when it is over. One that acquires x renews it. A lease longer than MaxHold of one of the locks is refused at once, although another owner
// has the first one.
func TestMultiLockThatFailsLeavesAnExplicitLease(t *testing.T) {
	for _, length := range []time.Duration{0, time.Hour} {
		for _, wait := range []time.Duration{0, 500 * time.Millisecond} {
			locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
				owner := ContextWithOwner(ctx)
				other, _ := v.Client(0)
				c, _ := v.Client(0)
				busy, x := other.NewLock("y"), c.NewLock("x")
				require.NoError(v, busy.Lock(ctx))
				require.NoError(v, x.LockLease(owner, 3*time.Second))
				ok, err := c.NewMultiLock(x, c.NewLock("y")).TryLock(owner, wait, length)
				assert.NoError(v, err)
				assert.False(v, ok)
				ttl, err := x.TTL(ctx)
				assert.NoError(v, err)
				assert.LessOrEqual(v, ttl, 3*time.Second-wait)
				_, err = c.NewMultiLock(c.NewLock("y"), c.NewLock("z", MaxHold(time.Second))).TryLock(ctx, time.Hour, time.Minute)
				assert.ErrorIs(v, err, ErrInvalid)
				time.Sleep(4 * time.Second)
				held, err := x.IsLocked(ctx)
				assert.NoError(v, err)
				assert.False(v, held)
				require.NoError(v, busy.Unlock(ctx))
				require.NoError(v, x.LockLease(owner, 3*time.Second))
				l := c.NewMultiLock(x, busy)
				require.NoError(v, l.Lock(owner))
				time.Sleep(time.Minute)
				assert.NoError(v, l.Unlock(owner))
				assert.NoError(v, x.Unlock(owner))
			})
		}
	}
}

// The owner has x with an explicit lease, and MaxHold. A MultiLock that acquires x renews it until MaxHold is over.
func TestMultiLockRenewsALeaseUntilMaxHold(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		owner := ContextWithOwner(ctx)
		c, _ := v.Client(0)
		x := c.NewLock("x", MaxHold(2*time.Second))
		require.NoError(v, x.LockLease(owner, time.Second))
		l, began := c.NewMultiLock(x, c.NewLock("y")), time.Now()
		require.NoError(v, l.Lock(owner))
		guarded, err := x.Guard(owner)
		require.NoError(v, err)
		<-guarded.Done()
		assert.InDelta(v, 2*time.Second, time.Since(began), float64(time.Second/20))
		_, _ = l.ForceUnlock(owner)
	})
}

// A RedLock that its owner has with an explicit lease ends with it, although a MultiLock, which fails, has acquired it once
// more when two of its servers were silent at first.
func TestMultiLockThatFailsLeavesTheLeaseOfARedLock(t *testing.T) {
	locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
		owner := ContextWithOwner(ctx)
		clients, links, locks := nodes(v)
		busy, red := clients[0].NewLock("z"), clients[0].NewRedLock(locks...)
		require.NoError(v, busy.Lock(ctx))
		require.NoError(v, red.LockLease(owner, 20*time.Second))
		began := time.Now()
		guarded, err := red.Guard(owner)
		require.NoError(v, err)
		got := make(chan bool)
		locktest.Silent(func() {
			go func() {
				ok, _ := clients[0].NewMultiLock(red, busy).TryLock(owner, 10*time.Second, 0)
				got <- ok
			}()
			time.Sleep(5 * time.Second)
		}, links[1:]...)
		assert.False(v, <-got)
		<-guarded.Done()
		assert.InDelta(v, 20*time.Second, time.Since(began), float64(time.Second))
		require.NoError(v, busy.Unlock(ctx))
	})
}

// The server of x, which the owner has with an explicit lease, falls silent before y is acquired. The MultiLock is not
// acquired with an x that is about to expire.
func TestMultiLockDoesNotRelyOnALeaseThatIsNearlyOver(t *testing.T) {
	locktest.InVirtualTime(t, 2, func(v *locktest.Virtual) {
		owner := ContextWithOwner(ctx)
		c, _ := v.Client(0)
		d, far := v.Client(1)
		busy, x := c.NewLock("y"), d.NewLock("x")
		require.NoError(v, busy.Lock(ctx))
		require.NoError(v, x.LockLease(owner, 2300*time.Millisecond))
		got := make(chan bool)
		go func() {
			ok, _ := c.NewMultiLock(x, busy).TryLock(owner, 2*time.Second, 0)
			got <- ok
		}()
		time.Sleep(1950 * time.Millisecond)
		locktest.Silent(func() {
			require.NoError(v, busy.Unlock(ctx))
			assert.False(v, <-got)
		}, far)
	})
}

// Two goroutines extend one hold of a MultiLock at the same time, and one of its servers is far away: it lasts as long as
// the longer lease.
func TestMultiLockIsExtendedTwiceAtOnce(t *testing.T) {
	locktest.InVirtualTime(t, 2, func(v *locktest.Virtual) {
		c, _ := v.Client(0)
		d, far := v.Client(1)
		h, _, err := c.NewMultiLock(c.NewLock("x"), d.NewLock("y")).TryAcquire(ctx, 0, 5*time.Second)
		require.NoError(v, err)
		far.Set(func(c *bubble.Conditions) { c.Latency = 50 * time.Millisecond })
		ended := make(chan error)
		for _, length := range []time.Duration{10 * time.Second, time.Minute} {
			go func() { ended <- h.Extend(ctx, length) }()
			time.Sleep(time.Millisecond)
		}
		assert.NoError(v, <-ended)
		assert.NoError(v, <-ended)
		time.Sleep(50 * time.Second)
		assert.NoError(v, h.Release(ctx))
	})
}
