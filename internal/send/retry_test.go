//go:build go1.25

package send

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// in runs f in a bubble.
func in(t *testing.T, f func(b *bench), change ...func(*Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, change...)
		f(b)
		synctest.Wait()
		b.idle()
	})
}

// after returns a function that answers a call after d, regardless of the context.
func after(d time.Duration, err error) func(context.Context, Call) (any, error) {
	return func(_ context.Context, c Call) (any, error) {
		time.Sleep(d)
		if err != nil {
			return nil, err
		}
		return echo(c), nil
	}
}

func TestUnansweredCallIsSentAgainFourTimesAtMost(t *testing.T) {
	in(t, func(b *bench) {
		var late orphans
		b.fake.setRun(after(time.Minute, nil))
		start := time.Now()
		r := request("x")
		r.OnOrphan = &late
		a := b.do(r)
		require.ErrorIs(t, a.Err, ErrSilent)
		assert.Equal(t, maxTries, a.Unknown)
		assert.True(t, a.Unanswered)
		assert.False(t, a.Abandoned)
		assert.LessOrEqual(t, time.Since(start), quickTime+2*ResendTime)
		sent := b.fake.times()
		require.Len(t, sent, maxTries)
		for i := 1; i < maxTries; i++ {
			pause := sent[i].Sub(sent[i-1])
			assert.GreaterOrEqual(t, pause, ResendTime)
			assert.LessOrEqual(t, pause, ResendTime+ResendTime/4)
		}
		assert.Equal(t, maxTries, a.Orphans)
		assert.Zero(t, a.Lost, "tries that nobody hears of")
		assert.Empty(t, late.all(), "before the tries have ended")
		time.Sleep(2 * time.Minute)
		assert.Len(t, late.all(), maxTries)
	})
}

// A long call is sent again only when the previous try has certainly run, and is sent by itself.
func TestLongCallIsNotSentAgainWhileItMayRun(t *testing.T) {
	for name, run := range map[string]func(ctx context.Context, c Call) (any, error){
		"no answer":       after(time.Minute, nil),
		"a read timeout":  after(100*time.Millisecond, context.DeadlineExceeded),
		"a lost answer":   after(time.Millisecond, io.EOF),
		"a later timeout": after(1500*time.Millisecond, context.DeadlineExceeded),
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(b *bench) {
				b.fake.setRun(run)
				r := request("x")
				r.Long = true
				b.do(r)
				sent := b.fake.times()
				assert.GreaterOrEqual(t, len(sent), 2)
				for i := 1; i < len(sent); i++ {
					assert.GreaterOrEqual(t, sent[i].Sub(sent[i-1]), LongTime)
				}
				time.Sleep(2 * time.Minute) // so that the tries end
			})
		})
	}
	in(t, func(b *bench) { // Redis has not run a call that it refused
		b.fake.setRun(after(time.Millisecond, refusal("LOADING Redis is loading")))
		r := request("x")
		r.Long = true
		b.do(r)
		assert.Greater(t, b.fake.tries(), 5)
	})
	in(t, func(b *bench) {
		r := request("x")
		assert.True(t, b.mayBatch(&r, 100))
		r.Long = true
		assert.False(t, b.mayBatch(&r, 100))
	}, func(c *Config) { c.Batch = true })
}

func TestNoMoreThanFourTriesAreUnderWay(t *testing.T) {
	in(t, func(b *bench) {
		b.fake.setRun(after(time.Minute, nil))
		start := time.Now()
		a := b.Do(b.wait(context.Background()), request("x"), time.Now()) // retries for the retry budget
		assert.ErrorIs(t, a.Err, ErrSilent)
		assert.False(t, a.Unanswered, "there was a reply before")
		assert.Greater(t, time.Since(start), rideOut)
		assert.Equal(t, maxTries, b.fake.tries())
		time.Sleep(2 * time.Minute)
	})
}

// A Redis server that takes longer than a second for each answer is slow, but not gone.
func TestAnswerToAnEarlierTryCounts(t *testing.T) {
	in(t, func(b *bench) {
		var late orphans
		b.fake.setRun(after(1600*time.Millisecond, nil))
		start := time.Now()
		r := request("x")
		r.OnOrphan = &late
		a := b.do(r)
		answers(t, "x", a)
		assert.Equal(t, 1600*time.Millisecond, time.Since(start))
		assert.Equal(t, start, a.Sent, "trust begins before the first try")
		assert.Equal(t, 1, a.Unknown, "the second try is still under way")
		assert.Equal(t, 1, a.Orphans)
		assert.Zero(t, a.Lost)
		time.Sleep(10 * time.Second)
		require.Len(t, late.all(), 1)
		assert.True(t, late.all()[0].sent.After(start))
	})
}

func TestTriesBesideOthersAreBoundedForAClient(t *testing.T) {
	in(t, func(b *bench) {
		const callers = 200
		b.fake.setRun(after(time.Minute, nil))
		for range callers {
			go func() { assert.ErrorIs(t, b.do(request("x")).Err, ErrSilent) }()
		}
		time.Sleep(30 * time.Second)
		assert.LessOrEqual(t, b.fake.tries(), callers+maxResent)
		assert.Greater(t, b.fake.tries(), callers)
		time.Sleep(time.Minute)
	})
}

// A caller that has received a reply retries for the retry budget, any other caller for a few seconds or tries.
func TestHowLongACallIsRepeated(t *testing.T) {
	loading := refusal("LOADING Redis is loading")
	dial := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for _, test := range []struct {
		name        string
		err         error
		noWait      bool
		hadReply    bool
		ago         time.Duration // since that reply
		least, most time.Duration
		unanswered  bool
	}{
		{"refused", loading, false, false, 0, rideOut, rideOut + time.Second, false},
		{"refused, no wait", loading, true, false, 0, 0, time.Second, false},
		{"no connection", dial, false, false, 0, time.Second, 2 * time.Second, true},
		{"no connection, no wait", dial, true, false, 0, 0, time.Second, true},
		{"no connection, but a reply before", dial, false, true, 0, rideOut, rideOut + time.Second, false},
		{"no connection, but a reply long ago", dial, false, true, 10 * rideOut, rideOut, rideOut + time.Second, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			in(t, func(b *bench) {
				b.fake.setRun(after(0, test.err))
				w := b.wait(context.Background())
				w.NoWait = test.noWait
				var lastReply time.Time
				if test.hadReply {
					lastReply = time.Now().Add(-test.ago) // the caller has waited since without a request
				}
				start := time.Now()
				a := b.Do(w, request("x"), lastReply)
				assert.Equal(t, test.err, a.Err)
				assert.Equal(t, test.unanswered, a.Unanswered)
				assert.Zero(t, a.Unknown, "no try can have run")
				assert.GreaterOrEqual(t, time.Since(start), test.least)
				assert.LessOrEqual(t, time.Since(start), test.most)
				assert.GreaterOrEqual(t, b.fake.tries(), quickTries)
			})
		})
	}
}

// A Client that has never had an answer may have the address of a replica, or be one of a mock. After an answer, the
// same errors are those of a failover or an outage.
func TestNoPatienceBeforeTheFirstAnswer(t *testing.T) {
	in(t, func(b *bench) {
		took := func(background bool, err error) time.Duration {
			b.fake.setRun(after(0, err))
			w := b.wait(context.Background())
			w.Background = background
			var lastReply time.Time
			if background {
				lastReply = time.Now() // as rollbacks do
			}
			start := time.Now()
			assert.Equal(t, err, b.Do(w, request("x"), lastReply).Err)
			return time.Since(start)
		}
		replica, mock := refusal("READONLY You can't write"), errors.New("the call was not expected")
		assert.Less(t, took(false, replica), 2*time.Second)
		assert.Less(t, took(true, replica), 2*time.Second)
		assert.Less(t, took(true, mock), 2*time.Second)
		b.fake.setRun(func(_ context.Context, c Call) (any, error) { return echo(c), nil })
		answers(t, "x", b.do(request("x")))
		assert.GreaterOrEqual(t, took(false, replica), rideOut)
		assert.GreaterOrEqual(t, took(true, replica), rideOut)
		assert.GreaterOrEqual(t, took(true, mock), rideOut)
	})
}

// Connections that were closed while they were idle cost no time, however many there are, but a request is not
// repeated forever.
func TestEndedConnectionsAreUsedUp(t *testing.T) {
	broken := &net.OpError{Op: "write", Err: syscall.EPIPE}
	for _, noWait := range []bool{false, true} {
		var idle atomic.Int64
		counted := func(c *Config) { c.Idle = func(string) int { return int(idle.Load()) } }
		in(t, func(b *bench) {
			idle.Store(40)
			b.fake.setRun(func(context.Context, Call) (any, error) {
				if idle.Add(-1) >= 0 {
					return nil, broken
				}
				return reply(1, 0, 0), nil
			})
			w, start := b.wait(context.Background()), time.Now()
			w.NoWait = noWait
			a := b.Do(w, request("x"), time.Time{})
			assert.NoError(t, a.Err)
			assert.Equal(t, 40, a.Unknown)
			assert.Less(t, time.Since(start), 100*time.Millisecond)
		}, counted)
		in(t, func(b *bench) {
			idle.Store(1)
			b.fake.setRun(after(0, broken))
			w, start := b.wait(context.Background()), time.Now()
			w.NoWait = noWait
			assert.Equal(t, broken, b.Do(w, request("x"), time.Time{}).Err)
			assert.LessOrEqual(t, time.Since(start), 2*time.Second)
			assert.LessOrEqual(t, b.fake.tries(), maxEnded+20)
		}, counted)
	}
}

func TestFinalErrorIsNotRepeated(t *testing.T) {
	in(t, func(b *bench) {
		for _, err := range []error{refusal("WRONGTYPE x"), ErrNotSynced, NotALock("x", "holds data", nil)} {
			before := b.fake.tries()
			b.fake.setRun(after(0, err))
			a := b.do(request("x"))
			assert.ErrorIs(t, a.Err, err)
			assert.Equal(t, 1, b.fake.tries()-before)
			assert.False(t, a.Unanswered)
			assert.Zero(t, a.Lost, "it was answered, and cannot run later")
		}
		b.fake.setRun(func(context.Context, Call) (any, error) { return "OK", nil })
		a := b.do(request("x"))
		assert.ErrorIs(t, a.Err, ErrReply, "a script answers a list")
		assert.Equal(t, 1, a.Unknown)
		assert.Zero(t, a.Lost)
	})
}

func TestFirstTryIsMadeEvenIfTheTimeIsUp(t *testing.T) {
	for _, change := range []func(*Config){func(*Config) {}, inline} {
		in(t, func(b *bench) {
			b.isFast()
			w := b.wait(context.Background())
			w.Deadline, w.OnCaller = time.Now(), true
			answers(t, "x", b.Do(w, request("x"), time.Time{}))

			b.fake.setRun(after(0, refusal("LOADING x")))
			a := b.Do(w, request("x"), time.Time{})
			assert.ErrorIs(t, a.Err, ErrTimeUp)
			assert.ErrorIs(t, a.Err, refusal("LOADING x"), "the last try")
			assert.Equal(t, 2, b.fake.tries())
		}, change)
	}
}

func TestNothingIsSentAfterCloseOrTheEndOfCtx(t *testing.T) {
	in(t, func(b *bench) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		for _, do := range []func(*Wait) Answer{
			func(w *Wait) Answer { return b.Do(w, request("x"), time.Time{}) },
			func(w *Wait) Answer { return b.Once(w, request("x")) },
		} {
			assert.Equal(t, context.Canceled, do(b.wait(ctx)).Err)
		}
		synctest.Wait()
		assert.Zero(t, b.fake.tries())
		close(b.closed)
		assert.Equal(t, ErrClosed, b.do(request("x")).Err)
		assert.Zero(t, b.fake.tries())
		w := &Wait{Ctx: context.Background()} // a release continues after Close
		answers(t, "x", b.Do(w, request("x"), time.Time{}))
	}, inline)
}

// Every wait for an answer ends when the context is done, at the deadline but not before MinWait, and with Close. The
// outcome goes to the handler.
func TestCallerLeavesBeforeTheAnswer(t *testing.T) {
	for name, test := range map[string]struct {
		leave func(b *bench, w *Wait, cancel func())
		want  error
		took  time.Duration
	}{
		"ctx": {func(_ *bench, _ *Wait, cancel func()) { time.AfterFunc(300*time.Millisecond, cancel) },
			context.Canceled, 300 * time.Millisecond},
		"close": {func(b *bench, _ *Wait, _ func()) { time.AfterFunc(300*time.Millisecond, func() { close(b.closed) }) },
			ErrClosed, 300 * time.Millisecond},
		"deadline": {func(_ *bench, w *Wait, _ func()) { w.Deadline = time.Now().Add(300 * time.Millisecond) }, ErrTimeUp,
			300 * time.Millisecond},
		"short": {func(_ *bench, w *Wait, _ func()) { w.Deadline = time.Now().Add(time.Millisecond) }, ErrTimeUp, MinWait},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(b *bench) {
				var late orphans
				seen := make(chan context.Context, 1)
				b.fake.setRun(func(ctx context.Context, c Call) (any, error) {
					seen <- ctx
					time.Sleep(time.Minute)
					return echo(c), nil
				})
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				w := b.wait(ctx)
				test.leave(b, w, cancel)
				r := request("x")
				r.OnOrphan = &late
				start := time.Now()
				a := b.Do(w, r, time.Time{})
				assert.Equal(t, test.want, a.Err)
				assert.Equal(t, test.took, time.Since(start))
				assert.True(t, a.Abandoned)
				assert.Zero(t, a.Unknown)
				assert.Equal(t, 1, a.Orphans)
				assert.Equal(t, context.Canceled, (<-seen).Err(), "a call that waits for a connection ends")
				time.Sleep(2 * time.Minute)
				assert.Equal(t, []outcome{{start, echo(r.Call), nil}}, late.all())
			})
		})
	}
}

func TestLeavingInAPauseTellsTheLastError(t *testing.T) {
	in(t, func(b *bench) {
		b.fake.setRun(after(0, io.EOF))
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(firstPause/4, cancel)
		a := b.Do(b.wait(ctx), request("x"), time.Time{})
		assert.ErrorIs(t, a.Err, context.Canceled)
		assert.ErrorIs(t, a.Err, io.EOF)
		assert.False(t, a.Abandoned)
		assert.Equal(t, 1, a.Unknown)
	})
}

func TestDeadlineEndsAPause(t *testing.T) {
	in(t, func(b *bench) {
		b.fake.setRun(after(0, io.EOF))
		w := b.wait(context.Background())
		w.Deadline = time.Now().Add(firstPause / 4)
		start := time.Now()
		a := b.Do(w, request("x"), time.Now())
		assert.ErrorIs(t, a.Err, ErrTimeUp)
		assert.Equal(t, firstPause/4, time.Since(start))
		assert.Equal(t, 1, b.fake.tries())
	})
}

// go-redis may notice first that the context is done. The error is that of the context, once, with the error of the
// previous try.
func TestEndOfCtxIsToldOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	b := newBench(t)
	w, r := b.wait(ctx), retry{Sender: b.Sender, req: request("x")}
	told := func(err error) error {
		assert.True(t, r.failed(w, outcome{err: err}, r.req.Call))
		return r.leave(w, w.Over()).Err
	}
	assert.Equal(t, context.Canceled, told(context.Canceled))
	r.last.err = io.EOF
	assert.EqualError(t, told(context.Canceled), "context canceled: the last attempt: EOF")
	assert.EqualError(t, told(io.ErrNoProgress), "context canceled: the last attempt: "+io.ErrNoProgress.Error())
}

func TestOnceIsSentOnce(t *testing.T) {
	in(t, func(b *bench) {
		b.fake.setRun(after(0, io.EOF))
		a := b.Once(b.wait(context.Background()), request("x"))
		assert.Equal(t, io.EOF, a.Err)
		assert.Equal(t, 1, a.Unknown)
		assert.Equal(t, 1, a.Lost)
		assert.Equal(t, 1, b.fake.tries())

		b.fake.setRun(after(8*time.Second, nil))
		answers(t, "x", b.Once(b.wait(context.Background()), request("x")))

		b.fake.setRun(after(time.Minute, nil))
		start := time.Now()
		a = b.Once(b.wait(context.Background()), request("x"))
		assert.ErrorIs(t, a.Err, ErrSilent)
		assert.Equal(t, 1, a.Unknown)
		assert.Greater(t, time.Since(start), 2*ConnectTime)
		assert.Less(t, time.Since(start), 3*ConnectTime)
		assert.Equal(t, 3, b.fake.tries())

		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		a = b.Once(b.wait(ctx), request("x"))
		assert.ErrorIs(t, a.Err, context.DeadlineExceeded)
		assert.True(t, a.Abandoned)
		time.Sleep(2 * time.Minute)
	})
}

// notAdmitted are answers to a request of a user whose credentials are being rotated.
var notAdmitted = []refusal{
	"WRONGPASS invalid username-password pair or user is disabled.",
	"NOAUTH Authentication required.",
	"DENIED Redis is running in protected mode",
	"NOPERM this user has no permissions to run the 'evalsha' command",
	"NOPERM No permissions to access a key",
}

// inScript is the answer to a script that may not run one of its commands.
const inScript = refusal("ERR ACL failure in script: User alice has no permissions to run the 'hset' command script: 4ad2")

// A waiter that Redis has admitted before waits until it is admitted again, for the retry budget or until its own time is
// up.
func TestWaiterRidesOutARotationOfCredentials(t *testing.T) {
	waiter := request("x")
	waiter.Acquiring = true
	for _, answer := range notAdmitted {
		t.Run(string(answer), func(t *testing.T) {
			in(t, func(b *bench) {
				start := time.Now()
				b.fake.setRun(func(_ context.Context, c Call) (any, error) {
					if time.Since(start) < rideOut-time.Second {
						return nil, answer
					}
					return echo(c), nil
				})
				answers(t, "x", b.Do(b.wait(context.Background()), waiter, start))
			})
			in(t, func(b *bench) {
				b.fake.setRun(after(0, answer))
				start := time.Now()
				a := b.Do(b.wait(context.Background()), waiter, start.Add(-time.Hour))
				assert.Equal(t, answer, a.Err, "the error of Redis itself")
				assert.Zero(t, a.Unknown)
				assert.Greater(t, time.Since(start), rideOut)
				assert.Less(t, time.Since(start), rideOut+time.Second)
			})
			in(t, func(b *bench) {
				b.fake.setRun(after(0, answer))
				w, start := b.wait(context.Background()), time.Now()
				w.Deadline = start.Add(5 * time.Second)
				a := b.Do(w, waiter, start)
				assert.ErrorIs(t, a.Err, ErrTimeUp)
				assert.ErrorIs(t, a.Err, answer)
				assert.Equal(t, 5*time.Second, time.Since(start))

				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				defer cancel()
				start = time.Now()
				a = b.Do(b.wait(ctx), waiter, start)
				assert.ErrorIs(t, a.Err, context.DeadlineExceeded)
				assert.ErrorIs(t, a.Err, answer)
				assert.Equal(t, 5*time.Second, time.Since(start))
			})
		})
	}
}

// Anyone else is told at once that Redis does not admit the request, and so is a waiter whose script may not do its work.
func TestOtherRefusalsAreReportedAtOnce(t *testing.T) {
	waiter, other, hasty := request("x"), request("x"), new(bench).wait(context.Background())
	waiter.Acquiring, hasty.NoWait = true, true
	for _, answer := range append(notAdmitted, inScript) {
		in(t, func(b *bench) {
			b.fake.setRun(after(0, answer))
			start, wait := time.Now(), b.wait(context.Background())
			assert.Equal(t, answer, b.Do(wait, waiter, time.Time{}).Err, "the first request of a caller")
			assert.Equal(t, answer, b.Do(wait, other, start).Err, "a release")
			assert.Equal(t, answer, b.Do(hasty, waiter, start).Err, "a caller that does not wait")
			assert.Equal(t, 3, b.fake.tries())
			if answer == inScript {
				assert.Equal(t, answer, b.Do(wait, waiter, start).Err, "a waiter")
			}
			assert.Equal(t, start, time.Now())
		})
	}
}

// While the keys of a call are on two servers, it is sent with the first one alone. After another refusal it is sent whole.
func TestCallIsSentWithOneKeyWhileTheKeysAreApart(t *testing.T) {
	const apart, loading = refusal("TRYAGAIN Multiple keys request during rehashing of slot"), refusal("LOADING")
	script := NewScript("return 1")
	r := Request{Call: Call{Script: script, Keys: []string{"x", "line"}, Args: []any{"field"}, Alone: true}}
	in(t, func(b *bench) {
		var sent []Call
		b.fake.setRun(func(_ context.Context, c Call) (any, error) {
			switch sent = append(sent, c); {
			case len(sent) == 2:
				return nil, loading
			case len(c.Keys) == 2:
				return nil, apart
			}
			return echo(c), nil
		})
		answers(t, "x", b.Do(b.wait(context.Background()), r, time.Time{}))
		narrow := Call{Script: script, Keys: []string{"x"}, Args: []any{"field"}}
		assert.Equal(t, []Call{r.Call, narrow, r.Call, narrow}, sent)
		sent = nil
		assert.Equal(t, apart, b.Once(b.wait(context.Background()), r).Err)
		assert.Len(t, sent, 1)
	})
}
