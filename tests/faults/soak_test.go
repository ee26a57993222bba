package faults

// The soak: every lock type at full speed for a long time, after which nothing has grown and nothing is left. Storms keep
// a history, so they cannot tell what grows. It runs when it is asked for:
//
//	go test ./tests/faults -run Soak -soak=30m -timeout=0 -v

import (
	"errors"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
)

var soakTime = flag.Duration("soak", 0, "how long TestSoak runs; 0: not at all")

func TestSoak(t *testing.T) {
	if *soakTime == 0 {
		t.Skip("it runs with -soak=30m")
	}
	b := locktest.NewFaultBenchOn(t, testredis.Start(t))
	var sections, gaveUp, unanswered, failed atomic.Int64
	var over atomic.Bool
	var workers sync.WaitGroup
	for range 4 {
		service := b.Client()
		for _, kind := range locktest.FaultLocks {
			for worker := range 4 {
				waitgroup.Go(&workers, func() {
					for n := 0; !over.Load(); n++ {
						name := b.LockName + kind.Name
						if n%2 == 1 { // names are used for a while and then no more
							name = fmt.Sprintf("%s-%d", name, n/2%1000)
						}
						l := kind.One(service, name)
						if n%5 == 0 {
							l = kind.Rival(service, name)
						}
						ok, err := true, error(nil)
						switch (n + worker) % 4 {
						case 0:
							ok, err = l.TryLock(ctx, 5*time.Millisecond, 0)
						case 1:
							ok, err = l.TryLock(ctx, time.Second, time.Minute)
						default:
							err = l.Lock(ctx)
						}
						switch {
						case errors.Is(err, engine.ErrNoAnswer): // the machine is busy
							unanswered.Add(1)
							continue
						case err == nil && !ok:
							gaveUp.Add(1)
							continue
						case err == nil:
							sections.Add(1)
							err = l.Unlock(ctx)
						}
						if !assert.NoError(t, err, kind.Name) {
							failed.Add(1)
							return
						}
					}
				})
			}
		}
	}

	const count = 30
	var heaps, goroutines []int64
	for range count {
		time.Sleep(*soakTime / count)
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		heaps, goroutines = append(heaps, int64(m.HeapAlloc)), append(goroutines, int64(runtime.NumGoroutine()))
		t.Logf("%d sections, %d gave up, %d unanswered, %d errors: heap %d KiB, %d goroutines, %d keys", sections.Load(),
			gaveUp.Load(), unanswered.Load(), failed.Load(), m.HeapAlloc>>10, runtime.NumGoroutine(), b.Rdb.DBSize(ctx).Val())
	}
	over.Store(true)
	workers.Wait()

	// The least of the last third is compared with the most of the second third: anything that grows is above it.
	for what, samples := range map[string][]int64{"the heap grows, in bytes": heaps, "goroutines pile up": goroutines} {
		least, most := slices.Min(samples[2*count/3:]), slices.Max(samples[count/3:2*count/3])
		assert.LessOrEqual(t, least, most, what)
	}
	// At its end the bench checks that no key and no subscription is left.
}
