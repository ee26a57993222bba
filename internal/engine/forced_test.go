//go:build go1.25

package engine

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/send"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// withHints gives an engine a channel for hints.
func withHints(c *Config) { c.Channel = "hints:" + c.ID }

// subscriptions returns how many times r was asked for the channel of hints of "client".
func subscriptions(r *fakeredis.Redis) int { return r.PubSub.Count("subscribe hints:client") }

// A hold that lasts for a moment costs no subscription, however many there are one after the other; any number of holds
// that last longer cost one, until none of them is left. Close ends it.
func TestOldHoldsShareOneSubscriptionToHints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := fakeredis.New()
		e := joinBubbleEngine(t, r, "client", withHints)
		for range 20 {
			e.lock(1)
			time.Sleep(900 * time.Millisecond)
			e.unlock(1)
		}
		assert.Zero(t, r.PubSub.Dials(), "connections for short holds")

		for round := 1; round <= 2; round++ {
			for name := range 500 {
				e.take(newFakeLock(r, string(rune('0'+name))), 1)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			assert.Equal(t, round, subscriptions(r), "subscriptions")
			assert.Equal(t, round, r.PubSub.Dials(), "connections")
			for name := range 500 {
				e.giveBack(newFakeLock(r, string(rune('0'+name))), 1)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			assert.Equal(t, round, r.PubSub.Count("unsubscribe hints:client"), "the subscription ends with the last hold")
		}

		e.lock(1)
		time.Sleep(time.Minute)
		assert.Equal(t, 3, subscriptions(r))
		e.unlock(1)
	})
}

// A refusal is remembered: it is logged once, at debug level, and the channel is not asked for again. Channels on which
// releases are announced are not affected, nor is the warning about them.
func TestRefusedHintsAreNotAskedForAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		r := fakeredis.New()
		r.PubSub.Refuse = func(channel string) error {
			if strings.HasPrefix(channel, "hints:") || channel == "bad" {
				return answerError("NOPERM No permissions to access a channel")
			}
			return nil
		}
		log := slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
		e := joinBubbleEngine(t, r, "client", withHints, withLogger(log), func(c *Config) { c.Events = warned{logged: log} })
		for range 3 {
			e.lock(1)
			time.Sleep(time.Minute)
			e.unlock(1)
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		assert.Equal(t, 1, subscriptions(r), "subscriptions")
		assert.Equal(t, 1, strings.Count(logged.String(), "level=DEBUG"), logged.String())
		assert.NotContains(t, logged.String(), "level=WARN")

		good, bad := e.Hub().Join("good"), e.Hub().Join("bad")
		synctest.Wait()
		assert.True(t, good.Confirmed(), "other channels")
		assert.True(t, bad.Refused())
		assert.Equal(t, 1, strings.Count(logged.String(), "level=WARN"), "the first other channel that is refused")
		good.Leave()
		bad.Leave()
	})
}

// warned logs refused channels.
type warned struct {
	Events
	logged *slog.Logger
}

func (w warned) SubscriptionRefused(channel string, err error) {
	w.logged.Warn("refused", "channel", channel, "error", err)
}

// A hint has the watchdog check the records of the lock that it names, and nothing else: a hint for another lock, and
// any other message, cost no request, and no message ends a hold that Redis has.
func TestHintChecksTheLockThatItNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := fakeredis.New()
		e := joinBubbleEngine(t, r, "client", withHints)
		e.lock(1)
		guarded := e.guarded(1)
		time.Sleep(5 * time.Second)
		for _, text := range []string{"check y", "check ", "check", "", "x", "check x ", "0", strings.Repeat("check x", 1000)} {
			e.hints.Heard(text)
			synctest.Wait()
			assert.Zero(t, r.Count("renew"), "renewals after %.20q", text)
			assert.Zero(t, e.Probe().Stats().Names-1, "names after %.20q", text)
		}
		e.hints.Heard("check x")
		synctest.Wait()
		assert.Equal(t, 1, r.Count("renew"), "renewals")
		for range 1000 {
			e.hints.Heard("check x")
			time.Sleep(2 * time.Millisecond)
		}
		synctest.Wait()
		assert.LessOrEqual(t, r.Count("renew"), 4, "renewals in two seconds")
		assert.NoError(t, guarded.Err())

		time.Sleep(2 * time.Second)
		r.Set(func() { delete(r.Records, "x") })
		began := time.Now()
		e.hints.Heard("check x")
		<-guarded.Done()
		assert.Less(t, time.Since(began), time.Second)
		assert.ErrorIs(t, context.Cause(guarded), ErrLockLost)
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost)
	})
}

// A hold that another Client has released by force says so. A hint that was about something else does not make other
// losses look like that: it came too long before, or before the hold began, or there was none.
func TestForcedReleaseOfAnotherClientIsNamed(t *testing.T) {
	t.Parallel()
	const text = "the hold is gone from Redis: it was released by force"
	for name, c := range map[string]struct {
		lease time.Duration // 0: renewed
		lose  func(e *bubbleEngine, gone func())
		named bool
	}{
		"renewed":        {0, func(e *bubbleEngine, gone func()) { gone(); e.hints.Heard("check x") }, true},
		"explicit lease": {time.Hour, func(e *bubbleEngine, gone func()) { gone(); e.hints.Heard("check x") }, true},
		"a late check": {0, func(e *bubbleEngine, gone func()) {
			e.hints.Heard("check x")
			time.Sleep(forcedLately - time.Second)
			gone()
			assert.ErrorContains(e.t, e.unlockErr(1), text)
		}, true},
		"released at once": {time.Hour, func(e *bubbleEngine, gone func()) {
			gone()
			e.hints.Heard("check x")
			assert.ErrorContains(e.t, e.unlockErr(1), text)
		}, true},
		"no hint": {0, func(_ *bubbleEngine, gone func()) { gone() }, false},
		"long after a hint": {0, func(e *bubbleEngine, gone func()) {
			e.hints.Heard("check x")
			time.Sleep(forcedLately + time.Second)
			gone()
		}, false},
		"a hold that began after a hint": {0, func(e *bubbleEngine, gone func()) {
			e.hints.Heard("check x")
			time.Sleep(time.Second)
			e.unlock(1)
			e.lock(1)
			gone()
			assert.NotContains(e.t, e.unlockErr(1).Error(), "force")
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r, losses := fakeredis.New(), &causes{}
				e := joinBubbleEngine(t, r, "client", withHints, func(c *Config) { c.Events = losses })
				known := e.retain("x") // as by somebody who waits for the lock: the engine does not forget the name
				defer known.release()
				e.lock(1, Request{Lease: c.lease})
				time.Sleep(5 * time.Second)
				c.lose(e, func() { r.Set(func() { delete(r.Records, "x") }) })
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Len(t, losses.all, 1)
				assert.ErrorIs(t, losses.all[0], errGone)
				assert.Equal(t, c.named, strings.HasSuffix(losses.all[0].Error(), text), "%v", losses.all[0])
				assert.Equal(t, []bool{true}, losses.logged)
			})
		})
	}
}

// causes has the losses of holds.
type causes struct {
	Events
	mu     sync.Mutex // guards the fields below
	all    []error
	logged []bool
}

func (c *causes) Report(_ context.Context, v Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all, c.logged = append(c.all, v.Err), append(c.logged, v.Logged)
}

// A hint has all records checked that this Client has of the lock, not only the first of them.
func TestHintChecksAllRecordsOfTheLock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := fakeredis.New()
		e := joinBubbleEngine(t, r, "client", withHints)
		var guards []context.Context
		for _, half := range []string{"", "one", "two"} {
			kind := newFakeLock(r, "x")
			kind.traits.ID.Half, kind.key = half, "x"+half
			e.take(kind, 1)
			guarded, err := e.Guard(ctx, kind, 1)
			require.NoError(t, err)
			guards = append(guards, guarded)
		}
		time.Sleep(5 * time.Second)
		r.Set(func() { clear(r.Records) })
		e.hints.Heard("check x")
		time.Sleep(time.Second)
		for i, guarded := range guards {
			assert.ErrorIs(t, context.Cause(guarded), ErrLockLost, "hold %d", i)
		}
	})
}

// A forced release ends the holds of its own Client that it has deleted, whenever they began, and no other one. They
// have explicit leases, so that no renewal finds out.
func TestForceEndsTheHoldsOfItsOwnClientThatItHasDeleted(t *testing.T) {
	t.Parallel()
	forces := func(f fakeredis.Fault) func(verb string) fakeredis.Fault {
		return func(verb string) (none fakeredis.Fault) {
			if verb == "force" {
				return f
			}
			return none
		}
	}
	late := forces(fakeredis.Fault{Late: 20 * time.Millisecond})
	force := func(e *bubbleEngine, ctx context.Context) (freed bool, err error) {
		return e.Force(ctx, newFakeLock(e.redis, "x"))
	}
	then := func(t *testing.T, e *bubbleEngine, f func()) (bool, error) { // force, and f a millisecond later
		done := begin(func() {
			time.Sleep(time.Millisecond)
			f()
		})
		defer func() { <-done }()
		return force(e, ctx)
	}
	passes := func(e *bubbleEngine) func() {
		return func() {
			e.unlock(1)
			ok, err := e.lockWith(ctx, 2, Request{Lease: time.Hour})
			assert.NoError(e.t, err)
			assert.True(e.t, ok)
		}
	}
	for name, test := range map[string]struct {
		fault func(verb string) fakeredis.Fault
		force func(t *testing.T, e *bubbleEngine) (bool, error)
		owner Owner // of the hold to look at, afterwards
		freed bool
		fails bool
		keeps bool // the record was not deleted
	}{
		"held before": {
			force: func(t *testing.T, e *bubbleEngine) (bool, error) { return force(e, ctx) },
			owner: 1, freed: true,
		},
		"acquired before the request runs": {
			fault: late,
			force: func(t *testing.T, e *bubbleEngine) (bool, error) { return then(t, e, passes(e)) },
			owner: 2, freed: true,
		},
		"acquired before the request runs, and answered after it": {
			fault: func(verb string) fakeredis.Fault {
				if verb == "acquire" {
					return fakeredis.Fault{Answer: 100 * time.Millisecond}
				}
				return late(verb)
			},
			force: func(t *testing.T, e *bubbleEngine) (bool, error) { return then(t, e, passes(e)) },
			owner: 2, freed: true,
		},
		"acquired after the request has run": {
			fault: forces(fakeredis.Fault{Answer: 20 * time.Millisecond}),
			force: func(t *testing.T, e *bubbleEngine) (bool, error) {
				return then(t, e, func() {
					_ = e.unlockErr(1)
					e.lock(2, Request{Lease: time.Hour})
				})
			},
			owner: 2, freed: true, keeps: true,
		},
		"the answer is lost": {
			fault: forces(fakeredis.Fault{Err: io.EOF}),
			force: func(t *testing.T, e *bubbleEngine) (bool, error) { return force(e, ctx) },
			owner: 1, fails: true,
		},
		"a later request is refused": { // as of a semaphore with very many permits
			force: func(t *testing.T, e *bubbleEngine) (bool, error) {
				asked := 0
				e.redis.Set(func() {
					e.redis.More = true
					e.redis.Fault = func(verb string) (f fakeredis.Fault) {
						if verb == "force" {
							if asked++; asked == 2 {
								f.Block = answerError("OOM command not allowed when used memory > 'maxmemory'")
							}
						}
						return f
					}
				})
				return force(e, ctx)
			},
			owner: 1, freed: true, fails: true,
		},
		"the first check fails": {
			force: func(t *testing.T, e *bubbleEngine) (bool, error) {
				checks := 0
				e.fail(func(verb string) (f fakeredis.Fault) {
					if verb == "renew" {
						if checks++; checks == 1 {
							f.Block = io.EOF
						}
					}
					return f
				})
				return force(e, ctx)
			},
			owner: 1, freed: true,
		},
		"the request is refused": {
			fault: forces(fakeredis.Fault{Block: answerError("NOPERM this user has no permissions")}),
			force: func(t *testing.T, e *bubbleEngine) (bool, error) { return force(e, ctx) },
			owner: 1, fails: true, keeps: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				e.HandoffWindow = 0
				e.lock(1, Request{Lease: time.Hour})
				e.redis.Set(func() { e.redis.Fault = test.fault })
				freed, err := test.force(t, e)
				assert.Equal(t, test.freed, freed)
				assert.Equal(t, test.fails, err != nil, "%v", err)
				time.Sleep(2 * time.Second)
				assert.Equal(t, test.keeps, e.redis.Holder("x") != "", "the record is there")
				assert.Equal(t, test.keeps, holdCountOf(e.Engine, newFakeLock(e.redis, "x"), test.owner) > 0, "the owner has it")
				assert.Equal(t, test.keeps, e.unlockErr(test.owner) == nil, "the Unlock succeeds")
			})
		})
	}
}

// A forced release is sent by itself: in a batch, it would be given up when other requests are sent again.
func TestForceHasTimeForAnAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		batching := joinSending(t, e.redis, "batching", send.Config{Transport: e.redis, Batch: true})
		batching.Probe().Sender().BatchAll()
		batching.lock(1)
		e.faults(fakeredis.Fault{Late: 2 * send.ResendTime}, "force")
		freed, err := batching.Force(ctx, newFakeLock(e.redis, "x"))
		assert.NoError(t, err)
		assert.True(t, freed)
	})
}

// The same for a record that was handed off, during the request, to an owner that draws a token with it.
func TestForceEndsAHoldThatHasAdoptedTheRecord(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newFencedFake(e.redis, "x")
		for o := Owner(1); o <= 2; o++ {
			go func() {
				e.take(l, o)
			}()
			synctest.Wait()
		}
		e.faults(fakeredis.Fault{Late: 20 * time.Millisecond}, "force")
		go func() {
			time.Sleep(time.Millisecond)
			e.giveBack(l, 1)
		}()
		freed, err := e.Force(ctx, l)
		require.NoError(t, err)
		assert.True(t, freed)
		assert.Zero(t, e.redis.Count("release"), "the lock was handed off")
		assert.Zero(t, holdCountOf(e.Engine, l, 2))
		assert.ErrorIs(t, e.Release(ctx, l, 2), ErrLockLost)
	})
}

// The same for a hold that was attached, by a request that is answered after the forced release.
func TestForceEndsAHoldThatIsBeingAttached(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newFakeLock(e.redis, "x")
		e.lock(1)
		detached, _, err := e.Detach(ctx, l, 1, time.Hour)
		require.NoError(t, err)
		e.faults(fakeredis.Fault{Answer: 20 * time.Millisecond}, "rename")
		attached := later(func() error { return e.Attach(ctx, l, 2, detached) })
		time.Sleep(time.Millisecond)
		freed, err := e.Force(ctx, l)
		require.NoError(t, err)
		require.True(t, freed)
		require.NoError(t, <-attached)
		time.Sleep(time.Second)
		assert.ErrorIs(t, e.unlockErr(2), ErrLockLost)
		assert.Equal(t, 1, e.redis.Count("renew"), "the record is checked at once")
	})
}

// A hint that comes while the request of a hold is under way is not too early for it: the hold is checked when it begins.
func TestHintReachesAHoldThatBeginsLater(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.faults(fakeredis.Fault{Answer: 100 * time.Millisecond}, "acquire")
		acquired := begin(func() {
			e.lock(1, Request{Lease: time.Hour})
		})
		time.Sleep(50 * time.Millisecond)
		e.deleteRecord()
		e.hints.Heard("check x")
		<-acquired
		time.Sleep(time.Second)
		assert.Zero(t, holdCountOf(e.Engine, newFakeLock(e.redis, "x"), 1))
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost)
	})
}
