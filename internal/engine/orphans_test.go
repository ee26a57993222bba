//go:build go1.25

package engine

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/send"
)

// holdBy returns the hold of o on a lock, and its field.
func (e *bubbleEngine) holdBy(id contract.LockID, o Owner) (h *hold, field string) {
	e.t.Helper()
	e.holdOf(id, o, func(found *hold) {
		require.NotNil(e.t, found)
		h, field = found, found.Field().ID
	})
	return h, field
}

// A late grant is needed for as long as a hold of this process has its field: also if the hold for which it was asked
// has ended, and others share the record.
func TestLateGrantIsNeededWhileTheRecordIsShared(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.shares(1)
		e.shares(2)
		h, field := e.holdBy(e.shared().Traits().ID, 1)
		assert.True(t, h.needs(field, false))
		assert.False(t, h.needs("another field", false))
		e.unlock(1)
		assert.True(t, h.needs(field, false), "another hold has the record")
		e.unlock(2)
		assert.False(t, h.needs(field, false), "the record was released")
	})
}

// A late grant is needed as well if the field was handed off to a hold that makes a record of its own with it.
func TestLateGrantIsNeededWhileTheFieldIsAdopted(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		fenced := newFakeLock(e.redis, "x")
		fenced.traits.Fenced = true
		e.take(fenced, 1)
		h, field := e.holdBy(fenced.Traits().ID, 1)
		taken := begin(func() { e.take(fenced, 2) })
		synctest.Wait()
		e.giveBack(fenced, 1)
		<-taken
		require.Equal(t, field, e.redis.Holder("x"), "the field was handed off")
		assert.True(t, h.needs(field, false))
		e.giveBack(fenced, 2)
	})
}

// A late grant for a hold that its caller has given up is needed only if the caller has left its place in the line to
// another one.
func TestLateGrantIsNeededWhileThePlaceIsLeft(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newFakeLock(e.redis, "x")
		s := e.retain("x")
		defer s.release()
		var q *waitQueue
		newHold := func() (h *hold) {
			s.locked(func() {
				h = s.newHoldLocked(l, holdKey{"", 1})
				h.newField()
			})
			return h
		}
		h := newHold()
		assert.True(t, h.needs(h.Field().ID, false), "its caller asks")
		s.locked(func() {
			q = s.queueLocked("")
			q.TryEnter()
			q.place = &place{lock: l, field: h.Field()}
		})
		h.unlockHold()
		assert.True(t, h.needs(h.Field().ID, false), "the next caller asks")
		s.locked(func() {
			q.place = nil
			q.Release()
			s.dropQueueLocked(q)
		})
		assert.False(t, h.needs(h.Field().ID, false), "nobody asks")
	})
}

// A try of an attempt runs late, and is granted, while the caller waits because a later try has found the lock busy.
// The caller has the lock at once, and no other caller waits for a lock that no owner uses.
func TestLateGrantWakesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := fakeredis.New()
		e := joinBubbleEngine(t, r, "client", func(c *Config) { c.PollInterval = time.Minute })
		other := joinBubbleEngine(t, r, "other")
		other.lock(99)
		start := time.Now()
		runsLate(r, "acquire", 1, fakeredis.Fault{Late: 3 * time.Second})
		time.AfterFunc(2*time.Second, func() { r.Set(func() { delete(r.Records, "x") }) }) // no waiter is told
		e.lock(1)
		assert.Equal(t, 3*time.Second, time.Since(start))
		e.unlock(1)
		_ = other.unlockErr(99)
	})
}

// An ownersRedis is a Redis with faults that depend on the field of the request.
type ownersRedis struct {
	*fakeredis.Redis
	fault func(field string) (late time.Duration, err error)
}

func (r *ownersRedis) Run(ctx context.Context, c send.Call, taking bool) (any, error) {
	late, err := r.fault(c.Args[1].(string))
	if err != nil {
		return nil, err
	}
	time.Sleep(late)
	return r.Redis.Run(ctx, c, taking)
}

// Redis had not answered the caller in front, so the caller behind it has asked past the local queue, and a later try has
// found the lock busy. It waits in the local queue, without the field of that attempt: the try that runs late takes
// nothing.
func TestLateTryTakesNothingForACallerThatIsBackInTheLocalQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const late = 4 * time.Second
		var first atomic.Bool
		r := &ownersRedis{Redis: fakeredis.New(), fault: func(field string) (time.Duration, error) {
			switch {
			case strings.Contains(field, ":1:"):
				return 0, io.EOF
			case strings.Contains(field, ":3:") && !first.Swap(true):
				return late, nil
			}
			return 0, nil
		}}
		other := joinBubbleEngine(t, r.Redis, "other")
		other.lock(99)
		e := joinSending(t, r.Redis, "client", send.Config{Transport: r}, func(c *Config) { c.PollInterval = time.Minute })
		var all sync.WaitGroup
		all.Go(func() {
			_, err := e.lockWith(ctx, 1, Request{})
			assert.ErrorIs(t, err, io.EOF)
		})
		synctest.Wait()
		began := time.Now()
		for o := Owner(2); o <= 3; o++ {
			all.Go(func() {
				e.lock(o)
				assert.Equal(t, time.Duration(o+1)*time.Second, time.Since(began), "%v", o)
				time.Sleep(time.Second)
				e.unlock(o)
			})
			synctest.Wait()
		}
		time.Sleep(3 * time.Second)
		other.unlock(99)
		all.Wait()
		time.Sleep(time.Second)
		e.assertFree()
	})
}

// An entryLock is a lock whose waiters have an entry in Redis, which they renew every ten seconds.
type entryLock struct{ *fakeLock }

func (l entryLock) ReadReply(a contract.Attempt, r send.Reply) (contract.Outcome, error) {
	o, err := l.fakeLock.ReadReply(a, r)
	return o.WithEntry(a, 10*time.Second), err
}

// Redis is so slow that each attempt is sent twice, and the second answer is late. It grants nothing, and does not make
// the caller ask sooner.
func TestLateAnswerThatTheLockIsBusyWakesNoCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const minute = time.Minute
		r := fakeredis.New()
		e := joinBubbleEngine(t, r, "client", func(c *Config) { c.PollInterval = minute })
		r.Set(func() {
			r.Records["x"] = &fakeredis.Record{Field: "other", Levels: 1, Expires: time.Now().Add(time.Hour)}
			r.Fault = func(string) fakeredis.Fault { return fakeredis.Fault{Answer: 3 * send.ResendTime / 2} }
		})
		ok, _ := e.acquire(ctx, entryLock{newFakeLock(r, "x")}, 1, Request{Wait: minute})
		require.False(t, ok)
		assert.LessOrEqual(t, r.Count("acquire"), 2*(1+int(minute/(10*time.Second))))
		r.Set(func() { r.Fault = nil })
		time.Sleep(2 * time.Second)
	})
}

// A connRedis is a Redis with one connection.
type connRedis struct {
	*fakeredis.Redis
	conn chan struct{}
}

func (r connRedis) Run(ctx context.Context, c send.Call, taking bool) (any, error) {
	select {
	case r.conn <- struct{}{}:
		defer func() { <-r.conn }()
		return r.Redis.Run(ctx, c, taking)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// The same, and the second try waits for a connection until the first one is answered: it was not sent.
func TestTryWithoutAConnectionWakesNoCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const minute = time.Minute
		r := connRedis{fakeredis.New(), make(chan struct{}, 1)}
		e := joinSending(t, r.Redis, "client", send.Config{Transport: r}, func(c *Config) { c.PollInterval = minute })
		r.Set(func() {
			r.Records["x"] = &fakeredis.Record{Field: "other", Levels: 1, Expires: time.Now().Add(time.Hour)}
			r.Fault = func(string) fakeredis.Fault { return fakeredis.Fault{Answer: 3 * send.ResendTime / 2} }
		})
		ok, _ := e.lockWith(ctx, 1, Request{Wait: minute})
		require.False(t, ok)
		assert.LessOrEqual(t, r.Count("acquire"), 8) // of three attempts
		r.Set(func() { r.Fault = nil })
		time.Sleep(2 * time.Second)
	})
}

// A late grant may be handled before its caller listens for anything: it is woken as soon as it does.
func TestLateGrantWakesACallerThatIsAboutToWait(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		s := e.retain("x")
		defer s.release()
		var h *hold
		s.locked(func() {
			h = s.newHoldLocked(newFakeLock(e.redis, "x"), holdKey{"", 1})
			h.newField()
		})
		assert.True(t, h.needs(h.Field().ID, true))
		require.Len(t, h.changed, 1)
		h.unlockHold()
	})
}

// What is deleted of a hold that has ended is its own alone: a field that another hold has adopted stays, and so does
// one that another hold is about to adopt.
func TestDismissedTargetLeavesAFieldThatWasAdopted(t *testing.T) {
	for name, slow := range map[string]bool{"adopted": false, "being adopted": true} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			asked := false
			fenced := newFencedFake(e.redis, "x")
			e.take(fenced, 1)
			h, field := e.holdBy(fenced.Traits().ID, 1)
			taken := begin(func() { e.take(fenced, 2) })
			synctest.Wait()
			e.fail(func(verb string) (f fakeredis.Fault) {
				if verb == "acquire" && slow && !asked {
					f.Answer, asked = time.Second, true
				}
				return f
			})
			e.giveBack(fenced, 1)
			if synctest.Wait(); !slow { // the adopting request has run
				<-taken
			}
			reentry := target{hold: h, Attempt: contract.Attempt{Field: field, HoldCount: 2}}
			h.lockState.locked(func() {
				(&acquireOp{engine: e.Engine, target: reentry}).dismissLocked(Answer{Outcome: contract.Outcome{Status: contract.Held}})
			})
			time.Sleep(2 * time.Second)
			<-taken
			assert.Equal(t, field, e.redis.Holder("x"), name)
			e.giveBack(fenced, 2)
			assert.False(t, h.Field().InUse(), "%s: released", name)
		})
	}
}

// A hold that is about to adopt a field, and is not acquired, leaves the field when it ends.
func TestFieldThatIsNotAdoptedHasNoUsers(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		fenced := newFencedFake(e.redis, "x")
		e.take(fenced, 1)
		h, _ := e.holdBy(fenced.Traits().ID, 1)
		refused := e.acquiring(ctx, fenced, 2)
		synctest.Wait()
		e.faults(fakeredis.Fault{Err: errors.New("ERR refused")}, "acquire")
		e.giveBack(fenced, 1)
		assert.Error(t, <-refused)
		time.Sleep(2 * time.Second)
		assert.False(t, h.Field().InUse())
		e.assertFree()
	})
}

// An Unlock after which the owner still holds the lock deletes no record. So if a repeated one finds none, the lock was
// lost.
func TestRepeatedUnlockOfAnInnerAcquireReportsARecordThatIsGone(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		e.lock(1)
		guarded, answers := e.guarded(1), 0
		e.redis.Set(func() {
			delete(e.redis.Records, "x")
			e.redis.Fault = func(string) (f fakeredis.Fault) {
				if answers++; answers == 1 {
					f.Err, f.Answer = io.EOF, 20*time.Millisecond
				}
				return f
			}
		})
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost)
		assert.Equal(t, 2, answers, "the release was repeated")
		assert.Error(t, guarded.Err())
	})
}

// A try of an attempt runs late, when the lock was handed off to another owner, whose release is under way: that release
// finds the record, and the late try is rolled back after it.
func TestLateTryIsNotRolledBackDuringTheReleaseOfItsSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := joinBubbleEngine(t, fakeredis.New(), "client", withWindow(time.Hour))
		l := newFakeLock(e.redis, "x")
		seen := map[string]int{}
		e.fail(func(v string) (f fakeredis.Fault) {
			seen[v]++
			switch {
			case v == "acquire" && seen[v] == 1:
				f.Late = 3 * time.Second
			case v == "release" && seen[v] == 1:
				f.Late = 500 * time.Millisecond
			}
			return f
		})
		start := time.Now()
		e.take(l, 1)
		require.Less(t, time.Since(start), 2*time.Second)
		got := e.acquiring(ctx, l, 2)
		synctest.Wait()
		e.giveBack(l, 1)
		require.NoError(t, <-got)
		require.Zero(t, e.redis.Count("release"), "it was handed off")
		time.Sleep(time.Until(start.Add(2900 * time.Millisecond)))
		e.giveBack(l, 2)
	})
}

// A try of an attempt runs late, when the record was handed off to an owner that has adopted its field, and has unlocked
// since. The try acquires the lock for nobody, where there are no tombstones, and is rolled back.
func TestLateTryIsRolledBackAfterTheReleaseOfTheAdopter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := joinBubbleEngine(t, fakeredis.New(), "client", withWindow(time.Hour))
		l, start := newFencedFake(e.redis, "x"), time.Now()
		runsLate(e.redis, "acquire", 1, fakeredis.Fault{Late: 3 * time.Second})
		e.take(l, 1)
		require.Less(t, time.Since(start), 2*time.Second)
		got := e.acquiring(ctx, l, 2)
		synctest.Wait()
		e.giveBack(l, 1)
		require.NoError(t, <-got)
		require.Zero(t, e.redis.Count("release"), "it was handed off")
		e.giveBack(l, 2)
		time.Sleep(time.Until(start.Add(3*time.Second + 100*time.Millisecond)))
		e.assertFree("the record that nobody holds")
	})
}

// A re-entry acquires nothing, whenever it runs: it needs no tombstone.
func TestReentryThatRunsLateNeedsNoTombstone(t *testing.T) {
	for holdCount, acquires := range map[int]bool{1: true, 2: false} {
		x := target{Attempt: contract.Attempt{HoldCount: holdCount}}
		assert.Equal(t, acquires, x.effect().Acquires)
	}
}
