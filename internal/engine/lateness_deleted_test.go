//go:build go1.25

package engine

// The record of a hold that has ended, or never began, and requests of it that run late: see lateness_test.go.
//
// Rule: it is deleted as soon as Redis can be reached, or expires with the longest lease that a request may have given it.

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/late"
)

// partition loses the answer to the first request with this verb, which runs, and then all requests for d.
func partition(r *fakeredis.Redis, verb string, d time.Duration) {
	var end time.Time
	r.Set(func() {
		r.Fault = func(v string) (f fakeredis.Fault) {
			switch {
			case end.IsZero() && v == verb:
				end = time.Now().Add(d)
				f.Err = io.EOF
			case time.Now().Before(end):
				f.Block = io.EOF
			}
			return f
		}
	})
}

// A request for a longer lease has run, its answer is lost in an outage that is longer than the old lease, and the owner
// unlocks, or the lease expires in the outage: the record is deleted after the outage.
func TestRecordIsDeletedAfterAnUnansweredRequest(t *testing.T) {
	for name, c := range map[string]struct {
		verb    string
		request func(ctx context.Context, e *bubbleEngine, l *fakeLock) error
		unlocks bool
	}{
		"Extend and Unlock": {"renew", extendForAnHour, true},
		"Extend":            {"renew", extendForAnHour, false},
		"re-entry":          {"acquire", reenterForAnHour, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				l := newFakeLock(e.redis, "x")
				e.take(l, 1, leased(10*time.Second))
				partition(e.redis, c.verb, 30*time.Second)
				short, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				require.Error(t, c.request(short, e, l))
				if c.unlocks {
					_ = e.Release(ctx, l, 1)
				}
				time.Sleep(2 * time.Minute)
				e.assertFree("the record long after the outage")
			})
		})
	}
}

// The same for an attempt of a caller that gives up. If there are very many, the record of a lease that is no longer than
// a watchdog timeout is left to its lease, so that an outage does not leave a goroutine for every caller.
func TestRecordIsDeletedAfterAnUnansweredAttempt(t *testing.T) {
	for name, of := range map[string]struct {
		lease  time.Duration
		others int64
		ends   bool
	}{
		"long": {time.Hour, mostUndone, false}, "short": {0, 0, false}, "one of many short ones": {0, mostUndone, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				e.undoing.Store(of.others)
				partition(e.redis, "acquire", 30*time.Second)
				short, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				err := e.misses(short, 1, leased(of.lease))
				require.Error(t, err)
				time.Sleep(15 * time.Second)
				synctest.Wait()
				assert.Equal(t, of.ends, e.atWork() == 0, "whether the rollback has ended")
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				e.assertFree("the record long after the outage")
				assert.Zero(t, e.atWork())
			})
		})
	}
}

// No answer is lost: an explicit lease, a re-entry without one, and an outage at Unlock.
func TestRecordIsDeletedAfterALongLeaseThatIsRenewed(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newFakeLock(e.redis, "x")
		for _, lease := range []time.Duration{time.Hour, 0} {
			e.take(l, 1, leased(lease))
		}
		e.outage(time.Minute)
		_ = e.Release(ctx, l, 1)
		_ = e.Release(ctx, l, 1)
		time.Sleep(3 * time.Minute)
		e.assertFree("the record long after the outage")
	})
}

// A late try of the attempt gives the record its lease again, after a part of it has passed.
func TestRecordIsDeletedAfterALateTry(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newFakeLock(e.redis, "x")
		runsLate(e.redis, "acquire", 1, fakeredis.Fault{Ghost: 3 * time.Second})
		e.take(l, 1, Request{Wait: forever, Lease: 5 * time.Second})
		require.NoError(t, e.Extend(ctx, l, 1, 5*time.Second))
		time.Sleep(6 * time.Second)
		assert.Zero(t, holdCountOf(e.Engine, l, 1))
		e.assertFree("the record after its lease")
	})
}

// The explicit lease ends while a request that makes it longer is under way: Redis has run the request, and its answer
// comes later, or never. The owner gets the loss, needs no Unlock, and the record is deleted.
func TestRecordIsDeletedIfItsLeaseEndsDuringARequest(t *testing.T) {
	const answers = 500 * time.Millisecond
	for name, c := range map[string]struct {
		verb    string
		fault   fakeredis.Fault
		request func(ctx context.Context, e *bubbleEngine, l *fakeLock) error
	}{
		"Extend":                     {"renew", fakeredis.Fault{Answer: answers}, extendForAnHour},
		"re-entry":                   {"acquire", fakeredis.Fault{Answer: answers}, reenterForAnHour},
		"re-entry without an answer": {"acquire", fakeredis.Fault{Answer: 7 * time.Second, Err: io.EOF}, reenterForAnHour},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				l := newFakeLock(e.redis, "x")
				e.take(l, 1, leased(5*time.Second))
				time.Sleep(4700 * time.Millisecond)
				runsLate(e.redis, c.verb, 1, c.fault)
				ctx, cancel := context.WithTimeout(ctx, 600*time.Millisecond)
				defer cancel()
				require.Error(t, c.request(ctx, e, l))
				time.Sleep(20 * time.Second)
				e.assertFree("the record that nobody holds")
			})
		})
	}
}

func extendForAnHour(ctx context.Context, e *bubbleEngine, l *fakeLock) error {
	return e.Extend(ctx, l, 1, time.Hour)
}

func reenterForAnHour(ctx context.Context, e *bubbleEngine, l *fakeLock) error {
	_, err := e.acquire(ctx, l, 1, leased(time.Hour))
	return err
}

// A lineLock is a fakeLock whose waiters have places in the line, as far as the engine knows.
type lineLock struct{ *fakeLock }

func (l lineLock) Grants(contract.Attempt) string { return "grants:" + l.key }

// leavesPlace has a caller that wants a lease of an hour give up while another one waits behind it, with the request next. The last attempt of the first one has this fault, and is granted. leavesPlace returns when the
// second one has the lock, which is 0.2 seconds after the first one has left.
func leavesPlace(t *testing.T, e *bubbleEngine, fault fakeredis.Fault, next Request) lineLock {
	r := e.redis
	other, l := joinBubbleEngine(t, r, "other"), lineLock{newFakeLock(r, "x")}
	other.lock(99)
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	gaveUp, got := make(chan error), make(chan error)
	go func() {
		_, err := e.acquire(short, l, 1, leased(time.Hour))
		gaveUp <- err
	}()
	synctest.Wait()
	go func() {
		_, err := e.acquire(ctx, l, 2, next)
		got <- err
	}()
	time.Sleep(4700 * time.Millisecond)
	seen := 0
	r.Set(func() {
		r.Fault = func(verb string) (f fakeredis.Fault) {
			if verb != "acquire" {
				return f
			}
			if seen++; seen == 1 {
				return fault
			}
			return fakeredis.Fault{Answer: 200 * time.Millisecond}
		}
	})
	other.unlock(99)
	r.PubSub.Publish("grants:x")
	require.Error(t, <-gaveUp)
	require.NoError(t, <-got)
	return l
}

// A caller leaves the line, and is granted the lock for an hour when it has left. The record does not outlive the shorter
// lease of the next one.
func TestRecordExpiresWithTheLeaseOfTheCallerBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		leavesPlace(t, e, fakeredis.Fault{Answer: 400 * time.Millisecond}, leased(10*time.Second))
		e.redis.Set(func() { assert.LessOrEqual(t, time.Until(e.redis.Record("x").Expires), 10*time.Second) })
		time.Sleep(11 * time.Second)
	})
}

// The attempt of the first caller runs after the second one has the lock, which unlocks in an outage.
func TestRecordIsDeletedAfterALateTryOfTheCallerBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		l := leavesPlace(t, e, fakeredis.Fault{Late: 700 * time.Millisecond}, Request{Wait: forever})
		time.Sleep(time.Second)
		e.outage(time.Minute)
		assert.Error(t, e.Release(ctx, l, 2))
		time.Sleep(3 * time.Minute)
		e.assertFree("the record long after the outage")
	})
}

// The second one waits when the attempt of the first one runs, and is granted: the second one has the lock
// at once.
func TestLateGrantToTheCallerBeforeWakesTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := fakeredis.New()
		e := joinBubbleEngine(t, r, "client", func(c *Config) { c.PollInterval = time.Minute })
		other, l, start := joinBubbleEngine(t, r, "other"), lineLock{newFakeLock(r, "x")}, time.Now()
		other.lock(99)
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		gaveUp, got := make(chan error), make(chan error)
		for o, c := range map[Owner]struct {
			context.Context
			done chan error
		}{1: {short, gaveUp}, 2: {ctx, got}} {
			go func() {
				time.Sleep(time.Duration(o) * time.Millisecond)
				_, err := e.acquire(c, l, o, Request{Wait: forever})
				c.done <- err
			}()
		}
		time.Sleep(4700 * time.Millisecond)
		runsLate(r, "acquire", 1, fakeredis.Fault{Late: 2 * time.Second})
		r.PubSub.Publish("grants:x")
		require.Error(t, <-gaveUp)
		time.Sleep(time.Second)
		r.Set(func() { delete(r.Records, "x") }) // no waiter is told
		require.NoError(t, <-got)
		assert.Equal(t, 6700*time.Millisecond, time.Since(start))
		e.giveBack(l, 2)
		_ = other.unlockErr(99)
	})
}

// MaxHold ends while a re-entry is under way, which asks for the rest of it: Redis has run the request late, so that the
// record would outlive MaxHold, and the answer is lost. The record is deleted, although the owner has yet to call Unlock.
func TestRecordIsDeletedIfMaxHoldEndsDuringAReentry(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		const most = 10 * time.Second
		l, end := newLimitedLock(e.redis, contract.Limits{Max: most}), time.Now().Add(most)
		e.take(l, 1)
		time.Sleep(7 * time.Second)
		first := fakeredis.Fault{Late: 2500 * time.Millisecond, Answer: 700 * time.Millisecond, Err: io.EOF}
		e.fail(func(string) (f fakeredis.Fault) {
			f, first = first, fakeredis.Fault{}
			if f == first && time.Now().Before(end.Add(500*time.Millisecond)) {
				f.Block = io.EOF
			}
			return f
		})
		ctx, cancel := context.WithTimeout(ctx, 3500*time.Millisecond)
		defer cancel()
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever})
		require.Error(t, err)
		require.False(t, ok)
		time.Sleep(time.Until(end.Add(time.Second)))
		e.assertFree("the record after MaxHold")
		assert.ErrorIs(t, e.Release(context.Background(), l, 1), ErrMaxHold)
	})
}

// The last renewal before the end of MaxHold asks for the rest of it, and runs late: the record is deleted in time.
func TestRecordIsDeletedAtMaxHoldAfterASlowRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		const most = 35 * time.Second
		l, begin := newLimitedLock(e.redis, contract.Limits{Max: most}), time.Now()
		e.take(l, 1)
		e.fail(func(string) (f fakeredis.Fault) {
			if time.Since(begin) < 15*time.Second {
				f.Late = 3 * time.Second
			}
			return f
		})
		time.Sleep(time.Until(begin.Add(most - time.Second)))
		assert.Equal(t, 1, holdCountOf(e.Engine, l, 1), "the hold before the end of MaxHold")
		time.Sleep(1300 * time.Millisecond)
		e.assertFree("the record after MaxHold")
		assert.ErrorIs(t, e.Release(ctx, l, 1), ErrMaxHold)
	})
}

// The renewals of a hold run until it is lost, and none of their answers comes. The owner needs no Unlock, because Lock has
// told it of the loss, and the record is deleted.
func TestRecordIsDeletedIfLockReturnsTheLoss(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		e.faults(fakeredis.Fault{Err: io.EOF}, "renew")
		time.Sleep(e.WatchdogTimeout)
		e.assertHeld("the renewals have run")
		_, err := e.lockWith(ctx, 1, Request{Wait: forever})
		require.ErrorIs(t, err, ErrLockLost)
		synctest.Wait()
		e.assertFree("the record that nobody holds")
		e.lock(1)
		e.unlock(1)
	})
}

// An Unlock waits in vain for the goroutine that re-enters the lock, and ends the hold. The re-entry has run, and its answer
// comes neither then nor until the record of the first lease would have expired: the record is deleted all the same, also
// if the re-entry gives up while the last try to delete the record of the first lease is under way.
func TestRecordIsDeletedAfterAReentryBesideItsUnlock(t *testing.T) {
	for name, c := range map[string]struct{ answers, givesUp time.Duration }{
		"after the deletion":  {12 * time.Second, 20 * time.Second},
		"during the deletion": {8500 * time.Millisecond, 9500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newBubbleEngine(t)
				l, begin := newFakeLock(e.redis, "x"), time.Now()
				e.take(l, 1, leased(8*time.Second))
				first := fakeredis.Fault{Answer: c.answers, Err: io.EOF}
				e.fail(func(verb string) (f fakeredis.Fault) {
					if verb == "acquire" {
						f, first = first, fakeredis.Fault{Block: answerError("LOADING Redis is loading the dataset in memory")}
					} else if time.Since(begin) < 40*time.Second {
						f.Block = io.EOF
					}
					return f
				})
				ctx, cancel := context.WithTimeout(ctx, c.givesUp)
				defer cancel()
				again := later(func() error { return reenterForAnHour(ctx, e, l) })
				synctest.Wait()
				require.ErrorContains(t, e.Release(context.Background(), l, 1), "not confirmed")
				require.ErrorIs(t, <-again, context.DeadlineExceeded)
				e.assertHeld()
				time.Sleep(2 * time.Minute)
				e.assertFree("the record that nobody holds")
			})
		})
	}
}

// An Unlock in an outage deletes the record in the background until its lease is over, and not for as long as the outage
// lasts: there may be many of them. The requests for MinHold, whose outcome is not known, may have set a longer lease.
func TestDeletionInTheBackgroundEndsWithTheLease(t *testing.T) {
	for name, limits := range map[string]contract.Limits{"no limits": {}, "MinHold": {MinHold: 2 * time.Minute}} {
		for _, length := range []time.Duration{0, 40 * time.Second} {
			t.Run(name+", lease "+length.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := newBubbleEngine(t)
					l := newLimitedLock(e.redis, limits)
					e.take(l, 1, leased(length))
					time.Sleep(e.WatchdogTimeout / 2) // a lease that is renewed has been renewed
					e.faults(fakeredis.Fault{Block: io.EOF})
					require.ErrorContains(t, e.Release(ctx, l, 1), "not confirmed")
					time.Sleep(2*limits.MinHold + 2*late.Life + 2*UnlockTime)
					assert.Zero(t, e.atWork(), "goroutines in the outage")
				})
			})
		}
	}
}
