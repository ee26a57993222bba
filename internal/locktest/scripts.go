package locktest

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/lua/link"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// AllScripts returns all scripts that a lock may send.
func AllScripts() []*send.Script { return slices.Collect(maps.Values(record.Scripts)) }

// Library has the files of internal/lua/.
var Library = sync.OnceValue(func() *link.Library { return link.Relock(os.DirFS(filepath.Join(repository(), "internal/lua"))) })

// Ahead is a token counter that the clock has not reached.
const Ahead = 9_000_000_000_000_000

func Run(ctx context.Context, rdb redis.UniversalClient, c send.Call) (send.Reply, error) {
	r, _, err := send.ParseForced(send.NewRedis(rdb, send.Synced{}).Run(ctx, c, false))
	return r, err
}

const (
	VeryMany = "999999999999999999"
	MostBusy = 1500 * time.Millisecond // of the processor, for a call and what follows it
)

func QueueKey(name string) string { return record.PrefixName("redisson_lock_queue", name) }

func AliveKey(name string) string { return record.PrefixName("relock_lock_alive", name) }

func WritersKey(name string) string { return record.PrefixName("relock_rwlock_writers", name) }

// WatchBusy measures the processor time of Redis. check fails if Redis has used more than most of it since the last call
// of check or begin.
func (b *Bench) WatchBusy(most time.Duration) (begin func(), check func(what string)) {
	before := b.Worked()
	return func() { before = b.Worked() }, func(what string) {
		b.Helper()
		used := b.Worked() - before
		if used >= most {
			slowness := max(1, b.slowness())
			b.Logf("Redis was busy for %v, on a processor that is %.1f times as slow as a quiet one", used, slowness)
			used = time.Duration(float64(used) / slowness)
		}
		assert.Less(b, used, most, "Redis was busy: %s", what)
		before = b.Worked()
	}
}

// slowness returns how much more processor time Redis needs for the same work than on a processor that it has
// for itself. Processes that share a core, or a host that is busy, make it larger.
func (b *Bench) slowness() float64 {
	const quiet = 120 * time.Millisecond
	before := b.Worked()
	b.Must(b.Rdb.Eval(context.Background(), "local n = 0 for i = 1, 2e7 do n = n + 1 end return n", nil).Err())
	return float64(b.Worked()-before) / float64(quiet)
}

// Worked returns the processor time that Redis has used.
func (b *Bench) Worked() (d time.Duration) {
	b.Helper()
	var info string
	testredis.Await(b, "Redis says how long it worked", Soon, func() bool {
		text, err := b.Rdb.Info(context.Background(), "cpu").Result()
		info = text
		return err == nil
	})
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			seconds, err := strconv.ParseFloat(value, 64)
			b.Must(err)
			d += time.Duration(seconds * float64(time.Second))
		}
	}
	require.Positive(b, d)
	return d
}
