package interop

// A storm: two services of each language, eight workers each, one name.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

const stormWorkers = 8 // of each service

// stormTime returns how long a storm lasts: RELOCK_STORM, or a short time.
func stormTime(t *testing.T) time.Duration {
	text := os.Getenv("RELOCK_STORM")
	if text == "" {
		return 3 * time.Second
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, "RELOCK_STORM")
	return d
}

const stormPermits = 3

var stormKinds = []string{"lock", "fenced", "fair", "write", "rw", "multi", "red", "semaphore"}

// No update of a counter that every worker reads and writes under the lock is lost, every worker gets its turn, and
// nothing is left. The workers of a semaphore never hold more permits than there are, and in the end all of them are
// free. Only the newest Redisson on a single server has the whole time.
func TestStorm(t *testing.T) {
	if os.Getenv("RELOCK_STORM_WORKER") != "" {
		stormService(t)
		return
	}
	for _, kind := range stormKinds {
		for _, version := range versions {
			t.Run("redisson-"+version+"/"+kind, func(t *testing.T) {
				t.Parallel()
				if k := kind; k == "fenced" && !kindOf(k).has(version) {
					t.Skip("this Redisson does not have it")
				}
				redis, took := single(t), stormTime(t)
				if kind == "red" {
					redis.addrs = append(redis.addrs, single(t).addrs[0], single(t).addrs[0])
				}
				if version != versions[0] {
					took /= 4
				}
				storm(t, version, kind, redis, took)
			})
		}
		if kind == "red" {
			continue
		}
		t.Run("cluster/redisson-"+clusterVersions[0]+"/"+kind, func(t *testing.T) {
			t.Parallel()
			storm(t, clusterVersions[0], kind, cluster(t), stormTime(t)/4)
		})
	}
}

func storm(t *testing.T, version, kind string, redis deployment, took time.Duration) {
	s := setting{version: version, redis: redis}
	services := []*java{startJava(t, s), startJava(t, s)}

	var sections []int64
	var ofService [4]int64
	var mu sync.Mutex // guards sections and ofService
	var all sync.WaitGroup
	note := func(service int, n int64) {
		mu.Lock()
		defer mu.Unlock()
		sections = append(sections, n)
		ofService[service] += n
	}
	for service, j := range services {
		for i := range stormWorkers {
			a := j.start(command{
				Op: "storm", Kind: kind, Name: "storm", Names: []string{"storm-1", "storm-2"}, Thread: i + 1,
				Counter: "counter", MS: took.Milliseconds(), Lease: stormPermits, // which a semaphore reads
			})
			all.Go(func() {
				select {
				case a := <-a:
					assert.True(t, a.OK, "Java: %s", a.Error)
					note(service, a.Number)
				case <-time.After(took + time.Minute):
					assert.Fail(t, "a Java worker hangs")
				}
			})
		}
	}
	for service := 2; service < 4; service++ {
		cmd := exec.Command(os.Args[0], "-test.run=^TestStorm$")
		cmd.Env = append(os.Environ(), "RELOCK_STORM_WORKER="+kind, "RELOCK_STORM="+took.String(),
			"RELOCK_STORM_REDIS="+strings.Join(redis.addrs, ","), "RELOCK_STORM_CLUSTER="+strconv.FormatBool(redis.cluster))
		all.Go(func() {
			out, err := cmd.CombinedOutput()
			assert.NoError(t, err, "a Go service: %s", out)
			for line := range strings.Lines(string(out)) {
				if n, ok := strings.CutPrefix(strings.TrimSpace(line), "sections "); ok {
					k, _ := strconv.ParseInt(n, 10, 64)
					note(service, k)
				}
			}
		})
	}
	all.Wait()

	rdb := redis.client(t)
	counted, err := rdb.Get(ctx, "counter").Int64()
	require.NoError(t, err)
	var sum, least int64 = 0, 1 << 62
	for _, n := range sections {
		sum += n
		least = min(least, n)
	}
	want := sum
	if kind == "semaphore" {
		want = 0
		free, err := rdb.Get(ctx, "storm").Int()
		require.NoError(t, err)
		assert.Equal(t, stormPermits, free, "permits in the end")
	}
	assert.Equal(t, want, counted, "the counter grows by one in each section, and counts the holders of a semaphore")
	assert.Len(t, sections, 4*stormWorkers, "workers")
	assert.NotContains(t, ofService, int64(0), "sections of a service")
	if kind != "semaphore" { // whose waiting processes Java overtakes
		assert.NotZero(t, least, "sections of the worker that had the fewest")
	}
	t.Logf("%d sections in %v, workers have %v", sum, took, sections)
	t.Cleanup(func() {
		if t.Failed() {
			dump(t, rdb, keys(rdb, "storm"))
		}
	})
	if kind == "semaphore" { // its number of permits stays
		return
	}
	// A request that had no answer for a second leaves a tombstone in the waits of the line, which expire like a line.
	testredis.Await(t, "nothing is left", soon+5*time.Minute, func() bool { return len(keys(rdb, "storm")) == 0 })
}

// dump logs the contents of keys, to find the cause of a failure.
func dump(t *testing.T, rdb redis.UniversalClient, keys []string) {
	for _, key := range keys {
		kind, ttl := rdb.Type(ctx, key).Val(), rdb.PTTL(ctx, key).Val()
		var value any
		switch kind {
		case "hash":
			value = rdb.HGetAll(ctx, key).Val()
		case "list":
			value = rdb.LRange(ctx, key, 0, -1).Val()
		case "set":
			value = rdb.SMembers(ctx, key).Val()
		case "zset":
			value = rdb.ZRangeWithScores(ctx, key, 0, -1).Val()
		default:
			value = rdb.Get(ctx, key).Val()
		}
		t.Logf("left: %s (%s, ends in %v): %v", key, kind, ttl, value)
	}
}

// stormService is one of the Go services.
func stormService(t *testing.T) {
	d := deployment{
		addrs:   strings.Split(os.Getenv("RELOCK_STORM_REDIS"), ","),
		cluster: os.Getenv("RELOCK_STORM_CLUSTER") == "true",
	}
	rdb := d.client(t)
	newClient := func(rdb redis.UniversalClient) *relock.Client {
		c, err := relock.New(rdb)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	c := newClient(rdb)
	var l, read relock.Locker
	switch kind := os.Getenv("RELOCK_STORM_WORKER"); kind {
	case "multi":
		l = c.NewMultiLock(c.NewLock("storm-1"), c.NewLock("storm-2"))
	case "red":
		locks := []relock.Locker{c.NewLock("storm")}
		for _, addr := range d.addrs[1:] {
			locks = append(locks, newClient(testredis.Client(t, addr)).NewLock("storm"))
		}
		l = c.NewRedLock(locks...)
	case "rw":
		rw := c.NewRWLock("storm")
		l, read = rw.Write(), rw.Read()
	case "semaphore":
		s := c.NewSemaphore("storm", stormPermits)
		require.NoError(t, s.SetPermits(ctx, stormPermits))
		l = s
	default:
		l = kindOf(kind).lock(c, "storm")
	}
	counter := func(ctx context.Context) (int64, error) {
		n, err := rdb.Get(ctx, "counter").Int64()
		if err == redis.Nil {
			err = nil
		}
		return n, err
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
				var err error
				if read != nil {
					err = read.Do(ctx, func(ctx context.Context) error {
						before, err1 := counter(ctx)
						after, err2 := counter(ctx)
						assert.Equal(t, before, after, "the counter changed under a read lock")
						return errors.Join(err1, err2)
					})
				}
				if err == nil {
					err = l.Do(ctx, func(ctx context.Context) error {
						n++
						if _, is := l.(*relock.Semaphore); is {
							return visit(ctx, t, rdb)
						}
						count, err := counter(ctx)
						if err != nil {
							return err
						}
						return rdb.Set(ctx, "counter", count+1, 0).Err()
					})
				}
				if !assert.NoError(t, err) {
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

// visit counts the holders while the caller is one of them.
func visit(ctx context.Context, t *testing.T, rdb redis.UniversalClient) error {
	now, err := rdb.Incr(ctx, "counter").Result()
	if err != nil {
		return err
	}
	assert.LessOrEqual(t, now, int64(stormPermits), "holders")
	return rdb.Decr(ctx, "counter").Err()
}
