package locks

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/require"
)

// BenchmarkUncontended measures one goroutine that locks and unlocks, against two bare EVALSHA of the same scripts on
// the same client, in turns. The metric ratio is the rate of relock as a fraction of the bare one: with a context that
// is never canceled, and with one that can be canceled. The metric "apart" is the limit for the latter: two bare
// EVALSHA, of which the first runs on another goroutine, because otherwise its caller could not leave. The default read
// timeout of go-redis makes no difference: see send.Timed.
func BenchmarkUncontended(b *testing.B) {
	s := testredis.Start(b)
	rdb := s.Client(func(o *redis.Options) { o.ReadTimeout = time.Second })
	client, err := New(rdb)
	require.NoError(b, err)
	defer client.Close()
	background := ctx
	cancellable, cancel := context.WithCancel(background)
	defer cancel()

	l := client.NewLock("relock")
	of := locktest.RecordOf(client.NewLock("bare"))
	field := client.ID() + ":1:1"
	acquire := of.Acquire(
		contract.Attempt{Field: field, Lease: 30 * time.Second, HoldCount: 1, Delivery: contract.Defer, Asked: 1 << 63},
	)
	release := of.Release(locktest.Released(field, 0, false))
	for _, script := range []*send.Script{record.Script("lock_acquire"), record.Script("lock_release")} {
		require.NoError(b, rdb.ScriptLoad(background, script.Source()).Err())
	}
	bare := func(c send.Call) func() error {
		return func() error { return rdb.EvalSha(background, c.Script.Digest(), c.Keys, c.Args...).Err() }
	}
	take, free := bare(acquire), bare(release)
	requests := make(chan func())
	defer close(requests)
	go func() {
		for request := range requests {
			request()
		}
	}()
	apart := func() (err error) {
		done := make(chan struct{})
		requests <- func() {
			err = take()
			close(done)
		}
		select {
		case <-done:
		case <-cancellable.Done():
		}
		return err
	}
	lock := func(ctx context.Context) (func() error, func() error) {
		return func() error { return l.Lock(ctx) }, func() error { return l.Unlock(ctx) }
	}
	compare := func(lock, unlock func() error) func(*testing.B) {
		section := func(b *testing.B, lock, unlock func() error) time.Duration {
			start := time.Now()
			if err := lock(); err != nil {
				require.NoError(b, err)
			}
			if err := unlock(); err != nil {
				require.NoError(b, err)
			}
			return time.Since(start)
		}
		return func(b *testing.B) {
			var bare, ours time.Duration
			b.ReportAllocs()
			for b.Loop() {
				bare += section(b, take, free)
				ours += section(b, lock, unlock)
			}
			b.ReportMetric(float64(bare.Nanoseconds())/float64(b.N), "bare-ns/section")
			b.ReportMetric(float64(ours.Nanoseconds())/float64(b.N), "ns/section")
			b.ReportMetric(float64(bare)/float64(ours), "ratio")
			b.ReportMetric(0, "ns/op") // both together, which means nothing
		}
	}
	b.Run("background", compare(lock(background)))
	b.Run("cancellable", compare(lock(cancellable)))
	var h *Hold
	b.Run("hold", compare(
		func() (err error) { h, err = l.Acquire(background); return err },
		func() error { return h.Release(background) },
	))
	b.Run("apart", compare(apart, free))

	defaults, err := New(s.Client())
	require.NoError(b, err)
	defer defaults.Close()
	l = defaults.NewLock("relock")
	b.Run("default read timeout", compare(lock(background)))
}
