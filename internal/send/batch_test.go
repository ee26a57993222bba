//go:build go1.25

package send

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	serveTime = time.Millisecond
	alone     = "alone: " // before the answer to a call that goes out by itself
)

// A batchBench is a bench whose calls go out in batches, and whose server answers after serveTime.
type batchBench struct {
	*bench
	mu    sync.Mutex // guards below
	hang  chan struct{}
	fails func(context.Context) error
}

// inBatches runs f in a bubble where so many calls go out by themselves.
func inBatches(t *testing.T, from int64, f func(b *batchBench)) {
	t.Helper()
	in(t, func(b *bench) {
		bb := &batchBench{bench: b}
		if b.batches.from = from; from == 0 {
			b.BatchAll()
		}
		b.batches.pause = -1 // all senders at once
		b.fake.setBefore(bb.serve)
		b.fake.setRun(func(_ context.Context, c Call) (any, error) {
			time.Sleep(serveTime)
			return []any{alone + c.Keys[0]}, nil
		})
		f(bb)
		time.Sleep(time.Second) // the server has answered all batches
		synctest.Wait()
		assert.False(b.t, b.batches.coming)
		assert.Zero(b.t, b.batches.underWay)
		assert.Empty(b.t, b.batches.queue)
	}, func(c *Config) { c.Batch = true })
}

func (b *batchBench) serve(ctx context.Context) error {
	b.mu.Lock()
	hang, fails := b.hang, b.fails
	b.mu.Unlock()
	if hang != nil {
		<-hang
	}
	time.Sleep(serveTime)
	if fails != nil {
		return fails(ctx)
	}
	return nil
}

func (b *batchBench) fail(fails func(context.Context) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fails = fails
}

// hangs has the server answer no batch, and no later one, until release is called.
func (b *batchBench) hangs() (release func()) {
	hang := make(chan struct{})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hang = hang
	return func() {
		b.answersAgain()
		close(hang)
	}
}

// answersAgain has the server answer later batches.
func (b *batchBench) answersAgain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hang = nil
}

// ask sends a call once.
func (b *batchBench) ask(ctx context.Context, key string, late OrphanHandler) Answer {
	return b.Once(b.wait(ctx), Request{Call: Call{Keys: []string{key}}, OnOrphan: late})
}

// crowd sends n calls at once, in order.
func (b *batchBench) crowd(ctx context.Context, n int, late OrphanHandler) (all *sync.WaitGroup, got []Answer) {
	all, got = new(sync.WaitGroup), make([]Answer, n)
	for i := range n {
		all.Go(func() { got[i] = b.ask(ctx, strconv.Itoa(i), late) })
		synctest.Wait()
	}
	return all, got
}

// L7: calls of different servers do not go out together, and a server that hangs delays its own.
func TestBatchesAreOfOneServer(t *testing.T) {
	in(t, func(b *bench) {
		b.BatchAll()
		ask := func(key string) Answer {
			return b.Once(b.wait(context.Background()), Request{Call: Call{Keys: []string{key}}})
		}
		answers(b.t, "a0", ask("a0"))
		assert.Empty(b.t, b.fake.pipelines(), "before the first answer nothing is asked of Home")
		hang := make(chan struct{})
		b.fake.setBefore(func(context.Context) error {
			if batches := b.fake.pipelines(); batches[len(batches)-1][0][0] == 'a' {
				<-hang
			}
			return nil
		})
		var late sync.WaitGroup
		for i := range 3 {
			late.Go(func() { answers(b.t, fmt.Sprint("a", i), ask(fmt.Sprint("a", i))) })
			synctest.Wait()
		}
		start := time.Now()
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() { answers(b.t, fmt.Sprint("b", i), ask(fmt.Sprint("b", i))) })
		}
		all.Wait()
		assert.Zero(b.t, time.Since(start), "the other server answers at once")
		answers(b.t, "?", ask("?"))
		close(hang)
		late.Wait()
		for _, batch := range b.fake.pipelines() {
			for _, key := range batch {
				assert.Equal(b.t, batch[0][0], key[0], "%v", batch)
				assert.NotEqual(b.t, "?", key, "the server of this key is not known")
			}
		}
	}, func(c *Config) {
		c.Batch = true
		c.Home = func(key string) string { return map[byte]string{'a': "first", 'b': "second"}[key[0]] }
	})
}

func TestFewCallsGoOutByThemselvesAndManyTogether(t *testing.T) {
	inBatches(t, batchFrom, func(b *batchBench) {
		const n = batchFrom + maxSenders + 2*maxBatch
		start := time.Now()
		all, got := b.crowd(context.Background(), n, nil)
		all.Wait()
		for i, a := range got {
			want := strconv.Itoa(i)
			if i < batchFrom {
				want = alone + want
			}
			answers(b.t, want, a)
		}
		assert.Equal(b.t, 2*serveTime, time.Since(start))
		sent := b.fake.pipelines()
		assert.Len(b.t, sent, maxSenders+2)
		first := func(batch []string) int { n, _ := strconv.Atoi(batch[0]); return n }
		slices.SortFunc(sent, func(a, b []string) int { return first(a) - first(b) }) // two may pass each other
		next := batchFrom
		for _, batch := range sent {
			assert.LessOrEqual(b.t, len(batch), maxBatch)
			for _, key := range batch {
				assert.Equal(b.t, strconv.Itoa(next), key, "the calls go out in order")
				next++
			}
		}
	})
}

func TestCallThatIsLeftInTheQueueIsNeverSent(t *testing.T) {
	inBatches(t, 0, func(b *batchBench) {
		release := b.hangs()
		enough := errors.New("enough")
		ctx, cancel := context.WithCancelCause(context.Background())
		late := new(orphans)
		all, got := b.crowd(ctx, maxSenders+3, late)
		stays, stayed := b.crowd(context.Background(), 1, nil)
		begin := time.Now()
		cancel(enough)
		all.Wait()
		assert.Zero(b.t, time.Since(begin), "callers leave at once")
		for i, a := range got {
			assert.ErrorIs(b.t, a.Err, enough)
			assert.ErrorIs(b.t, a.Err, context.Canceled)
			assert.Equal(b.t, i < maxSenders, a.Abandoned, "%d", i)
			assert.Equal(b.t, i < maxSenders, a.Orphans == 1, "%d", i)
			assert.Zero(b.t, a.Unknown)
		}
		assert.EqualValues(b.t, maxSenders, b.working.Load(), "Close waits for those who send")
		assert.Empty(b.t, late.all(), "before the answer")
		release()
		stays.Wait()
		answers(b.t, "0", stayed[0])
		synctest.Wait()
		var keys []string
		for _, o := range late.all() {
			assert.NoError(b.t, o.err)
			keys = append(keys, o.value.([]any)[0].(string))
		}
		slices.Sort(keys)
		assert.Equal(b.t, []string{"0", "1", "2", "3", "4", "5", "6", "7"}[:maxSenders], keys, "the orphans")
		sent := b.fake.pipelines()
		require.Len(b.t, sent, maxSenders+1)
		assert.Equal(b.t, []string{"0"}, sent[maxSenders])
	})
}

// Batches that hang delay neither those in the queue for long nor later calls; calls in them are sent again.
func TestBatchesThatHangDelayOnlyTheCallsInThem(t *testing.T) {
	inBatches(t, 0, func(b *batchBench) {
		release := b.hangs()
		late := new(orphans)
		all, got := b.crowd(context.Background(), maxSenders+3, late)
		b.answersAgain()
		time.Sleep(2 * batchWait)
		synctest.Wait()
		for i, a := range got[maxSenders:] {
			answers(b.t, strconv.Itoa(maxSenders+i), a)
		}
		now := time.Now()
		answers(b.t, "new", b.ask(context.Background(), "new", late))
		assert.LessOrEqual(b.t, time.Since(now), 2*batchWait)
		time.Sleep(2 * ResendTime)
		release()
		all.Wait()
		for i, a := range got[:maxSenders] {
			answers(b.t, strconv.Itoa(i), a)
			assert.Zero(b.t, a.Unknown)
			assert.Zero(b.t, a.Orphans)
		}
		assert.Empty(b.t, late.all())
	})
}

func TestSilentBatchIsSentAgainByDo(t *testing.T) {
	inBatches(t, 0, func(b *batchBench) {
		release := b.hangs()
		late := new(orphans)
		start := time.Now()
		r := request("x")
		r.OnOrphan = late
		time.AfterFunc(ResendTime/2, b.answersAgain)
		a := b.do(r)
		answers(b.t, "x", a)
		assert.Equal(b.t, 1, a.Unknown)
		assert.Equal(b.t, 1, a.Orphans)
		assert.Zero(b.t, a.Lost)
		assert.GreaterOrEqual(b.t, time.Since(start), ResendTime)
		assert.LessOrEqual(b.t, time.Since(start), ResendTime+ResendTime/2)
		release()
		time.Sleep(2 * serveTime)
		assert.Len(b.t, late.all(), 1)
	})
}

func TestBatchHasALimitOfItsOwnAndNoCtxOfACaller(t *testing.T) {
	inBatches(t, 0, func(b *batchBench) {
		ctx, cancel := context.WithTimeout(withValue, time.Hour)
		defer cancel()
		b.fail(func(ctx context.Context) error {
			assert.Nil(b.t, ctx.Value(key{}))
			<-ctx.Done()
			return fmt.Errorf("dial: %w", ctx.Err())
		})
		begin := time.Now()
		err := b.ask(ctx, "x", nil).Err
		assert.GreaterOrEqual(b.t, time.Since(begin), ConnectTime)
		assert.LessOrEqual(b.t, time.Since(begin), ConnectTime+ConnectTime/2)
		assert.True(b.t, b.unhealthy.Load())
		assert.ErrorContains(b.t, err, "no connection to Redis within 5s")
		assert.NotErrorIs(b.t, err, context.DeadlineExceeded)
		assert.True(b.t, Transient(err))
	})
}

// After a connection has failed, the calls of its batch go out in batches again: by themselves they would fill the pool.
func TestCallsOfABatchThatFailsGoOutInABatchAgain(t *testing.T) {
	inBatches(t, 0, func(b *batchBench) {
		var failed atomic.Bool
		b.fail(func(context.Context) error {
			if failed.Swap(true) {
				return nil
			}
			return errors.New("no answer")
		})
		release := b.hangs()
		first, _ := b.crowd(context.Background(), maxSenders, nil)
		var all sync.WaitGroup
		for range 3 * maxBatch {
			all.Go(func() { answers(b.t, "x", b.do(request("x"))) })
		}
		synctest.Wait()
		release()
		all.Wait()
		first.Wait()
		assert.True(b.t, failed.Load())
		assert.Zero(b.t, b.fake.tries(), "calls that went out by themselves")
	})
}

func TestHealthIsRecordedAlsoOfAnAbandonedCall(t *testing.T) {
	inBatches(t, 0, func(b *batchBench) {
		failed := errors.New("no answer")
		b.fail(func(context.Context) error { return failed })
		release := b.hangs()
		ctx, cancel := context.WithCancel(context.Background())
		late := new(orphans)
		all, _ := b.crowd(ctx, 1, late)
		cancel()
		all.Wait()
		b.unhealthy.Store(false)
		release()
		time.Sleep(2 * serveTime)
		synctest.Wait()
		assert.True(b.t, b.unhealthy.Load())
		require.Len(b.t, late.all(), 1)
		assert.Equal(b.t, failed, late.all()[0].err)
	})
}

// A caller that leaves says nothing about Redis. What comes back does.
func TestCallerThatLeavesABatchSaysNothingAboutRedis(t *testing.T) {
	for name, leave := range map[string]func(b *batchBench, w *Wait){
		"canceled": func(b *batchBench, w *Wait) {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(2*serveTime, cancel)
			w.Ctx = ctx
		},
		"closed": func(b *batchBench, w *Wait) {
			time.AfterFunc(2*serveTime, func() { close(b.closed) })
		},
		"the time is up": func(b *batchBench, w *Wait) {
			w.Deadline = time.Now().Add(2 * serveTime)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBatches(t, 0, func(b *batchBench) {
				release := b.hangs()
				w := b.wait(context.Background())
				leave(b, w)
				require.Error(b.t, b.Once(w, request("x")).Err)
				assert.False(b.t, b.unhealthy.Load())
				assert.Zero(b.t, b.reroutes.Load())
				release()
			})
		})
	}
}

func TestPanicOfAHookIsTheErrorOfEveryCallInTheBatch(t *testing.T) {
	for _, exits := range []bool{false, true} {
		inBatches(t, 0, func(b *batchBench) {
			b.fail(func(context.Context) error {
				if exits {
					runtime.Goexit()
				}
				panic("a hook")
			})
			isFault := func(err error) bool {
				if exits {
					return err == ErrHookExited
				}
				return PanicOf(err) != nil && PanicOf(err).Value == "a hook"
			}
			release := b.hangs()
			const n = maxSenders + 3
			ctx, cancel := context.WithCancel(context.Background())
			late := new(orphans)
			leaves, _ := b.crowd(ctx, 1, late)
			stay, got := b.crowd(context.Background(), n, nil)
			cancel()
			leaves.Wait()
			b.unhealthy.Store(false)
			release()
			stay.Wait()
			synctest.Wait()
			for i, a := range got {
				assert.True(b.t, isFault(a.Err), "%d: %v", i, a.Err)
			}
			require.Len(b.t, late.all(), 1)
			assert.True(b.t, isFault(late.all()[0].err))
			assert.False(b.t, b.unhealthy.Load(), "a hook says nothing about Redis")

			b.fail(nil)
			answers(b.t, "x", b.ask(context.Background(), "x", nil))
		})
	}
}

func TestAnswerInABatchOfAnotherFormIsUnexpected(t *testing.T) {
	in(t, func(b *bench) {
		b.BatchAll()
		assert.ErrorIs(t, b.do(request("x")).Err, ErrReply)
	}, func(c *Config) {
		c.Batch, c.Transport = true, pipelines(func() []Outcome { return []Outcome{{Answer: "OK"}} })
	})
}

// A second batch goes out only where the first one takes long: else the calls wait for the first, and go out together.
func TestSecondBatchWaitsForAQuickFirstOne(t *testing.T) {
	for _, quick := range []bool{true, false} {
		inBatches(t, 0, func(b *batchBench) {
			b.batches.pause = serveTime - time.Microsecond
			if !quick {
				b.batches.pause = serveTime / 4
			}
			first, _ := b.crowd(context.Background(), 1, nil)
			time.Sleep(serveTime / 2)
			second, _ := b.crowd(context.Background(), 3, nil)
			start := time.Now()
			second.Wait()
			first.Wait()
			sent := b.fake.pipelines()
			if quick {
				assert.Equal(b.t, [][]string{{"0"}, {"0", "1", "2"}}, sent)
				assert.Equal(b.t, serveTime/2+serveTime, time.Since(start))
			} else {
				assert.Equal(b.t, [][]string{{"0"}, {"0"}, {"1", "2"}}, sent)
			}
		})
	}
}

// C: calls that come before a sender has taken its batch go out in that batch.
func TestOneSenderStartsAtATime(t *testing.T) {
	var starts []func() // guarded by the bubble: calls come one after the other
	in(t, func(b *bench) {
		b.BatchAll()
		bb := &batchBench{bench: b}
		all, got := bb.crowd(context.Background(), 3, nil)
		require.Len(b.t, starts, 1)
		starts[0]()
		all.Wait()
		for i, a := range got {
			answers(b.t, strconv.Itoa(i), a)
		}
		assert.Equal(b.t, [][]string{{"0", "1", "2"}}, b.fake.pipelines())
	}, func(c *Config) {
		c.Batch = true
		c.Spawn = func(f func()) { starts = append(starts, f) }
	})
}

// L7: batches that were not answered within senderPause hold back no others.
func TestBatchThatHangsHoldsBackNoOthers(t *testing.T) {
	inBatches(t, 0, func(b *batchBench) {
		b.batches.pause = senderPause
		release := b.hangs()
		ctx, cancel := context.WithCancel(context.Background())
		var stuck []*sync.WaitGroup
		for range maxSenders - 1 {
			one, _ := b.crowd(ctx, 1, nil)
			stuck = append(stuck, one)
			time.Sleep(senderPause + time.Microsecond)
		}
		b.answersAgain()
		var all sync.WaitGroup
		for i := range 2 {
			time.Sleep(serveTime / 4)
			all.Go(func() {
				for range 100 {
					start := time.Now()
					answers(b.t, strconv.Itoa(i), b.ask(context.Background(), strconv.Itoa(i), nil))
					assert.LessOrEqual(b.t, time.Since(start), 2*serveTime) // a batch that is answered, and its own
				}
			})
		}
		all.Wait()
		cancel()
		for _, one := range stuck {
			one.Wait()
		}
		release()
	})
}

// L7: calls that a sender has left to a batch which hangs then go out in another one.
func TestCallsLeftToABatchThatHangsGoOutInAnotherOne(t *testing.T) {
	inBatches(t, 0, func(b *batchBench) {
		b.batches.pause = serveTime / 2
		first, _ := b.crowd(context.Background(), 1, nil)
		time.Sleep(b.batches.pause + time.Microsecond)
		release := b.hangs()
		ctx, cancel := context.WithCancel(context.Background())
		stuck, _ := b.crowd(ctx, 1, nil)
		b.answersAgain()
		start := time.Now()
		rest, got := b.crowd(context.Background(), 3, nil)
		first.Wait()
		rest.Wait()
		for i, a := range got {
			answers(b.t, strconv.Itoa(i), a)
		}
		assert.LessOrEqual(b.t, time.Since(start), 2*batchWait)
		cancel()
		stuck.Wait()
		release()
	})
}

// Where Redis is far, a call waits little longer than by itself, and never goes out by itself: many that do would fill the
// connection pool.
func TestBatchesOfARedisThatIsFarDelayACallALittle(t *testing.T) {
	inBatches(t, 0, func(b *batchBench) {
		b.batches.pause = senderPause
		const far = 120 * time.Millisecond
		b.fail(func(context.Context) error { time.Sleep(far); return nil })
		var all sync.WaitGroup
		for range 200 {
			time.Sleep(time.Millisecond)
			all.Go(func() {
				start := time.Now()
				answers(b.t, "x", b.ask(context.Background(), "x", nil))
				assert.LessOrEqual(b.t, time.Since(start), far+2*batchWait)
			})
		}
		all.Wait()
	})
}

// The deadline ends a wait for an answer, but not before MinWait; and a wait in the queue.
func TestDeadlineEndsTheWaitForABatch(t *testing.T) {
	inBatches(t, 0, func(b *batchBench) {
		release := b.hangs()
		defer release()
		start := time.Now()
		var all sync.WaitGroup
		for range maxSenders {
			all.Go(func() {
				w := b.wait(context.Background())
				w.Deadline = start.Add(time.Millisecond)
				a := b.Once(w, request("x"))
				assert.Equal(b.t, ErrTimeUp, a.Err)
				assert.True(b.t, a.Abandoned)
				assert.Equal(b.t, MinWait, time.Since(start))
			})
		}
		all.Wait()
	})
}

// Callers leave at the very moment of the answer, before it and after it: each that stays gets the answer to its own
// call, and each outcome has exactly one receiver.
func TestEachCallerGetsTheAnswerToItsOwnCall(t *testing.T) {
	inBatches(t, 0, func(b *batchBench) {
		late := new(orphans)
		const callers, rounds = 100, 20
		var answered, unsent atomic.Int64
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				for round := range rounds {
					key := fmt.Sprint(i, ".", round)
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+(i+round)%4)*serveTime)
					switch a := b.ask(ctx, key, late); {
					case a.Err == nil:
						answered.Add(1)
						assert.Contains(b.t, [][]any{{key}, {alone + key}}, a.Value)
					case !a.Abandoned:
						unsent.Add(1)
					}
					cancel()
				}
			})
		}
		all.Wait()
		assert.NotZero(b.t, answered.Load())
		time.Sleep(time.Second)
		assert.NotEmpty(b.t, late.all(), "nobody has left")
		assert.EqualValues(b.t, callers*rounds-unsent.Load(), answered.Load()+int64(len(late.all())))
		sent := b.fake.tries()
		for _, batch := range b.fake.pipelines() {
			sent += len(batch)
		}
		assert.EqualValues(b.t, callers*rounds-unsent.Load(), sent)
	})
}

// Connections that carry batches have fallen silent, and others work: each of the calls is sent again after ResendTime, not
// as many as may be sent by themselves.
func TestEachCallInABatchThatHangsIsSentAgainSoon(t *testing.T) {
	inBatches(t, 0, func(b *batchBench) {
		release := b.hangs()
		start := time.Now()
		var all sync.WaitGroup
		for range 5 * maxResent {
			all.Go(func() {
				answers(b.t, "x", b.do(request("x")))
				assert.LessOrEqual(b.t, time.Since(start), 2*ResendTime)
			})
		}
		synctest.Wait()
		time.Sleep(10 * batchWait) // all of them are in batches that hang
		b.answersAgain()
		all.Wait()
		release()
	})
}
