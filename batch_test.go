package relock

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
	seen    func(context.Context) // the ctx of each request; or nil
}

const serveTime = time.Millisecond

func inBatchBubble(t *testing.T, f func(b *batchBench)) {
	t.Helper()
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		b := &batchBench{bubbleEngine: e}
		e.batches = newBatches(e.engine, b.serve)
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
	time.Sleep(serveTime)
	all := make([]outcome, len(calls))
	for i, key := range keys {
		if all[i].answer = key; fails != nil && i == 0 {
			all[i].err = fails(ctx)
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
		if b.seen != nil {
			b.seen(ctx)
		}
		if f, ok := ctx.Value(flightKey{}).(*flight); ok {
			answer, err := f.fly(call{keys: []string{key}})
			s, _ := answer.(string)
			return s, err
		}
		time.Sleep(serveTime)
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
	type key struct{}
	values := context.WithValue(context.Background(), key{}, "v")
	inBatchBubble(t, func(b *batchBench) {
		b.seen = func(ctx context.Context) {
			if ctx.Value(key{}) != "v" {
				t.Error("a request has lost the values of its ctx")
			}
		}
		const n = batchFrom + batchesAtOnce + 2*batchMost
		start := time.Now()
		all, answers, errs := b.crowd(values, n, nil)
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
		first := func(batch []string) int { n, _ := strconv.Atoi(batch[0]); return n }
		slices.SortFunc(sent, func(a, b []string) int { return first(a) - first(b) }) // two may pass each other on their way
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
		if took := time.Since(start); took != 2*serveTime {
			t.Errorf("took %v", took)
		}
		synctest.Wait()
		if b.asking.Load() != 0 {
			t.Errorf("%d are asking", b.asking.Load())
		}
		if b.engine.batches.senders != 0 || b.engine.batches.queue != nil || b.atWork() != 0 {
			t.Errorf("%d senders are left, %d in the queue, %d at work", b.engine.batches.senders, len(b.engine.batches.queue), b.atWork())
		}
	})
}

// Who leaves before his request is sent has sent nothing; who leaves later has it tidied up,
// which Close waits for. Who stays in the queue is sent.
func TestBatchesLeave(t *testing.T) {
	inBatchBubble(t, func(b *batchBench) {
		b.engine.batches.from = 0
		release := b.hangs()
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(context.Background())
		var mu sync.Mutex // guards late
		var late []string
		note := func(key string, err error) {
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			late = append(late, key)
		}
		all, _, errs := b.crowd(ctx, batchesAtOnce+3, note)
		stays, stayed, _ := b.crowd(context.Background(), 1, nil)
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
		if n := b.atWork(); n != 2*batchesAtOnce {
			t.Errorf("%d at work, want those who send, and those who tidy up", n)
		}
		mu.Lock()
		if len(late) > 0 {
			t.Errorf("%v: before the answer", late)
		}
		mu.Unlock()
		release()
		stays.Wait()
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(late)
		if want := []string{"0", "1", "2", "3"}; !slices.Equal(late, want) {
			t.Errorf("tidied up %v, want %v", late, want)
		}
		if sent := b.sent(); stayed[0] != "0" || len(sent) != batchesAtOnce+1 || !slices.Equal(sent[batchesAtOnce], []string{"0"}) {
			t.Errorf("%q, sent %v", stayed[0], sent)
		}
	})
}

// Batches that hang hold up nobody else: not those who wait for a batch for longer
// than its time, nor those who come later. Requests that are on them are sent again after
// a while.
func TestBatchesHang(t *testing.T) {
	inBatchBubble(t, func(b *batchBench) {
		b.engine.batches.from = 0
		release := b.hangs()
		var orphans atomic.Int32
		late := func(string, error) { orphans.Add(1) }
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
		if got, err := b.ask(context.Background(), "new", late); got != alone+"new" || err != nil || time.Since(now) > serveTime {
			t.Errorf("%q, %v after %v", got, err, time.Since(now))
		}
		all.Wait()
		for _, err := range errs[:batchesAtOnce] {
			if err != errSilent {
				t.Error(err)
			}
		}
		if took := time.Since(begin); took > 2*resendTime {
			t.Errorf("told after %v", took)
		}
		if n := orphans.Load(); n != 0 {
			t.Errorf("%d requests have an outcome before there is one", n)
		}
		release()
		synctest.Wait()
		time.Sleep(serveTime)
		synctest.Wait()
		if n := orphans.Load(); n != batchesAtOnce {
			t.Errorf("%d requests that nobody waited for have an outcome", n)
		}
		time.Sleep(batchRest)
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
		if took := time.Since(begin); took < resendTime || took > resendTime+resendTime/2 {
			t.Errorf("after %v", took)
		}
		if !b.ailing.Load() {
			t.Error("nobody noted that Redis did not answer")
		}
		b.fails = nil
		ask := func(want string) {
			t.Helper()
			if got, err := b.ask(ctx, "x", nil); got != want || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		}
		ask(alone + "x") // Redis is not well
		b.ailing.Store(false)
		ask(alone + "x") // batches are not
		time.Sleep(batchRest)
		ask("x")
	})
}

// It is noted that Redis did not answer, also if nobody waits for that any more.
func TestBatchesLateError(t *testing.T) {
	inBatchBubble(t, func(b *batchBench) {
		b.engine.batches.from = 0
		silence := errors.New("no answer")
		b.fails = func(context.Context) error { return silence }
		release := b.hangs()
		ctx, cancel := context.WithCancel(context.Background())
		all, _, _ := b.crowd(ctx, 1, func(_ string, err error) {
			if err != silence {
				t.Error(err)
			}
		})
		cancel()
		all.Wait()
		release()
		time.Sleep(2 * serveTime)
		if synctest.Wait(); !b.ailing.Load() {
			t.Error("nobody noted it")
		}
	})
}

// A hook that panics does so for each caller, one that ends its goroutine is an error; neither is the end of batches.
func TestBatchesPanic(t *testing.T) {
	for _, exits := range []bool{false, true} {
		inBatchBubble(t, func(b *batchBench) {
			b.engine.batches.from = 0
			b.fails = func(context.Context) error {
				if exits {
					runtime.Goexit()
				}
				panic("a hook")
			}
			release := b.hangs()
			const n = batchesAtOnce + 3
			ctx, cancel := context.WithCancel(context.Background())
			leaves, _, _ := b.crowd(ctx, 1, func(_ string, err error) {
				if err != errHookExited && panicOf(err) == nil {
					t.Error(err)
				}
			})
			var panics, fails atomic.Int32
			var all sync.WaitGroup
			for range n {
				all.Go(func() {
					_, err := b.ask(context.Background(), "x", nil)
					if p := panicOf(err); p != nil && p.value == "a hook" {
						panics.Add(1)
					}
					if err == errHookExited {
						fails.Add(1)
					}
				})
			}
			synctest.Wait()
			cancel()
			leaves.Wait()
			release()
			all.Wait()
			synctest.Wait()
			if p, f := panics.Load(), fails.Load(); exits && f != n || !exits && p != n || p+f != n {
				t.Errorf("%d panics, %d errors", p, f)
			}
			if b.engine.batches.senders != 0 || b.atWork() != 0 {
				t.Errorf("%d senders, %d at work", b.engine.batches.senders, b.atWork())
			}
			b.fails = nil
			b.ailing.Store(false)
			time.Sleep(batchRest)
			if got, err := b.ask(context.Background(), "x", nil); got != "x" || err != nil {
				t.Errorf("afterwards %q, %v", got, err)
			}
		})
	}
}

// What is made of several requests, or belongs to no one Redis, is not put into batches.
func TestBatchesNot(t *testing.T) {
	inBatchBubble(t, func(b *batchBench) {
		b.engine.batches.from = 0
		for _, p := range []*patience{{parts: true}, {alone: true}} {
			p.ctx, p.closed = context.Background(), b.closed
			_, err, why := answer(b.engine, p, func(ctx context.Context) (any, error) {
				if ctx.Value(flightKey{}) != nil {
					t.Errorf("in a batch: %+v", p)
				}
				return nil, nil
			}, nil)
			if err != nil || why != nil {
				t.Error(err, why)
			}
		}
	})
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	c, err := New(rdb, WithSyncedReplicas(1, time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.engine.batches != nil {
		t.Error("nobody would wait for the replicas of a batch")
	}
}

// Where Redis is far, a request waits little longer than by itself.
func TestBatchesFar(t *testing.T) {
	inBatchBubble(t, func(b *batchBench) {
		b.engine.batches.from = 0
		const far = 120 * time.Millisecond
		b.seen = func(ctx context.Context) {
			if ctx.Value(flightKey{}) == nil {
				time.Sleep(far)
			}
		}
		b.fails = func(context.Context) error { time.Sleep(far); return nil }
		var all sync.WaitGroup
		for range 200 {
			time.Sleep(time.Millisecond)
			all.Go(func() {
				start := time.Now()
				if _, err := b.ask(context.Background(), "x", nil); err != nil || time.Since(start) > far+2*batchPatience {
					t.Errorf("%v after %v", err, time.Since(start))
				}
			})
		}
		all.Wait()
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
				p := &patience{ctx: context.Background(), closed: b.closed, deadline: start.Add(time.Millisecond)}
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
