//go:build go1.25

package relock

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// S3: a request that hung, was sent again over another connection, and runs when its lock was given
// back long ago, leaves nothing behind.
func TestHungRequestThatRunsLateIsUndone(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		l := k.one(b.patientClient(), b.name)
		next := k.rival(b.direct, b.name)
		takes := b.proxy.On(k.takes, testredis.HoldRequest)
		b.must(l.Lock(ctx))
		b.must(l.Unlock(ctx))
		takes.Release()
		<-takes.Fired()
		time.Sleep(50 * time.Millisecond) // the request has gone to Redis by then, or a little later
		testredis.Await(b, "the lock is free again", soon, func() bool { return len(b.records()) == 0 })
		b.tries(next, true)
		b.must(next.Unlock(ctx))
	})
}

// S3: an acquire that is given up while its answer hangs is undone at once, over another connection.
func TestGivenUpAcquireIsUndoneAtOnce(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		l := k.one(b.patientClient(), b.name)
		next := k.rival(b.direct, b.name)
		takes := b.proxy.On(k.takes, testredis.StallReply)
		ctx, cancel := context.WithCancel(context.Background())
		got := make(chan error, 1)
		go func() { got <- l.Lock(ctx) }()
		<-takes.Fired() // Redis has run the request
		cancel()
		b.mustBe(await(b.bench, "Lock returns", got), context.Canceled)
		start := time.Now()
		testredis.Await(b, "the lock is free again", soon, func() bool { return len(b.records()) == 0 })
		assert.Less(b, time.Since(start), aboutASecond)
		b.tries(next, true)
		b.must(next.Unlock(context.Background()))
	})
}

// L7: an Unlock that had to give up goes on in the background until the record is gone.
func TestUnlockGoesOnInTheBackground(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		l := k.one(b.patientClient(), b.name)
		b.must(l.Lock(ctx))
		dropped := b.proxy.On(k.gives, testredis.DropRequest).Times(testredis.Always)
		undone := b.proxy.On(k.undoes, testredis.DropRequest).Times(testredis.Always)
		start := time.Now()
		err := l.Unlock(ctx)
		require.Error(b, err)
		require.NotErrorIs(b, err, ErrNotHeld)
		assert.Less(b, time.Since(start), engine.UnlockTime+2*time.Second)
		require.NotEmpty(b, b.records(), "the record is gone although no release arrived")
		dropped.Release()
		undone.Release()
		testredis.Await(b, "the record is gone", 4*time.Second, func() bool { return len(b.records()) == 0 })
	})
}

// An undo that meets a hook which panics, or ends its goroutine, is sent again: neither the lock nor the
// place of a waiter stays.
func TestUndoIsSentAgainAfterAHook(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(){"panics": func() { panic("a hook") }, "exits": runtime.Goexit} {
		for _, timeout := range []time.Duration{500 * time.Millisecond, 5 * time.Second} {
			t.Run(fmt.Sprint(name, timeout), func(t *testing.T) {
				onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
					if k.red {
						return // its nodes are asked through the Clients beside it
					}
					rdb := b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = timeout })
					var faults atomic.Int64
					rdb.AddHook(processHook(func(send func() error) error {
						if faults.Add(-1) >= 0 {
							fault()
						}
						return send()
					}))
					l := k.one(b.bench.clientOn(rdb), b.name)
					takes := b.proxy.On(k.takes, testredis.DelayReply(300*time.Millisecond))
					ctx, cancel := context.WithCancel(context.Background())
					got := make(chan error, 1)
					go func() { got <- l.Lock(ctx) }()
					<-takes.Fired()
					faults.Store(4)
					cancel()
					b.mustBe(await(b.bench, "Lock returns", got), context.Canceled)
					b.freeSoon()

					faults.Store(0)
					gone := make(chan struct{})
					go func() { // a hook may end it
						defer close(gone)
						defer func() { _ = recover() }()
						b.must(l.Lock(context.Background()))
						faults.Store(3)
						_ = l.Unlock(context.Background())
					}()
					await(b.bench, "Unlock ends", gone)
					b.freeSoon()
				})
			})
		}
	}
}
