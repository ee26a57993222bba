package relock

// No script runs for long, whatever it finds in Redis: a script that runs stops all of Redis, and cannot be stopped once it
// has written.

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/testredis"
)

const (
	veryMany = "999999999999999999"
	mostBusy = 1500 * time.Millisecond // of the processor, for a call and what follows it
)

// hostileData are in Redis before a lock of that name is used. A script without bounds runs along them.
var hostileData = []struct {
	name    string
	key     func(name string) string
	put     func(ctx context.Context, p redis.Cmdable, key string)
	kinds   string // that read these data
	refused bool   // every method answers ErrNotALock, and leaves all as it is
}{
	{"a reader of very many levels", sameKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.HSet(ctx, key, "mode", "read", javaThread, veryMany)
		p.Expire(ctx, key, time.Hour)
	}, "lock fair read write", true},
	{"a reader of relock of very many levels", sameKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.HSet(ctx, key, "mode", "read", javaThread+":017", veryMany)
		p.Expire(ctx, key, time.Hour)
	}, "lock fair read write", true},
	{"a reader of too many levels", sameKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.HSet(ctx, key, "mode", "read", javaThread, mostLevels+1)
		p.Expire(ctx, key, time.Hour)
	}, "lock fair read write", true},
	{"a writer of very many levels", sameKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.HSet(ctx, key, "mode", "write", javaThread+":write", veryMany)
		p.Expire(ctx, key, time.Hour)
	}, "lock fair read write", true},
	{"a holder of very many levels", sameKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.HSet(ctx, key, javaThread, veryMany)
		p.Expire(ctx, key, time.Hour)
	}, "lock fair read write", true},
	{"many readers of many levels", sameKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.HSet(ctx, key, "mode", "read")
		p.Eval(ctx, "for i = 1, 9000 do redis.call('hset', KEYS[1], ARGV[1] .. i, 1000) end", []string{key}, javaThread)
		p.Expire(ctx, key, time.Hour)
	}, "read write lock", false},
	{"too many readers", sameKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.HSet(ctx, key, "mode", "read")
		p.Eval(ctx, "for i = 1, 30000 do redis.call('hset', KEYS[1], ARGV[1] .. i, 1) end", []string{key}, javaThread)
		p.Expire(ctx, key, time.Hour)
	}, "read write lock", false},
	{"a writer among too many readers", sameKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.HSet(ctx, key, "mode", "write", javaOther+":write", 1)
		p.Eval(ctx, "for i = 1, 30000 do redis.call('hset', KEYS[1], ARGV[1] .. i, 1) end", []string{key}, javaThread)
		p.Expire(ctx, key, time.Hour)
	}, "read write lock", false},
	{"a very long line", lineKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.HSet(ctx, key, "first", 1, "last", veryMany, "granted", javaThread+":017")
	}, "lock write semaphore", false},
	{"a line at the end of all numbers", lineKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.HSet(ctx, key, "first", "9007199254740992", "last", "9007199254740992")
	}, "lock write semaphore", false},
	{"a line of numbers that are none", lineKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.HSet(ctx, key, "first", "-inf", "last", "nan")
	}, "lock write semaphore", false},
	{"a long line of dead places", lineKey, func(ctx context.Context, p redis.Cmdable, key string) {
		putPlaces(ctx, p, key, 24_000)
	}, "lock write semaphore", false},
	{"a line of too many places", lineKey, func(ctx context.Context, p redis.Cmdable, key string) {
		putPlaces(ctx, p, key, 30_000)
	}, "lock write semaphore", false},
	{"very many tombstones", lineKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.HSet(ctx, key, "over", strings.Repeat(javaThread+":017 9999999999999 ", 30000))
	}, "lock write semaphore", false},
	{"a place that is none", lineKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.HSet(ctx, key, "first", 1, "last", 1, "1", javaThread[:36], javaThread[:36], "a place")
	}, "lock write semaphore", false},
	{"a very long queue", queueKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.Eval(ctx, "for i = 1, 30000 do redis.call('rpush', KEYS[1], ARGV[1] .. i) end", []string{key}, javaThread)
	}, "fair", false},
	{"a waiter that is in the queue very often", queueKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.Eval(ctx, "for i = 1, 19000 do redis.call('rpush', KEYS[1], ARGV[1]) end", []string{key}, javaThread+":01")
	}, "fair", false},
	{"waiters that are in the queue twice", queueKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.Eval(ctx, "for i = 1, 19000 do redis.call('rpush', KEYS[1], ARGV[1] .. math.floor(i / 2)) end", []string{key}, javaThread+":0")
	}, "fair", false},
	{"very many dead waiters", aliveKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.Eval(ctx, "for i = 1, 30000 do redis.call('zadd', KEYS[1], i, ARGV[1] .. i) end", []string{key}, javaThread)
	}, "fair", false},
	{"very many writers that wait", writersKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.Eval(ctx, "for i = 1, 30000 do redis.call('zadd', KEYS[1], 9e12, ARGV[1] .. i) end", []string{key}, javaThread)
	}, "read write", false},
	{"very many permits", permitsKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.Eval(ctx, "for i = 1, 30000 do redis.call('zadd', KEYS[1], 9e12 + i, ARGV[1] .. i) end", []string{key}, javaThread)
		p.Set(ctx, strings.TrimSuffix(strings.TrimPrefix(key, "{"), "}:timeout"), 0, 0)
	}, "semaphore", false},
	{"very many permits that have lapsed", permitsKey, func(ctx context.Context, p redis.Cmdable, key string) {
		p.Eval(ctx, "for i = 1, 30000 do redis.call('zadd', KEYS[1], i, ARGV[1] .. i) end", []string{key}, javaThread)
		p.Set(ctx, strings.TrimSuffix(strings.TrimPrefix(key, "{"), "}:timeout"), 0, 0)
	}, "semaphore", false},
}

func putPlaces(ctx context.Context, p redis.Cmdable, key string, n int) {
	p.HSet(ctx, key, "first", 1, "last", n)
	p.Eval(ctx, `for i = 1, ARGV[1] do
		local client = string.format('00000000-0000-0000-0000-%012d', i)
		redis.call('hset', KEYS[1], i, client, client, i .. ' new hears 30000 0 1 ' .. client .. ':1:01')
	end`, []string{key}, n)
}

func sameKey(name string) string    { return name }
func queueKey(name string) string   { return prefixName("redisson_lock_queue", name) }
func aliveKey(name string) string   { return prefixName("relock_lock_alive", name) }
func writersKey(name string) string { return prefixName("relock_rwlock_writers", name) }

// watchBusy measures how long Redis works. check fails if that was long since it was called before, or since begin was.
func (b *bench) watchBusy() (begin func(), check func(what string)) {
	used := func() (d time.Duration) {
		var info string
		testredis.Await(b, "Redis says how long it worked", soon, func() bool {
			text, err := b.rdb.Info(context.Background(), "cpu").Result()
			info = text
			return err == nil
		})
		for line := range strings.Lines(info) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if name == "used_cpu_user" || name == "used_cpu_sys" {
				seconds, err := strconv.ParseFloat(value, 64)
				b.must(err)
				d += time.Duration(seconds * float64(time.Second))
			}
		}
		return d
	}
	before := used()
	return func() { before = used() }, func(what string) {
		b.Helper()
		now := used()
		require.Positive(b, now)
		assert.Less(b, now-before, mostBusy, "Redis was busy: %s", what)
		before = now
	}
}

// No method of a lock keeps Redis busy for long, whatever the keys of the lock hold. Data that no lock makes are refused.
func TestHostileDataDoNotStopRedis(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	for _, hostile := range hostileData {
		t.Run(hostile.name, func(t *testing.T) {
			b := newBench(t, s.Addr())
			ctx := context.Background()
			key := hostile.key(b.name)
			begin, check := b.watchBusy()
			var before string // what is there
			for _, kind := range strings.Fields(hostile.kinds) {
				c := b.client(WithMaxWakeDelay(50 * time.Millisecond))
				for _, method := range []string{"Lock", "TryLock(0)", "IsLocked", "TTL", "ForceUnlock", "Inspect"} {
					what := kind + " " + method
					if before == "" || !hostile.refused {
						b.must(b.rdb.FlushAll(ctx).Err())
						hostile.put(ctx, b.rdb, key)
						before = b.rdb.Dump(ctx, key).Val() // a late script of the last method may have ended what is not refused
						require.True(t, before != "" || !hostile.refused)
					}
					l, me := kindCalled(kind).one(c, b.name), WithOwner(ctx)
					wait := 100 * time.Millisecond
					if hostile.refused {
						wait = soon
					}
					within, cancel := context.WithTimeout(me, wait)
					begin()
					err := askingMethods[method](within, c, l, b.name)
					cancel()
					if hostile.refused {
						assert.ErrorIs(t, err, ErrNotALock, what)
						assert.Equal(t, before, b.rdb.Dump(ctx, key).Val(), what)
					} else if err != nil && !errors.Is(err, ErrNotALock) {
						assert.ErrorIs(t, err, context.DeadlineExceeded, what)
					}
					if held, _ := l.IsHeld(me); held {
						assert.NoError(t, l.Unlock(me), what)
					}
					check(what)
				}
				assert.NoError(t, c.Close())
				check(kind + " Close")
			}
			b.must(b.rdb.FlushAll(ctx).Err())
		})
	}
}

// Data that come into the record of a lock that is held. The hold goes on, and is given back; the data stay.
func TestHostileDataBesideAHold(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	type setting struct {
		levels   string // of the hold, in Redis
		stranger string // another field of the record
		value    string
	}
	for name, hostile := range map[string]setting{
		"very many levels":                  {levels: veryMany},
		"levels that are no number":         {levels: "many"},
		"levels without end":                {levels: "1e300"},
		"a stranger of very many levels":    {stranger: javaThread, value: veryMany},
		"a stranger of too many levels":     {stranger: javaThread, value: strconv.Itoa(mostLevels + 1)},
		"a stranger that is none":           {stranger: "colour", value: "red"},
		"a writer that is none":             {stranger: "colour:write", value: "red"},
		"a stranger of relock, very many":   {stranger: javaThread + ":017", value: veryMany},
		"both have very many levels":        {levels: veryMany, stranger: javaThread, value: veryMany},
		"a stranger of a number with a dot": {stranger: javaThread, value: "1.5"},
	} {
		for _, k := range recordLocks {
			if k.record != "hash" {
				continue
			}
			t.Run(name+", "+k.name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, s.Addr())
				ctx := context.Background()
				spoil := func() {
					record := b.rdb.HGetAll(ctx, b.name).Val()
					for field := range record {
						if field != "mode" && hostile.levels != "" {
							b.must(b.rdb.HSet(ctx, b.name, field, hostile.levels).Err())
						}
					}
					if hostile.stranger != "" {
						b.must(b.rdb.HSet(ctx, b.name, hostile.stranger, hostile.value).Err())
					}
				}
				left := map[string]string{}
				if hostile.stranger != "" {
					left[hostile.stranger] = hostile.value
				}
				isLeft := func(what string) {
					t.Helper()
					record := b.rdb.HGetAll(ctx, b.name).Val()
					delete(record, "mode")
					assert.Equal(t, left, record, what)
					b.forget()
				}

				// The watchdog renews it, and Unlock gives it back.
				c := b.client(WithWatchdogTimeout(3 * time.Second))
				l, me := k.one(c, b.name), WithOwner(ctx)
				b.must(l.Lock(me))
				spoil()
				guarded, err := l.Guard(me)
				b.must(err)
				if k.name == "read" {
					within, cancel := context.WithTimeout(WithOwner(ctx), 100*time.Millisecond)
					err := k.rival(b.client(WithMaxWakeDelay(20*time.Millisecond)), b.name).Lock(within)
					cancel()
					assert.True(t, errors.Is(err, ErrNotALock) || errors.Is(err, context.DeadlineExceeded), "a writer: %v", err)
				}
				b.must(b.rdb.PExpire(ctx, b.name, 2*time.Second).Err())
				testredis.Await(t, "it is renewed", soon, func() bool { return b.rdb.PTTL(ctx, b.name).Val() > 2*time.Second })
				assert.NoError(t, guarded.Err())
				assert.NoError(t, l.Unlock(me))
				isLeft("Unlock")

				// One level of two.
				b.must(l.Lock(me))
				b.must(l.Lock(me))
				spoil()
				assert.NoError(t, l.Unlock(me))
				assert.NoError(t, l.Unlock(me))
				isLeft("two levels")

				// The lease becomes another one.
				hold := b.holdFor(k.one(c, b.name), time.Minute)
				spoil()
				assert.NoError(t, hold.Extend(ctx, time.Minute))
				assert.NoError(t, hold.Release(ctx))
				isLeft("Extend")
				require.NoError(t, c.Close())
			})
		}
	}
}

// An owner holds the read lock so often and no more: one more level is refused, before anything is sent.
func TestReadersHaveLevelsWithinBounds(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		c, me := b.client(), WithOwner(context.Background())
		l := c.NewRWLock(b.name).Read()
		b.must(l.Lock(me))
		setLevels := func(n int) {
			c.engine.Probe().SetLevels(l.lock, engine.OwnerOf(me), n)
		}
		setLevels(mostLevels - 1)
		b.must(l.Lock(me))
		for _, err := range []error{
			l.Lock(me), second(l.TryLock(me, 0, 0)), l.LockLease(me, time.Minute), second(l.TryLock(me, time.Second, time.Minute)),
			c.NewMultiLock(c.NewLock(b.name+"-other"), l).Lock(me),
		} {
			require.ErrorIs(t, err, ErrInvalid)
			assert.ErrorContains(t, err, "holds the read lock 10000 times already")
		}
		n, err := l.HoldCount(me)
		b.must(err)
		assert.Equal(t, mostLevels, n)
		i := b.inspect(c)
		require.Len(t, i.Holders, 1)
		assert.Equal(t, mostLevels, i.Holders[0].Levels)
		b.must(l.Unlock(me))
		b.must(l.Lock(me))
		setLevels(1)
		b.must(l.Unlock(me))
		assert.ErrorIs(t, l.Unlock(me), ErrNotHeld)
	})
}

// Where there are as many as a script can look at, nobody joins them; nor is it an error.
func TestNobodyJoinsWhatIsFull(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	ctx := context.Background()
	fill := func(b *bench, script string, n int, keys ...string) {
		b.must(b.rdb.Eval(ctx, "for i = 1, ARGV[1] do "+script+" end return 1", keys, n, javaThread, time.Now().Add(time.Hour).UnixMilli()).Err())
	}
	for what, full := range map[string]struct {
		kind  string
		fill  func(b *bench)
		count func(b *bench) int64 // of those that have joined
		leave func(b *bench)       // as one of them does; nil: the lock is held
	}{
		"a queue": {"fair", func(b *bench) {
			fill(b, "redis.call('rpush', KEYS[1], ARGV[2] .. i) redis.call('zadd', KEYS[2], ARGV[3] + i, ARGV[2] .. i)", 20_000,
				queueKey(b.name), prefixName("redisson_lock_timeout", b.name))
		}, func(b *bench) int64 { return int64(b.commandRuns("rpush")) }, nil},
		"a line": {"lock", func(b *bench) {
			b.must(b.rdb.HSet(ctx, b.name, javaOther+":017", 1).Err())
			b.must(b.rdb.Expire(ctx, b.name, time.Hour).Err())
			putPlaces(ctx, b.rdb, lineKey(b.name), 20_001)
		}, func(b *bench) int64 {
			last, err := b.rdb.HGet(ctx, lineKey(b.name), "last").Int64()
			b.must(err)
			return last
		}, nil},
		"a record": {"read", func(b *bench) {
			fill(b, "redis.call('hset', KEYS[1], ARGV[2] .. i, 1)", 10_000, b.name)
			b.must(b.rdb.HSet(ctx, b.name, "mode", "read").Err())
			b.must(b.rdb.Expire(ctx, b.name, time.Hour).Err())
		}, func(b *bench) int64 { return b.rdb.HLen(ctx, b.name).Val() }, func(b *bench) {
			b.must(b.rdb.HDel(ctx, b.name, javaThread+"1").Err())
		}},
	} {
		t.Run(what, func(t *testing.T) {
			b := newBench(t, s.Addr())
			begin, check := b.watchBusy()
			full.fill(b)
			before := full.count(b)
			begin()
			l := kindCalled(full.kind).one(b.client(WithMaxWakeDelay(50*time.Millisecond)), b.name)
			for _, wait := range []time.Duration{0, 300 * time.Millisecond} {
				ok, err := l.TryLock(ctx, wait, 0)
				b.must(err)
				assert.False(t, ok)
				assert.Equal(t, before, full.count(b))
			}
			if full.leave != nil {
				full.leave(b)
				b.tries(l, true)
				b.must(l.Unlock(ctx))
			}
			check(what)
			b.forget()
		})
	}
}

// ForceUnlock gives back all permits, in several requests where there are very many.
func TestForceUnlockGivesBackVeryManyPermits(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	begin, check := b.watchBusy()
	const many = 45_000
	b.must(b.rdb.Set(ctx, b.name, 1, 0).Err())
	b.must(b.rdb.Eval(ctx, "for i = 1, ARGV[1] do redis.call('zadd', KEYS[1], ARGV[3], ARGV[2] .. i) end return 1", []string{permitsKey(b.name)},
		many, javaThread, time.Now().Add(time.Hour).UnixMilli()).Err())
	l := b.client().NewSemaphore(b.name, 5)
	begin()
	freed, err := l.ForceUnlock(ctx)
	b.must(err)
	assert.True(t, freed)
	assert.Equal(t, strconv.Itoa(many+1), b.rdb.Get(ctx, b.name).Val())
	assert.Zero(t, b.rdb.Exists(ctx, permitsKey(b.name)).Val())
	freed, err = l.ForceUnlock(ctx)
	b.must(err)
	assert.False(t, freed)
	check("ForceUnlock")
}

// Each loop of a script has a bound: it counts to a constant, or the comment in front of it says "At most", and names a number, a
// constant of lua/, or what the caller has sent. The same goes for a command that answers all that a key holds. The comment is a claim,
// which TestHostileDataDoNotStopRedis tries.
func TestEveryLoopOfAScriptHasABound(t *testing.T) {
	files, err := luaFiles.ReadDir("lua")
	require.NoError(t, err)
	var all strings.Builder
	for _, f := range files {
		text, err := luaFiles.ReadFile("lua/" + f.Name())
		require.NoError(t, err)
		all.Write(text)
	}
	loops := 0
	for _, f := range files {
		text, err := luaFiles.ReadFile("lua/" + f.Name())
		require.NoError(t, err)
		n, faults := checkLoops(string(text), all.String())
		loops += n
		assert.Empty(t, faults, f.Name())
	}
	assert.Greater(t, loops, 40, "loops that were found")
}

var (
	luaString  = regexp.MustCompile(`'[^']*'`)
	luaLoop    = regexp.MustCompile(`\b(for|while|repeat)\b`)
	countsTo   = regexp.MustCompile(`\bfor \w+ = \d+, (\w+) do\b`)
	claimsMost = regexp.MustCompile(`^ *-- At most (#?\w+)`)
	readsAll   = regexp.MustCompile(`'(hgetall|hkeys|hvals|smembers|keys|hscan|sscan|zscan|scan)'|'lrange', .*, -1\)|'z(rev)?range', .*, -1\b|'hrandfield', [^,]*, [a-z]\w*\b`)
	readsSome  = regexp.MustCompile(`'(zrangebyscore|zrevrangebyscore)'`)
)

// checkLoops returns how many loops and commands that answer all there are in the text of a script, and the lines of those without a
// bound. The constants are defined in all.
func checkLoops(text, all string) (loops int, faults []string) {
	bound := func(name string) bool {
		return name == "#KEYS" || name == "#ARGV" || regexp.MustCompile(`^[1-9]\d*$`).MatchString(name) ||
			regexp.MustCompile(`(?m)^local `+name+` = [1-9]\d*\b`).MatchString(all)
	}
	before := ""
	for line := range strings.Lines(text) {
		code := luaString.ReplaceAllString(line, "''")
		code, _, _ = strings.Cut(code, "--")
		some := readsSome.MatchString(line) && !strings.Contains(line, "'limit'")
		if luaLoop.MatchString(code) || readsAll.MatchString(line) || some {
			loops++
			to, claim := countsTo.FindStringSubmatch(code), claimsMost.FindStringSubmatch(before)
			if !(to != nil && bound(to[1]) || claim != nil && bound(claim[1])) {
				faults = append(faults, strings.TrimSpace(line))
			}
		}
		before = line
	}
	return loops, faults
}

func TestLoopsWithoutABoundAreFound(t *testing.T) {
	const all = "local most_holds = 10000 -- fields\nlocal n = redis.call('hlen', lock)\n"
	for _, good := range []string{
		"for i = 1, 8 do\n",
		"for i = 1, most_holds do\n",
		"-- At most most_holds.\nfor i = 1, #list, 2 do\n",
		"    -- At most #KEYS.\n    while next(list) do\n",
		"-- At most 3.\nfor _, x in ipairs(list) do\n",
		"-- At most most_holds.\nlocal all = redis.call('hgetall', lock)\n",
		"local some = redis.call('zrangebyscore', key, '-inf', '+inf', 'limit', 0, 8)\n",
		"local some = redis.call('hrandfield', lock, 8)\n",
		"-- waits for all\nreturn 'for'\n",
	} {
		_, faults := checkLoops(good, all)
		assert.Empty(t, faults, good)
	}
	for _, bad := range []string{
		"for i = 1, levels do\n",
		"for i = 1, n do\n",
		"for i = 1, #list, 2 do\n",
		"-- At most n.\nfor i = 1, #list, 2 do\n",
		"-- At most most_fields.\nfor i = 1, #list, 2 do\n",
		"-- At most most_holds.\n\nfor i = 1, #list, 2 do\n",
		"while true do\n",
		"repeat\n",
		"if x then for _, y in ipairs(x) do z(y) end end\n",
		"local all = redis.call('hgetall', lock)\n",
		"local all = redis.call('lrange', q.waiters, 0, -1)\n",
		"local all = redis.call('zrangebyscore', key, '-inf', '+inf')\n",
		"local all = redis.call('hrandfield', lock, fields, 'withvalues')\n",
	} {
		_, faults := checkLoops(bad, all)
		assert.Len(t, faults, 1, bad)
	}
}
