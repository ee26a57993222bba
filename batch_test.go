package relock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/testredis"
)

// A batchBench is batches in a bubble, and a server that answers each call with its first key.
type batchBench struct {
	*bubbleEngine
	mu      sync.Mutex // guards below
	batches [][]string // keys, as they were sent
	hang    chan struct{}
	fails   func(context.Context) error
}

const batchTrip = time.Millisecond

func inBatchBubble(t *testing.T, f func(b *batchBench)) {
	t.Helper()
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		b := &batchBench{bubbleEngine: e}
		e.engine.batches = newBatches(e.engine, b.serve)
		f(b)
	})
}

func (b *batchBench) serve(ctx context.Context, calls []call) []outcome {
	var keys []string
	for _, c := range calls {
		keys = append(keys, c.keys[0])
	}
	b.mu.Lock()
	b.batches = append(b.batches, keys)
	hang, fails := b.hang, b.fails
	b.mu.Unlock()
	if hang != nil {
		<-hang
	}
	time.Sleep(batchTrip)
	all := make([]outcome, len(calls))
	for i, key := range keys {
		if fails != nil {
			all[i].err = fails(ctx)
		} else {
			all[i].answer = key
		}
	}
	return all
}

// hangs has the server answer nothing until release is called.
func (b *batchBench) hangs() (release func()) {
	hang := make(chan struct{})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hang = hang
	return func() {
		b.mu.Lock()
		b.hang = nil
		b.mu.Unlock()
		close(hang)
	}
}

func (b *batchBench) sent() [][]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.batches)
}

// alone is what a request answers that went by itself.
const alone = "alone: "

// ask sends a request that answers with key.
func (b *batchBench) ask(ctx context.Context, key string, late func(string, error)) (string, error) {
	p := &patience{ctx: ctx, closed: b.closed}
	value, err, why := answer(b.engine, p, func(ctx context.Context) (string, error) {
		if f, ok := ctx.Value(flightKey{}).(*flight); ok {
			answer, err := f.fly(call{keys: []string{key}})
			s, _ := answer.(string)
			return s, err
		}
		time.Sleep(batchTrip)
		return alone + key, nil
	}, late)
	if why != nil {
		return value, why
	}
	return value, err
}

// crowd asks n times at once, in order, and returns the answers.
func (b *batchBench) crowd(ctx context.Context, n int, late func(string, error)) (all *sync.WaitGroup, answers []string, errs []error) {
	all, answers, errs = new(sync.WaitGroup), make([]string, n), make([]error, n)
	for i := range n {
		all.Go(func() { answers[i], errs[i] = b.ask(ctx, fmt.Sprint(i), late) })
		synctest.Wait()
	}
	return all, answers, errs
}

// Few requests go by themselves, many together, each with its own answer.
func TestBatchesTogether(t *testing.T) {
	inBatchBubble(t, func(b *batchBench) {
		const n = batchFrom + batchesAtOnce + 2*batchMost
		start := time.Now()
		all, answers, errs := b.crowd(context.Background(), n, nil)
		all.Wait()
		for i, got := range answers {
			want := fmt.Sprint(i)
			if i < batchFrom {
				want = alone + want
			}
			if got != want || errs[i] != nil {
				t.Errorf("%q, %v for %d", got, errs[i], i)
			}
		}
		sent := b.sent()
		if len(sent) != batchesAtOnce+2 {
			t.Errorf("batches %v", sent)
		}
		next := batchFrom
		for _, batch := range sent {
			if len(batch) > batchMost {
				t.Errorf("%d in a batch", len(batch))
			}
			for _, key := range batch {
				if key != fmt.Sprint(next) {
					t.Errorf("%s was sent where it was the turn of %d", key, next)
				}
				next++
			}
		}
		if took := time.Since(start); took != 2*batchTrip {
			t.Errorf("took %v", took)
		}
		synctest.Wait()
		if b.engine.batches.senders != 0 || b.engine.batches.queue != nil || b.working.Load() != 0 {
			t.Errorf("%d senders are left, %d in the queue, %d at work", b.engine.batches.senders, len(b.engine.batches.queue), b.working.Load())
		}
	})
}

// Who leaves before his request is sent has sent nothing; who leaves later has it tidied up.
func TestBatchesLeave(t *testing.T) {
	inBatchBubble(t, func(b *batchBench) {
		b.engine.batches.from = 0
		release := b.hangs()
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(context.Background())
		var mu sync.Mutex // guards late
		var late []string
		all, _, errs := b.crowd(ctx, batchesAtOnce+3, func(key string, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			late = append(late, key)
		})
		begin := time.Now()
		cancel(why)
		all.Wait()
		for i, err := range errs {
			if !errors.Is(err, why) || !errors.Is(err, context.Canceled) {
				t.Errorf("%d: %v", i, err)
			}
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("left after %v", took)
		}
		stays, _, _ := b.crowd(context.Background(), 1, nil)
		if len(late) > 0 {
			t.Errorf("%v: before the answer", late)
		}
		release()
		stays.Wait()
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(late)
		if want := []string{"0", "1", "2", "3"}; !slices.Equal(late, want) {
			t.Errorf("tidied up %v, want %v", late, want)
		}
		if sent := b.sent(); len(sent) != batchesAtOnce+1 || !slices.Equal(sent[batchesAtOnce], []string{"0"}) {
			t.Errorf("sent %v", sent)
		}
	})
}

// Batches that hang hold up nobody else: not those who wait for a batch for longer
// than its time, nor those who come later. Who is on them is told after a while, and
// what becomes of that request is nobody's.
func TestBatchesHang(t *testing.T) {
	inBatchBubble(t, func(b *batchBench) {
		b.engine.batches.from = 0
		release := b.hangs()
		late := func(key string, err error) { t.Errorf("tidied up %q, %v", key, err) }
		begin := time.Now()
		all, answers, errs := b.crowd(context.Background(), batchesAtOnce+3, late)
		time.Sleep(2 * batchPatience)
		synctest.Wait()
		for i, got := range answers[batchesAtOnce:] {
			if got != alone+fmt.Sprint(batchesAtOnce+i) {
				t.Errorf("%q, %v for %d", got, errs[batchesAtOnce+i], batchesAtOnce+i)
			}
		}
		now := time.Now()
		if got, err := b.ask(context.Background(), "new", late); got != alone+"new" || err != nil || time.Since(now) > batchTrip {
			t.Errorf("%q, %v after %v", got, err, time.Since(now))
		}
		all.Wait()
		for _, err := range errs[:batchesAtOnce] {
			if err != errSilent {
				t.Error(err)
			}
		}
		if took := time.Since(begin); took > 3*unlockTime {
			t.Errorf("told after %v", took)
		}
		release()
		time.Sleep(2 * batchTrip) // they are back
		synctest.Wait()
		b.ailing.Store(false)
		all, answers, _ = b.crowd(context.Background(), 1, late)
		if all.Wait(); answers[0] != "0" {
			t.Errorf("afterwards: %q", answers[0])
		}
	})
}

// One batch that hangs leaves the others to everybody.
func TestBatchesOneHangs(t *testing.T) {
	inBatchBubble(t, func(b *batchBench) {
		b.engine.batches.from = 0
		release := b.hangs()
		ctx, cancel := context.WithCancel(context.Background())
		stuck, _, _ := b.crowd(ctx, 1, nil)
		b.mu.Lock()
		b.hang = nil // for those to come
		b.mu.Unlock()
		all, answers, _ := b.crowd(context.Background(), 100, nil)
		all.Wait()
		for i, got := range answers {
			if got != fmt.Sprint(i) {
				t.Errorf("%q for %d", got, i)
			}
		}
		cancel()
		stuck.Wait()
		release()
	})
}

// A batch has a time limit of its own, which is no caller's, and no caller's values.
func TestBatchesLimit(t *testing.T) {
	inBatchBubble(t, func(b *batchBench) {
		b.engine.batches.from = 0
		type key struct{}
		ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), key{}, "v"), time.Hour)
		defer cancel()
		b.fails = func(ctx context.Context) error {
			if ctx.Value(key{}) != nil {
				t.Error("it has the values of a caller")
			}
			<-ctx.Done()
			return fmt.Errorf("dial: %w", ctx.Err())
		}
		begin := time.Now()
		_, err := b.ask(ctx, "x", nil)
		if err == nil || errors.Is(err, context.DeadlineExceeded) || !transient(err) {
			t.Error(err)
		}
		if took := time.Since(begin); took < unlockTime || took > unlockTime+unlockTime/2 {
			t.Errorf("after %v", took)
		}
		if !b.ailing.Load() {
			t.Error("nobody noted that Redis did not answer")
		}
		b.fails = nil
		if got, err := b.ask(ctx, "x", nil); got != alone+"x" || err != nil {
			t.Errorf("%q, %v while Redis is not well", got, err)
		}
	})
}

// The time of TryLock ends a wait in the queue, and one for an answer.
func TestBatchesTimeUp(t *testing.T) {
	inBatchBubble(t, func(b *batchBench) {
		b.engine.batches.from = 0
		release := b.hangs()
		defer release()
		start := time.Now()
		var all sync.WaitGroup
		for range batchesAtOnce {
			all.Go(func() {
				p := &patience{ctx: context.Background(), closed: b.closed, deadline: start.Add(answerTime)}
				_, err, why := answer(b.engine, p, func(ctx context.Context) (any, error) {
					return ctx.Value(flightKey{}).(*flight).fly(call{keys: []string{"x"}})
				}, nil)
				if err != nil || why != errTimeUp || time.Since(start) != answerTime {
					t.Errorf("%v, %v after %v", err, why, time.Since(start))
				}
			})
		}
		all.Wait()
	})
}

// A hook that refuses a pipeline is the error of all that was in it.
func TestBatchesRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	rdb := redis.NewClient(&redis.Options{Addr: b.addr})
	t.Cleanup(func() { _ = rdb.Close() })
	refused := errors.New("refused by a hook")
	rdb.AddHook(pipelineHook(func(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
		return func(context.Context, []redis.Cmder) error { return refused }
	}))
	c := b.clientOn(rdb)
	c.engine.batches.from = 0
	if err := c.NewLock(b.name).Lock(context.Background()); !errors.Is(err, refused) {
		t.Error(err)
	}
}

type pipelineHook func(redis.ProcessPipelineHook) redis.ProcessPipelineHook

func (pipelineHook) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (pipelineHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h pipelineHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return h(next)
}

// Many goroutines on many names need a pipeline for many sections, and exclude each other.
func TestBatchesOnRedis(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { _ = rdb.Close() })
		var pipelines, commands atomic.Int64
		rdb.AddHook(pipelineHook(func(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
			return func(ctx context.Context, cmds []redis.Cmder) error {
				pipelines.Add(1)
				commands.Add(int64(len(cmds)))
				return next(ctx, cmds)
			}
		}))
		c, other := b.clientOn(rdb), b.client()
		other.engine.batches.from = 0
		const names, each = 64, 10
		inside := make([]atomic.Int32, names)
		var all sync.WaitGroup
		for _, c := range []*Client{c, other} {
			for i := range names {
				all.Go(func() {
					l, ctx := c.NewLock(fmt.Sprint(b.name, "-", i)), WithOwner(context.Background())
					for range each {
						if err := l.Lock(ctx); err != nil {
							t.Error(err)
							return
						}
						if inside[i].Add(1) != 1 {
							t.Error("two holders")
						}
						inside[i].Add(-1)
						if err := l.Unlock(ctx); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
		}
		all.Wait()
		if p, n := pipelines.Load(), commands.Load(); p == 0 || n < 2*p {
			t.Errorf("%d pipelines with %d commands", p, n)
		}
	})
}
