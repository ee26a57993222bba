package relock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/testredis"
)

// Requests that come while others are under way go out together, each gets its own
// answer, and whoever cannot wait so long takes its own back.
func TestBatch(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	b := &batcher{rdb: s.Client(func(o *redis.Options) { o.PoolSize = 2 * batchLanes })}
	ask := newScript("-- " + t.Name() + "\nreturn {tonumber(ARGV[1]), 0, 0}") // which the server does not know
	s.Freeze()
	const letters = 3 * batchSize
	var all sync.WaitGroup
	for i := range letters + batchLanes {
		all.Go(func() {
			r, err := parseReply(b.send(context.Background(), call{ask, nil, []any{i}}))
			if err != nil || r[0] != int64(i) {
				t.Errorf("letter %d is answered %v, %v", i, r, err)
			}
		})
	}
	state := func() (lanes, waiting int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.lanes, len(b.waiting)
	}
	testredis.Await(t, "the others wait", soon, func() bool {
		lanes, waiting := state()
		return lanes == batchLanes && waiting == letters
	})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.send(ctx, call{ask, nil, []any{-1}}); !errors.Is(err, context.Canceled) {
		t.Errorf("one that gives up: %v", err)
	}
	if _, waiting := state(); waiting != letters {
		t.Errorf("%d letters, want %d", waiting, letters)
	}
	s.Thaw()
	all.Wait()
	if lanes, waiting := state(); lanes != 0 || waiting != 0 {
		t.Errorf("%d lanes, %d letters are left", lanes, waiting)
	}
}

// Many goroutines on many names cost fewer round trips than requests, and exclude one another.
func TestBatchOfManyNames(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	c := b.client()
	const workers, names, sections = 64, 16, 50
	inside := make([]sync.Mutex, names)
	var all sync.WaitGroup
	for w := range workers {
		l := c.NewLock(fmt.Sprintf("%s-%d", b.name, w%names))
		all.Go(func() {
			ctx := WithOwner(context.Background())
			for range sections {
				b.must(l.Lock(ctx))
				if !inside[w%names].TryLock() {
					t.Error("two inside")
				} else {
					inside[w%names].Unlock()
				}
				b.must(l.Unlock(ctx))
			}
		})
	}
	all.Wait()
}

// Where nobody knows how long a request may take, none waits for another one.
func TestBatchNotWithoutReadTimeout(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	for timeout, want := range map[time.Duration]bool{0: true, -1: false, time.Minute: false} {
		c, err := New(s.Client(func(o *redis.Options) { o.ReadTimeout = timeout }))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.batches != nil; got != want {
			t.Errorf("read timeout %v: batches %v", timeout, got)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
