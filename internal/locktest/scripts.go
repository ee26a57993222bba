package locktest

// The scripts: how tests run them by themselves, and the data that they find.

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// AllScripts returns all scripts that a lock may send.
func AllScripts() []*send.Script { return slices.Collect(maps.Values(record.Scripts)) }

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
	b.Must(b.Rdb.Eval(ctx, "local n = 0 for i = 1, 2e7 do n = n + 1 end return n", nil).Err())
	return float64(b.Worked()-before) / float64(quiet)
}

// Worked returns the processor time that Redis has used.
func (b *Bench) Worked() (d time.Duration) {
	b.Helper()
	var info string
	testredis.Await(b, "Redis says how long it worked", Soon, func() bool {
		text, err := b.Rdb.Info(ctx, "cpu").Result()
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

// A ReleaseKind is a script that releases a lock for which others wait.
type ReleaseKind struct {
	Name string
	Mine func(c *relock.Client, name string) contract.Record
	Wait func(c *relock.Client, name string) contract.Record // the same lock, for those that wait

	// Needs are the commands without which the script cannot release a lock for which nobody waits.
	Needs string
}

func RecordOfLock(c *relock.Client, name string) contract.Record { return RecordOf(c.NewLock(name)) }

func RecordOfFair(c *relock.Client, name string) contract.Record {
	return RecordOf(c.NewFairLock(name))
}

func RecordOfReader(c *relock.Client, name string) contract.Record {
	return RecordOf(c.NewRWLock(name).Read())
}

func RecordOfWriter(c *relock.Client, name string) contract.Record {
	return RecordOf(c.NewRWLock(name).Write())
}

func RecordOfSemaphore(c *relock.Client, name string) contract.Record {
	return RecordOf(c.NewSemaphore(name, 1))
}

// A ReleaseBench is what a test of a release looks at.
type ReleaseBench struct {
	*Bench
	Kind            ReleaseKind
	Me, Alive, Dead *relock.Client
}

func AttemptOf(c *relock.Client) contract.Attempt {
	return contract.Attempt{Field: c.ID() + ":1:1", Lease: time.Minute, HoldCount: 1, Delivery: contract.Push, Asked: 1}
}

func (b *ReleaseBench) Eval(rdb *redis.Client, c send.Call) any {
	b.Helper()
	answer, err := rdb.Eval(ctx, c.Script.Source(), c.Keys, c.Args...).Result()
	if err != nil {
		return err
	}
	return answer
}

// Does runs a script that must not fail.
func (b *ReleaseBench) Does(c send.Call, first int64) {
	b.Helper()
	r, err := Run(ctx, b.Rdb, c)
	b.Must(err)
	require.Equal(b, first, r[0], r)
}

// Subscribes returns a subscription to the channel on which c is granted the lock.
func (b *ReleaseBench) Subscribes(c *relock.Client) *redis.PubSub {
	s := b.Rdb.Subscribe(ctx, b.Kind.Wait(c, b.LockName).Grants(AttemptOf(c)))
	_, err := s.Receive(ctx)
	b.Must(err)
	return s
}

func NewReleaseBench(t *testing.T, s *testredis.Server, kind ReleaseKind) *ReleaseBench {
	b := &ReleaseBench{Bench: NewBench(t, s.Addr()), Kind: kind}
	b.Me, b.Alive, b.Dead = b.Client(), b.Client(), b.Client()
	hears := b.Subscribes(b.Alive)
	t.Cleanup(func() {
		b.Must(hears.Close())
		b.Must(b.Rdb.FlushDB(ctx).Err())
	})
	return b
}

// The part of Java: KEYS lock, queue, timeouts; ARGV field, channel prefix, lease, worth, now.
const JavaEvict = `
local function evict(now)
	while true do
		local head = redis.call('lindex', KEYS[2], 0)
		if not head then return end
		local timeout = redis.call('zscore', KEYS[3], head)
		if not timeout or tonumber(timeout) > now then return end
		redis.call('zrem', KEYS[3], head)
		redis.call('lpop', KEYS[2])
	end
end
evict(tonumber(ARGV[5]))
local me, now, worth = ARGV[1], tonumber(ARGV[5]), tonumber(ARGV[4])
`

const JavaAcquire = JavaEvict + `
local head = redis.call('lindex', KEYS[2], 0)
if redis.call('exists', KEYS[1]) == 0 and (not head or head == me) then
	redis.call('lpop', KEYS[2])
	redis.call('zrem', KEYS[3], me)
	for _, w in ipairs(redis.call('zrange', KEYS[3], 0, -1)) do
		redis.call('zincrby', KEYS[3], -worth, w)
	end
	redis.call('hset', KEYS[1], me, 1)
	redis.call('pexpire', KEYS[1], ARGV[3])
	return 1
end
if redis.call('zscore', KEYS[3], me) then return 0 end
local last = redis.call('lindex', KEYS[2], -1)
local base = math.max(redis.call('pttl', KEYS[1]), 0)
if last and last ~= me and redis.call('zscore', KEYS[3], last) then
	base = tonumber(redis.call('zscore', KEYS[3], last)) - now
end
if redis.call('zadd', KEYS[3], base + worth + now, me) == 1 then
	redis.call('rpush', KEYS[2], me)
end
return 0`

const JavaGiveUp = JavaEvict + `
local found = false
for _, w in ipairs(redis.call('lrange', KEYS[2], 0, -1)) do
	if found then redis.call('zincrby', KEYS[3], -worth, w) end
	if w == me then found = true end
end
redis.call('zrem', KEYS[3], me)
redis.call('lrem', KEYS[2], 0, me)
return 1`

// AskingMethods are the methods that ask Redis about a lock that the caller does not hold.
var AskingMethods = map[string]func(ctx context.Context, c *relock.Client, l relock.Locker, name string) error{
	"Lock": func(ctx context.Context, _ *relock.Client, l relock.Locker, _ string) error { return l.Lock(ctx) },
	"LockLease": func(ctx context.Context, _ *relock.Client, l relock.Locker, _ string) error {
		return l.LockLease(ctx, time.Minute)
	},
	"TryLock(0)": func(ctx context.Context, _ *relock.Client, l relock.Locker, _ string) error {
		return Second(l.TryLock(ctx, 0, 0))
	},
	"TryLock": func(ctx context.Context, _ *relock.Client, l relock.Locker, _ string) error {
		return Second(l.TryLock(ctx, time.Hour, time.Minute))
	},
	"Do": func(ctx context.Context, _ *relock.Client, l relock.Locker, _ string) error {
		return l.Do(ctx, func(context.Context) error { return nil })
	},
	"TryDo": func(ctx context.Context, _ *relock.Client, l relock.Locker, _ string) error {
		return Second(l.TryDo(ctx, time.Hour, func(context.Context) error { return nil }))
	},
	"IsLocked": func(ctx context.Context, _ *relock.Client, l relock.Locker, _ string) error {
		return Second(l.IsLocked(ctx))
	},
	"TTL": func(ctx context.Context, _ *relock.Client, l relock.Locker, _ string) error {
		return Second(l.TTL(ctx))
	},
	"ForceUnlock": func(ctx context.Context, _ *relock.Client, l relock.Locker, _ string) error {
		return Second(l.ForceUnlock(ctx))
	},
	"Inspect": func(ctx context.Context, c *relock.Client, _ relock.Locker, name string) error {
		return Second(c.Inspect(ctx, name))
	},
}
