package relock

import (
	"context"
	"testing"
	"time"

	"github.com/relock-go/relock/internal/testredis"
)

// BenchmarkUncontended is one goroutine that locks and unlocks, against two bare
// EVALSHA of the same scripts on the same client, in turns. ratio is the rate of
// relock as a part of the bare one.
func BenchmarkUncontended(b *testing.B) {
	s := testredis.Start(b)
	rdb := s.Client()
	client, err := New(rdb)
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	background := context.Background()
	cancellable, cancel := context.WithCancel(background)
	defer cancel()

	for name, ctx := range map[string]context.Context{"background": background, "cancellable": cancellable} {
		b.Run(name, func(b *testing.B) {
			l := client.NewLock("relock")
			key := []string{"bare"}
			field := client.engine.id + ":1:1"
			channel := prefixName("redisson_lock__channel", "bare")
			for _, script := range []*luaScript{lockAcquire, lockRelease} {
				if err := rdb.ScriptLoad(ctx, script.source).Err(); err != nil {
					b.Fatal(err)
				}
			}
			bare := func() {
				if err := rdb.EvalSha(ctx, lockAcquire.digest, key, field, 30000, 1).Err(); err != nil {
					b.Fatal(err)
				}
				if err := rdb.EvalSha(ctx, lockRelease.digest, key, field, 0, channel, "publish").Err(); err != nil {
					b.Fatal(err)
				}
			}
			section := func() {
				if err := l.Lock(ctx); err != nil {
					b.Fatal(err)
				}
				if err := l.Unlock(ctx); err != nil {
					b.Fatal(err)
				}
			}
			var bareTime, ours time.Duration
			b.ReportAllocs()
			for b.Loop() {
				start := time.Now()
				bare()
				middle := time.Now()
				section()
				bareTime += middle.Sub(start)
				ours += time.Since(middle)
			}
			b.ReportMetric(float64(bareTime.Nanoseconds())/float64(b.N), "bare-ns/section")
			b.ReportMetric(float64(ours.Nanoseconds())/float64(b.N), "relock-ns/section")
			b.ReportMetric(float64(bareTime)/float64(ours), "ratio")
			b.ReportMetric(0, "ns/op") // of both together: says nothing
		})
	}
}

// BenchmarkHandover is 64 goroutines of one process that take turns.
func BenchmarkHandover(b *testing.B) {
	benchmarkCrowd(b, func(c *Client) Locker { return c.NewLock("relock") })
}

// BenchmarkReaders is 64 goroutines of one process that read: with a record that they
// share, and each with one of its own.
func BenchmarkReaders(b *testing.B) {
	read := func(c *Client) Locker { return c.NewRWLock("relock").Read() }
	b.Run("shared", func(b *testing.B) { benchmarkCrowd(b, read) })
	b.Run("each", func(b *testing.B) { benchmarkCrowd(b, read, WithHandoverSlice(0)) })
}

func benchmarkCrowd(b *testing.B, lock func(*Client) Locker, opts ...Option) {
	client, err := New(testredis.Start(b).Client(), opts...)
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	l := lock(client)
	b.SetParallelism(32)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		ctx := WithOwner(context.Background())
		for pb.Next() {
			if err := l.Lock(ctx); err != nil {
				b.Error(err)
				return
			}
			if err := l.Unlock(ctx); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
