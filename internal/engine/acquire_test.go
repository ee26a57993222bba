//go:build go1.25

package engine

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/send"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A waiter that has had an answer retries for one watchdog timeout. A caller without any answer soon gets an error.
func TestEngineOutages(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		down := fakeredis.Fault{Block: io.EOF}
		e.faults(down)
		start := time.Now()
		err := e.misses(ctx, 1, Request{Wait: forever})
		assert.ErrorIs(t, err, io.EOF)
		assert.LessOrEqual(t, time.Since(start), 2*time.Second)
		tries := e.redis.Count("acquire")
		assert.GreaterOrEqual(t, tries, 4, "tries")
		assert.LessOrEqual(t, tries, 12, "tries")
		time.Sleep(time.Minute) // the rollback is given up too

		e.heal()
		other := e.another()
		other.lock(1)
		got := e.asking(2)
		time.Sleep(5 * time.Second)
		e.faults(down)
		time.Sleep(15 * time.Second)
		e.heal()
		time.Sleep(5 * time.Second)
		other.unlock(1)
		assert.NoError(t, <-got, "a waiter did not ride out an outage of 15s")
		e.unlock(2)

		other.lock(1)
		go func() {
			_, err := e.lockWith(ctx, 2, Request{Wait: forever})
			got <- err
		}()
		time.Sleep(5 * time.Second)
		start = time.Now()
		e.faults(down)
		err = <-got
		assert.ErrorIs(t, err, io.EOF, "a waiter without any Redis: %v after %v", err, time.Since(start))
		assert.LessOrEqual(
			t,
			time.Since(start),
			2*e.WatchdogTimeout,
			"a waiter without any Redis: %v after %v",
			err,
			time.Since(start),
		)
		e.heal()
	})
}

// If Redis cannot be reached, all waiters of a lock get an error at about the same time, each from its own request.
func TestEngineEveryCallerLearnsOfADeadServerAtOnce(t *testing.T) {
	for name, fault := range map[string]fakeredis.Fault{"refused": {Block: io.EOF},
		"hangs": {Block: io.EOF, Late: 5 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				e.faults(fault)
				var wg sync.WaitGroup
				start := time.Now()
				for o := range Owner(100) {
					wg.Go(func() {
						err := e.misses(ctx, o+1, Request{Wait: forever})
						assert.True(t, errors.Is(err, io.EOF) || errors.Is(err, send.ErrSilent), "%v", err)
					})
				}
				wg.Wait()
				took := time.Since(start)
				assert.LessOrEqual(t, took, 11*time.Second, "the last one was told after %v", took)
				e.heal()
				e.lock(1)
				e.unlock(1)
			})
		})
	}
}

// A refusingLock is a fakeLock that answers attempts with an error of its own.
type refusingLock struct {
	*fakeLock
	err error
}

func (l refusingLock) ReadReply(contract.Attempt, send.Reply) (contract.Outcome, error) {
	return contract.Outcome{}, l.err
}

// No caller gets the error of another caller's request. An answer that refuses one caller tells nothing about the
// waiters behind it.
func TestEngineEveryCallerGetsItsOwnAnswer(t *testing.T) {
	for _, refused := range []error{errors.New("an upgrade"), send.ErrNotALock, send.Invalid("lease 1ms"), send.ErrReply,
		send.ErrNotSynced} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			e.lock(1)
			results := later(func() error {
				b := refusingLock{newFakeLock(e.redis, "x"), refused}
				_, err := e.acquire(ctx, b, 2, leased(time.Minute))
				return err
			})
			synctest.Wait()
			var behind sync.WaitGroup
			for o := range Owner(10) {
				r := Request{Wait: forever}
				if o%2 == 0 {
					r.Lease = time.Minute
				}
				behind.Go(func() {
					ok, err := e.lockWith(ctx, 3+o, r)
					if !assert.NoError(t, err, "%v is behind a caller who was told %v", 3+o, refused) ||
						!assert.True(t, ok, "%v is behind a caller who was told %v", 3+o, refused) {
						return
					}
					time.Sleep(time.Millisecond)
					e.unlock(3 + o)
				})
			}
			synctest.Wait()
			e.unlock(1)
			behind.Wait()
			err := <-results
			assert.ErrorIs(t, err, refused, "the caller in front")
		})
	}
}

// Redis does not answer a TryLock that does not wait, but answers the waiters behind it. These acquire the lock in the
// order in which they came.
func TestEngineWaitersBehindAnUnansweredTrySendTheirOwn(t *testing.T) {
	for _, lease := range []time.Duration{0, time.Minute} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			other := e.another()
			e.redis.Latency = time.Millisecond
			e.faults(fakeredis.Fault{Block: io.EOF})
			tried := later(func() error {
				_, err := e.lockWith(ctx, 1, Request{Wait: 0})
				e.heal()
				return err
			})
			synctest.Wait()
			var behind sync.WaitGroup
			var order []Owner
			for o := Owner(2); o < 12; o++ {
				behind.Go(func() {
					ok, err := e.lockWith(ctx, o, leased(lease))
					if !assert.NoError(t, err, "owner %v", o) || !assert.True(t, ok, "owner %v", o) {
						return
					}
					order = append(order, o)
					time.Sleep(time.Second)
					e.unlock(o)
				})
				time.Sleep(time.Nanosecond) // the order is that of the times
			}
			// Another client holds the lock when the waiters send their attempts.
			e.redis.Set(func() {
				e.redis.Records["x"] = &fakeredis.Record{Field: "other:1:1", Levels: 1, Expires: time.Now().Add(time.Minute)}
			})
			err := <-tried
			assert.ErrorIs(t, err, io.EOF, "the TryLock")
			time.Sleep(time.Second)
			answer, err := e.redis.Run(
				ctx,
				newFakeLock(e.redis, "x").Release(contract.Release{Field: "other:1:1"}),
				false,
			)
			require.NoError(t, err)
			require.Contains(t, answer, "1 ")
			behind.Wait()
			assert.True(t, slices.IsSorted(order), "served in the order %v", order)
			assert.Len(t, order, 10, "served in the order %v", order)
			other.lock(1)
			other.unlock(1)
		})
	}
}

// At least half of a lease is left when Lock returns, of a fresh hold and of a re-entry, and whether the lease is
// explicit or not: if an answer leaves less, Lock asks again. A renewal of the watchdog may take as long as half of the
// lease.
func TestEngineLateAnswerLeavesHalfOfTheLease(t *testing.T) {
	const lease = time.Second
	for _, late := range []int{520, 700, 860, 884} {
		for _, explicit := range []time.Duration{0, lease} {
			for levels := range 2 {
				t.Run(fmt.Sprint(late, explicit, levels), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						e := joinBubbleEngine(t, fakeredis.New(), "client", withWatchdogTimeout(lease))
						for range levels {
							e.lock(1, leased(lease))
						}
						asked := 0
						e.redis.Set(func() {
							e.redis.Latency = 10 * time.Millisecond
							e.redis.Fault = func(verb string) fakeredis.Fault {
								if verb == "renew" {
									return fakeredis.Fault{Answer: lease / 3}
								}
								if asked++; asked == 1 {
									return fakeredis.Fault{Answer: time.Duration(late) * time.Millisecond}
								}
								return fakeredis.Fault{}
							}
						})
						e.lock(1, leased(explicit))
						guarded := e.guarded(1)
						time.Sleep(lease/2 - 10*time.Millisecond)
						assert.NoError(t, guarded.Err(), "Lock returned a hold of which hardly anything was left")
						assert.Equal(t, 2, asked, "requests")
						e.heal()
						for range levels + 1 {
							_ = e.unlockErr(1) // the explicit leases may have expired
						}
						e.assertFree("the lock is still held")
					})
				})
			}
		}
	}
}

// Redis always takes long to answer. Lock accepts an explicit lease of which a part is left after two attempts. If
// hardly anything is left, or the watchdog could not renew the hold in time, Lock returns an error, and nothing is left
// in Redis.
func TestEngineSlowRedisEndsTheCall(t *testing.T) {
	const lease = time.Second
	for _, test := range []struct {
		takes, explicit time.Duration
		asked           int // 0: the call fails
	}{
		{400 * time.Millisecond, lease, 1},
		{400 * time.Millisecond, 0, 1},
		{600 * time.Millisecond, lease, 2},
		{600 * time.Millisecond, 0, 0},
		{860 * time.Millisecond, lease, 0},
		{860 * time.Millisecond, 0, 0},
	} {
		t.Run(fmt.Sprint(test.takes, test.explicit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := joinBubbleEngine(t, fakeredis.New(), "client", withWatchdogTimeout(lease))
				e.redis.Latency = test.takes / 2
				ok, err := e.lockWith(ctx, 1, leased(test.explicit))
				if test.asked == 0 {
					assert.ErrorIs(t, err, ErrLate)
					assert.ErrorIs(t, err, ErrLockLost)
					assert.False(t, ok)
					assert.Equal(t, MostAsked, e.redis.Count("acquire"), "requests")
					time.Sleep(2 * test.takes)
					e.assertFree("what was given up is rolled back")
					return
				}
				require.NoError(t, err)
				assert.True(t, ok)
				assert.Equal(t, test.asked, e.redis.Count("acquire"), "requests")
				guarded := e.guarded(1)
				time.Sleep(lease / 4)
				assert.NoError(t, guarded.Err(), "the hold")
				e.unlock(1)
			})
		})
	}
}

// If Redis always takes longer to answer than the lease lasts, Lock returns an error after a few attempts, and no
// record is left. A lease of 1ms expires at once, as documented, which is no error.
func TestEngineLeaseShorterThanAnAnswerIsAnError(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.Latency = 50 * time.Millisecond
		start := time.Now()
		err := e.misses(ctx, 1, leased(60*time.Millisecond))
		assert.ErrorIs(t, err, ErrLockLost)
		assert.ErrorIs(t, err, ErrLate)
		n := e.redis.Count("acquire")
		assert.Equal(t, MostAsked, n, "asked %d times", n)
		assert.LessOrEqual(t, time.Since(start), 10*2*e.redis.Latency, "time taken")
		e.assertFree("is left")
		ok, err := e.lockWith(ctx, 1, leased(time.Millisecond))
		assert.NoError(t, err, "a lease of 1ms")
		assert.True(t, ok, "a lease of 1ms")
		e.lock(1)
		e.unlock(1)
	})
}
