package interop

// A storm: two services of each language, eight workers each, one name.

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

const stormWorkers = 8 // of each service

// stormTime is how long a storm lasts: RELOCK_STORM, or a little.
func stormTime(t *testing.T) time.Duration {
	text := os.Getenv("RELOCK_STORM")
	if text == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("RELOCK_STORM: %v", err)
	}
	return d
}

// No update of a counter that everybody reads and writes under the lock is lost,
// every worker gets its turn, and nothing is left.
func TestStorm(t *testing.T) {
	if os.Getenv("RELOCK_STORM_WORKER") != "" {
		stormService(t)
		return
	}
	for _, version := range versions {
		for _, kind := range []string{"lock", "fenced", "fair", "write", "multi"} {
			t.Run("redisson-"+version+"/"+kind, func(t *testing.T) {
				if kind != "multi" && !kindOf(kind).has(version) {
					t.Skip("this Redisson does not have it")
				}
				storm(t, version, kind)
			})
		}
	}
}

func storm(t *testing.T, version, kind string) {
	server := testredis.Start(t)
	s := setting{version: version, addrs: []string{server.Addr()}}
	services := []*java{startJava(t, s), startJava(t, s)}
	took := stormTime(t)

	var sections []int64
	var mu sync.Mutex // guards sections
	var all sync.WaitGroup
	note := func(n int64) {
		mu.Lock()
		defer mu.Unlock()
		sections = append(sections, n)
	}
	for _, j := range services {
		for i := range stormWorkers {
			a := j.start(command{
				Op: "storm", Kind: kind, Name: "storm", Names: []string{"storm-1", "storm-2"}, Thread: i + 1,
				Counter: "counter", MS: took.Milliseconds(),
			})
			all.Go(func() {
				select {
				case a := <-a:
					if !a.OK {
						t.Errorf("Java: %s", a.Error)
					}
					note(a.Number)
				case <-time.After(took + time.Minute):
					t.Error("a Java worker hangs")
				}
			})
		}
	}
	for range 2 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestStorm$")
		cmd.Env = append(os.Environ(), "RELOCK_STORM_WORKER="+kind, "RELOCK_STORM="+took.String(), "RELOCK_STORM_ADDR="+server.Addr())
		all.Go(func() {
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("a Go service: %v\n%s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				if n, ok := strings.CutPrefix(strings.TrimSpace(line), "sections "); ok {
					k, _ := strconv.ParseInt(n, 10, 64)
					note(k)
				}
			}
		})
	}
	all.Wait()

	ctx := context.Background()
	rdb := server.Client()
	counted, err := rdb.Get(ctx, "counter").Int64()
	if err != nil {
		t.Fatal(err)
	}
	var sum, least int64 = 0, 1 << 62
	for _, n := range sections {
		sum += n
		least = min(least, n)
	}
	if counted != sum || len(sections) != 4*stormWorkers || least == 0 {
		t.Errorf("%d counted in %d sections of %d workers, the least %d", counted, sum, len(sections), least)
	}
	t.Logf("%d sections in %v, workers have %v", sum, took, sections)
	testredis.Await(t, "nothing is left", soon, func() bool {
		for _, key := range rdb.Keys(ctx, "*").Val() {
			if key != "counter" && !strings.HasPrefix(key, "redisson_lock_token") {
				return false
			}
		}
		return true
	})
}

// stormService is one of the Go services.
func stormService(t *testing.T) {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv("RELOCK_STORM_ADDR")})
	defer rdb.Close()
	c, err := relock.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l := relock.Locker(c.NewMultiLock(c.NewLock("storm-1"), c.NewLock("storm-2")))
	if kind := os.Getenv("RELOCK_STORM_WORKER"); kind != "multi" {
		l = kindOf(kind).lock(c, "storm")
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	var mu sync.Mutex // guards out
	var all sync.WaitGroup
	end := time.Now().Add(stormTime(t))
	for range stormWorkers {
		all.Go(func() {
			n := 0
			for time.Now().Before(end) {
				err := l.Do(ctx, func(ctx context.Context) error {
					count, err := rdb.Get(ctx, "counter").Int64()
					if err != nil && err != redis.Nil {
						return err
					}
					n++
					return rdb.Set(ctx, "counter", count+1, 0).Err()
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintf(out, "sections %d\n", n)
		})
	}
	all.Wait()
}
