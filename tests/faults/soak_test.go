package faults

// The soak: every lock type at full speed for a long time, after which nothing
// has grown and nothing is left. It runs when it is asked for:
//
//	go test -run Soak -soak=30m -timeout=0 -v ./tests/faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var soakTime = flag.Duration("soak", 0, "how long TestSoak runs; 0: not at all")

func TestSoak(t *testing.T) {
	if *soakTime == 0 {
		t.Skip("it runs with -soak=30m")
	}
	ctx := context.Background()
	servers := []*testredis.Server{testredis.Start(t), testredis.Start(t), testredis.Start(t)}
	type service struct {
		clients []*Client
		rdbs    []*redis.Client
	}
	services := make([]service, 4)
	for i := range services {
		for _, s := range servers {
			rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
			c, err := New(rdb)
			require.NoError(t, err)
			services[i].clients, services[i].rdbs = append(services[i].clients, c), append(services[i].rdbs, rdb)
		}
	}
	kinds := map[string]func(s service, name string) []Locker{
		"plain":  func(s service, name string) []Locker { return []Locker{s.clients[0].NewLock(name)} },
		"fenced": func(s service, name string) []Locker { return []Locker{s.clients[0].NewLock(name, Fenced())} },
		"fair":   func(s service, name string) []Locker { return []Locker{s.clients[0].NewFairLock(name)} },
		"rw": func(s service, name string) []Locker {
			rw := s.clients[0].NewRWLock(name)
			return []Locker{rw.Read(), rw.Read(), rw.Read(), rw.Write()}
		},
		"semaphore": func(s service, name string) []Locker { return []Locker{s.clients[0].NewSemaphore(name, 3)} },
		"multi":     func(s service, name string) []Locker { return []Locker{newWideMultiLock(s.clients[0], name)} },
		"red": func(s service, name string) []Locker {
			var all []Locker
			for _, c := range s.clients {
				all = append(all, c.NewLock(name))
			}
			return []Locker{s.clients[0].NewRedLock(all...)}
		},
	}
	var sections, gaveUp, unanswered, failed, over atomic.Int64
	var workers sync.WaitGroup
	for kind, locks := range kinds {
		for _, s := range services {
			for worker := range 4 {
				waitgroup.Go(&workers, func() {
					for n := 0; over.Load() == 0; n++ {
						name := "soak-" + kind
						if n%2 == 1 { // names are used for a while and then no more
							name = fmt.Sprintf("%s-%d", name, n/2%1000)
						}
						for _, l := range locks(s, name) {
							var ok bool
							var err error
							switch (n + worker) % 4 {
							case 0:
								ok, err = l.TryLock(ctx, 5*time.Millisecond, 0)
							case 1:
								ok, err = l.TryLock(ctx, time.Second, time.Minute)
							default:
								err = l.Lock(ctx)
								ok = err == nil
							}
							switch {
							case errors.Is(err, engine.ErrNoAnswer): // the machine is busy
								unanswered.Add(1)
							case err != nil:
								failed.Add(1)
								assert.NoError(t, err)
								return
							case !ok:
								gaveUp.Add(1)
							default:
								sections.Add(1)
								if err := l.Unlock(ctx); err != nil {
									failed.Add(1)
									assert.NoError(t, err)
									return
								}
							}
						}
					}
				})
			}
		}
	}

	type sample struct {
		heap       uint64
		goroutines int
		keys       int64
	}
	var samples []sample
	const count = 30
	for range count {
		time.Sleep(*soakTime / count)
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		s := sample{heap: m.HeapAlloc, goroutines: runtime.NumGoroutine()}
		for _, rdb := range services[0].rdbs {
			s.keys += rdb.DBSize(ctx).Val()
		}
		samples = append(samples, s)
		t.Logf("%d sections, %d gave up, %d unanswered, %d errors: heap %d KiB, %d goroutines, %d keys",
			sections.Load(), gaveUp.Load(), unanswered.Load(), failed.Load(), s.heap>>10, s.goroutines, s.keys)
	}
	over.Store(1)
	workers.Wait()

	// The least of the last third is compared with the most of the second third: anything that grows is above it.
	least := slices.MinFunc(samples[2*count/3:], func(a, b sample) int { return int(a.heap) - int(b.heap) })
	most := slices.MaxFunc(samples[count/3:2*count/3], func(a, b sample) int { return int(a.heap) - int(b.heap) })
	assert.LessOrEqual(t, least.heap, most.heap, "the heap grows, in bytes")
	leastG := slices.MinFunc(samples[2*count/3:], func(a, b sample) int { return a.goroutines - b.goroutines })
	mostG := slices.MaxFunc(samples[count/3:2*count/3], func(a, b sample) int { return a.goroutines - b.goroutines })
	assert.LessOrEqual(t, leastG.goroutines, mostG.goroutines, "goroutines pile up")
	for _, rdb := range services[0].rdbs {
		testredis.Await(t, "nothing is left", locktest.Soon, func() bool {
			keys := rdb.Keys(ctx, "*").Val()
			return !slices.ContainsFunc(
				keys,
				func(key string) bool {
					return !strings.HasPrefix(key, "redisson_lock_token") && !locktest.IsLeftFree(rdb, key)
				},
			)
		})
		testredis.Await(t, "nothing is subscribed", locktest.Soon, func() bool { return len(locktest.OfLocks(rdb.PubSubChannels(ctx, "*").Val())) == 0 })
	}
	for _, s := range services {
		for i, c := range s.clients {
			assert.NoError(t, c.Close())
			_ = s.rdbs[i].Close()
		}
	}
}
