package relock

// Keys that hold other data than a lock.
//
// Rules: data that no lock has written are refused by every method that asks Redis, with a text that names the key, and
// are not touched, also where they replace the record of a lock that is held or awaited. Every record that Redisson or
// relock writes is a lock.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const aUUID = "550e8400-e29b-41d4-a716-446655440000"

// foreignValues write data under a key that no lock writes. Each has the text of its error.
var foreignValues = map[string]struct {
	put  func(ctx context.Context, rdb redis.Cmdable, key string) error
	says string
}{
	"string": {func(ctx context.Context, rdb redis.Cmdable, key string) error {
		return rdb.Set(ctx, key, "five", 0).Err()
	}, "holds a string that does not belong to a lock of this type"},
	"list": {func(ctx context.Context, rdb redis.Cmdable, key string) error {
		return rdb.RPush(ctx, key, "a", "b").Err()
	}, "holds a list that does not belong to a lock of this type"},
	"set": {func(ctx context.Context, rdb redis.Cmdable, key string) error {
		return rdb.SAdd(ctx, key, "a", "b").Err()
	}, "holds a set that does not belong to a lock of this type"},
	"zset": {func(ctx context.Context, rdb redis.Cmdable, key string) error {
		return rdb.ZAdd(ctx, key, redis.Z{Score: 1, Member: "a"}).Err()
	}, "holds a zset that does not belong to a lock of this type"},
	"stream": {func(ctx context.Context, rdb redis.Cmdable, key string) error {
		return rdb.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{"a", 1}}).Err()
	}, "holds a stream that does not belong to a lock of this type"},
	"one number":                         foreignHash(`"total"`, "total", 5),
	"numbers":                            foreignHash(``, "total", 5, "lines", 3),
	"texts":                              foreignHash(``, "name", "bob", "mail", "b@x"),
	"a UUID":                             foreignHash(aUUID, aUUID, 1),
	"a UUID and a name":                  foreignHash(aUUID+":bob", aUUID+":bob", 1),
	"a hold with no levels":              foreignHash(aUUID+":7", aUUID+":7", 0),
	"a hold with a text":                 foreignHash(aUUID+":7", aUUID+":7", "yes"),
	"two holds of a lock that holds one": foreignHash(aUUID+":", aUUID+":7", 1, aUUID+":8", 2),
	"a hold and data":                    foreignHash(``, aUUID+":7", 1, "total", 5),
	"a strange mode":                     foreignHash(`"mode"`, "mode", "dark", "size", 5),
	"a mode and data":                    foreignHash(`"theme"`, "mode", "read", "theme", 1),
	"a mode, a hold and data":            foreignHash(`"theme"`, "mode", "write", aUUID+":7:write", 1, "theme", 1),
	"a mode":                             foreignHash(`"mode"`, "mode", "read"),
	"a field that is no text":            foreignHash(`"a\n\x00\"\\ b`, "a\n\x00\"\\ b", 1),
	"an empty field":                     foreignHash(`""`, "", 5),
	"an empty field of a writer":         foreignHash(`":write"`, ":write", 5),
	"a long field":                       foreignHash(`… (5000 bytes)`, strings.Repeat("x", 5000), 1),
}

func foreignHash(field string, pairs ...any) struct {
	put  func(ctx context.Context, rdb redis.Cmdable, key string) error
	says string
} {
	says := "holds a hash that is not a lock (field "
	if strings.HasPrefix(field, `"`) {
		says += field
	}
	return struct {
		put  func(ctx context.Context, rdb redis.Cmdable, key string) error
		says string
	}{func(ctx context.Context, rdb redis.Cmdable, key string) error {
		return rdb.HSet(ctx, key, pairs...).Err()
	}, says}
}

// askingMethods are the methods that ask Redis about a lock that the caller does not hold.
var askingMethods = map[string]func(ctx context.Context, c *Client, l Locker, name string) error{
	"Lock": func(ctx context.Context, _ *Client, l Locker, _ string) error { return l.Lock(ctx) },
	"LockLease": func(ctx context.Context, _ *Client, l Locker, _ string) error {
		return l.LockLease(ctx, time.Minute)
	},
	"TryLock(0)": func(ctx context.Context, _ *Client, l Locker, _ string) error {
		return second(l.TryLock(ctx, 0, 0))
	},
	"TryLock": func(ctx context.Context, _ *Client, l Locker, _ string) error {
		return second(l.TryLock(ctx, time.Hour, time.Minute))
	},
	"Do": func(ctx context.Context, _ *Client, l Locker, _ string) error {
		return l.Do(ctx, func(context.Context) error { return nil })
	},
	"TryDo": func(ctx context.Context, _ *Client, l Locker, _ string) error {
		return second(l.TryDo(ctx, time.Hour, func(context.Context) error { return nil }))
	},
	"IsLocked":    func(ctx context.Context, _ *Client, l Locker, _ string) error { return second(l.IsLocked(ctx)) },
	"TTL":         func(ctx context.Context, _ *Client, l Locker, _ string) error { return second(l.TTL(ctx)) },
	"ForceUnlock": func(ctx context.Context, _ *Client, l Locker, _ string) error { return second(l.ForceUnlock(ctx)) },
	"Inspect": func(ctx context.Context, c *Client, _ Locker, name string) error {
		return second(c.Inspect(ctx, name))
	},
}

func TestWhatIsNoLockIsRefusedAndNotTouched(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for what, foreign := range foreignValues {
			t.Run(what, func(t *testing.T) {
				b := newBench(t, addr)
				c := b.client(WithPollInterval(time.Hour))
				for _, k := range lockKinds {
					kind := k.name
					for method, ask := range askingMethods {
						b.must(foreign.put(context.Background(), b.rdb, b.name))
						before := b.content(b.name)
						ctx, cancel := context.WithTimeout(context.Background(), soon)
						err := ask(ctx, c, k.one(c, b.name), b.name)
						cancel()
						require.ErrorIs(t, err, ErrNotALock, "%s, %s", kind, method)
						says := foreign.says
						if k.record != "hash" && method != "Inspect" { // it reads no fields
							says, _, _ = strings.Cut(says, " that ")
						}
						assert.Contains(t, err.Error(), "the key "+shortName(b.name)+" "+says, "%s, %s", kind, method)
						assert.Contains(t, err.Error(), shortName("lock:"+b.name), "%s, %s", kind, method)
						assert.Less(t, len(err.Error()), 600, "%s, %s", kind, method)
						assert.Equal(t, before, b.content(b.name), "%s, %s", kind, method)
						testredis.Await(t, kind+" "+method+" leaves nothing else", soon, func() bool { return len(b.keys()) == 1 })
						b.forget()
					}
				}
			})
		}
	})
}

// Data that replace a record while the lock is held, or awaited.
func TestWhatTakesThePlaceOfARecordIsNotTouched(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for _, what := range []string{"string", "one number", "a mode and data"} {
			for _, k := range lockKinds {
				t.Run(what+", "+k.name, func(t *testing.T) {
					t.Parallel()
					ctx := context.Background()
					replaced := func(b *bench) {
						_, err := b.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
							p.Del(ctx, b.name)
							return foreignValues[what].put(ctx, p, b.name)
						})
						b.must(err)
					}
					for method, ask := range map[string]func(l Locker) error{
						"Unlock":    func(l Locker) error { return l.Unlock(ctx) },
						"IsHeld":    func(l Locker) error { return second(l.IsHeld(ctx)) },
						"HoldCount": func(l Locker) error { return second(l.HoldCount(ctx)) },
					} {
						b := newBench(t, addr)
						c := b.client()
						l := k.one(c, b.name)
						require.NoError(t, l.Lock(ctx))
						replaced(b)
						before := b.content(b.name)
						err := ask(l)
						assert.ErrorIs(t, err, ErrNotALock, method)
						if method == "Unlock" {
							assert.ErrorIs(t, err, ErrLockLost, method)
						} else {
							assert.ErrorIs(t, l.Unlock(ctx), ErrNotHeld, method)
						}
						assert.Equal(t, before, b.content(b.name), method)
						b.must(b.rdb.Del(ctx, b.name).Err())
						testredis.Await(t, "all else is released", soon, func() bool {
							if k.expires {
								b.forget()
							}
							return !slices.ContainsFunc(
								b.keys(),
								func(key string) bool { return !strings.HasPrefix(key, "redisson_lock_token") },
							)
						})
					}

					if k.holds != nil {
						return // the renewed key is still there
					}
					// The watchdog notices, and a waiter gets the error.
					b := newBench(t, addr)
					holder := k.one(b.client(WithWatchdogTimeout(3*time.Second)), b.name)
					require.NoError(t, holder.Lock(ctx))
					guarded, err := holder.Guard(ctx)
					require.NoError(t, err)
					me := ContextWithOwner(ctx)
					got := b.startWaiter(me, k.rival(b.client(WithPollInterval(50*time.Millisecond)), b.name))
					replaced(b)
					before := b.content(b.name)
					assert.ErrorIs(t, await(b, "the waiter is told", got), ErrNotALock)
					await(b, "the holder is told", guarded.Done())
					assert.ErrorIs(t, context.Cause(guarded), ErrLockLost)
					_ = holder.Unlock(ctx)
					assert.Equal(t, before, b.content(b.name))
					b.must(b.rdb.Del(ctx, b.name).Err())
					testredis.Await(t, "all else is released", soon, func() bool {
						if k.expires {
							b.forget()
						}
						return !slices.ContainsFunc(
							b.keys(),
							func(key string) bool { return !strings.HasPrefix(key, "redisson_lock_token") },
						)
					})
				})
			}
		}
	})
}

// An additional key of the lock is named, and the lock is not acquired.
func TestWhatIsNoLockBesideALock(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for kind, all := range map[string]map[string][]string{
			"fenced":       {"redisson_lock_token:{%s}": {"list", "one number"}},
			"fenced write": {"redisson_lock_token:{%s}": {"set"}, "relock_rwlock_writers:{%s}": {"string", "numbers"}},
			"fair": {
				"redisson_lock_queue:{%s}":   {"string", "one number"},
				"redisson_lock_timeout:{%s}": {"list"},
				"relock_lock_alive:{%s}":     {"string"},
			},
		} {
			for form, whats := range all {
				newLock := lockKinds[slices.IndexFunc(lockKinds, func(k lockKind) bool { return k.name == kind })].one
				for _, what := range whats {
					b := newBench(t, addr)
					ctx, key := context.Background(), fmt.Sprintf(form, b.name)
					b.must(foreignValues[what].put(ctx, b.rdb, key))
					b.must(b.rdb.Expire(ctx, key, time.Hour).Err())
					before, c := b.content(key), b.client()
					for n, err := range []error{
						newLock(c, b.name).Lock(ctx), second(newLock(c, b.name).TryLock(ctx, time.Hour, 0)),
						second(c.Inspect(ctx, b.name)),
					} {
						if form == "redisson_lock_timeout:{%s}" && n < 2 { // a waiter reads it
							continue
						}
						require.ErrorIs(t, err, ErrNotALock, "%s, %s", key, what)
						assert.Contains(t, err.Error(), "the key "+shortName(key)+" holds a ", "%s, %s", key, what)
					}
					assert.Equal(t, before, b.content(key), "%s, %s", key, what)
					b.forget()
				}
			}
		}
		b := newBench(t, addr)
		ctx, key := context.Background(), tokenKey(b.name)
		b.must(b.rdb.Set(ctx, key, "many", 0).Err())
		for _, k := range lockKinds {
			if strings.HasPrefix(k.name, "fenced") {
				err := k.one(b.client(), b.name).Lock(ctx)
				require.ErrorIs(t, err, ErrNotALock)
				assert.Contains(t, err.Error(), "the key "+shortName(key)+" holds a token counter that is not a number")
			}
		}
		b.must(b.rdb.Del(ctx, key).Err())
		testredis.Await(t, "nothing is taken", soon, func() bool { return len(b.keys()) == 0 })
	})
}

// A majority of such nodes makes callers fail at once.
func TestRedLockOfWhatIsNoLock(t *testing.T) {
	b := newRedBench(t) // which is parallel
	ctx := context.Background()
	l := b.lock()
	for _, rdb := range b.nodes {
		b.must(rdb.HSet(ctx, b.name, "total", 5).Err())
	}
	within, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	for method, err := range map[string]error{
		"Lock": l.Lock(within), "TryLock": second(l.TryLock(within, time.Hour, 0)),
		"IsLocked": second(l.IsLocked(within)), "TTL": second(l.TTL(within)), "ForceUnlock": second(l.ForceUnlock(within)),
	} {
		assert.ErrorIs(t, err, ErrNotALock, method)
	}
	for _, rdb := range b.nodes {
		assert.Equal(t, map[string]string{"total": "5"}, rdb.HGetAll(ctx, b.name).Val())
	}
	b.forget()
}

// A big hash costs no more than a small one.
func TestABigHashThatIsNoLock(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	ctx := context.Background()
	b := newBench(t, s.Addr())
	many := full(300_000, 1_000_000)
	for from := 0; from < many; from += many / 20 {
		b.must(b.rdb.Eval(ctx, "for i = ARGV[1], ARGV[2] do redis.call('hset', KEYS[1], 'field' .. i, i) end return 1",
			[]string{b.name}, from, from+many/20).Err())
	}
	before := b.worked()
	b.must(b.rdb.Eval(ctx, "return #redis.call('hgetall', KEYS[1])", []string{b.name}).Err())
	whole := b.worked() - before // of the processor, to read all of it once
	for _, mode := range []string{"", "read"} {
		if mode != "" {
			b.must(b.rdb.HSet(ctx, b.name, "mode", mode).Err())
		}
		fields := b.rdb.HLen(ctx, b.name).Val()
		before := b.worked()
		for _, k := range lockKinds {
			for method, ask := range askingMethods {
				c := b.client()
				within, cancel := context.WithTimeout(ctx, soon)
				assert.ErrorIs(t, ask(within, c, k.one(c, b.name), b.name), ErrNotALock, "%s, %s", k.name, method)
				cancel()
			}
		}
		t.Logf("all methods took %v, to read all would take %v", b.worked()-before, whole)
		assert.Less(t, b.worked()-before, whole, "all methods of all lock types together")
		assert.Equal(t, fields, b.rdb.HLen(ctx, b.name).Val())
	}
	b.must(b.rdb.Unlink(ctx, b.name).Err())
	testredis.Await(t, "nothing else is left", soon, func() bool { return len(b.keys()) == 0 })
}

// genuineRecords are records of Redisson and of relock, in every existing form, and whether a reader may acquire the
// lock.
var genuineRecords = map[string]struct {
	pairs  []any
	leases []string // leases of readers
	reads  bool
}{
	"Java":                     {pairs: []any{javaThread, 1}},
	"Java, deep":               {pairs: []any{javaThread, 12345}},
	"Java, negative":           {pairs: []any{javaThread[:37] + "-42", 1}},
	"Java, a transaction":      {pairs: []any{javaThread + ":0123456789abcdef0123456789abcdef", 1}},
	"Java, upper case":         {pairs: []any{strings.ToUpper(javaThread), 1}},
	"relock":                   {pairs: []any{javaThread + ":17", 3}},
	"relock, ContextWithOwner": {pairs: []any{javaThread[:37] + "-9:17", 3}},
	"Java, a writer":           {pairs: []any{"mode", "write", javaThread + ":write", 2}},
	"Java, writer, reader": {
		pairs:  []any{"mode", "write", javaThread + ":write", 2, javaThread, 1},
		leases: []string{javaThread},
	},
	"relock, a writer": {pairs: []any{"mode", "write", javaThread + ":17:write", 1}},
	"Java, a reader":   {pairs: []any{"mode", "read", javaThread, 2}, leases: []string{javaThread}, reads: true},
	"relock, a reader": {
		pairs:  []any{"mode", "read", javaThread + ":17", 1},
		leases: []string{javaThread + ":17"},
		reads:  true,
	},
	"many readers": manyReaders(600),
	"Java, a multi lock of values": {pairs: []any{
		"aZbY0123456789+/aZbY01", javaThread,
		"aZbY0123456789+/aZbY01:" + javaThread + ":expire_time", time.Now().Add(24 * time.Hour).UnixMilli(),
		"aZbY0123456789+/aZbY01:" + javaThread + ":lock_count", 2,
	}},
}

func manyReaders(n int) struct {
	pairs  []any
	leases []string
	reads  bool
} {
	r := struct {
		pairs  []any
		leases []string
		reads  bool
	}{pairs: []any{"mode", "read"}, reads: true}
	for i := range n {
		r.pairs = append(r.pairs, fmt.Sprintf("%s%d", javaThread[:37], i), 1)
		r.leases = append(r.leases, fmt.Sprintf("%s%d", javaThread[:37], i))
	}
	return r
}

func TestEveryGenuineRecordIsALock(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		ctx := context.Background()
		for what, record := range genuineRecords {
			t.Run(what, func(t *testing.T) {
				for _, k := range lockKinds {
					if k.record != "hash" {
						continue
					}
					kind := k.name
					b := newBench(t, addr)
					b.must(b.rdb.HSet(ctx, b.name, record.pairs...).Err())
					b.must(b.rdb.PExpire(ctx, b.name, time.Hour).Err())
					_, err := b.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
						for _, reader := range record.leases {
							p.Set(ctx, "{"+b.name+"}:"+reader+":rwlock_timeout:1", 1, time.Hour)
						}
						return nil
					})
					b.must(err)
					c := b.client(WithPollInterval(50 * time.Millisecond))
					l := k.one(c, b.name)
					ok, err := l.TryLock(ctx, 0, 0)
					require.NoError(t, err, kind)
					require.Equal(t, record.reads && k.shared, ok, kind)
					if ok {
						require.NoError(t, l.Unlock(ctx))
					}
					_, err = l.IsLocked(ctx)
					require.NoError(t, err, kind)
					_, err = l.TTL(ctx)
					require.NoError(t, err, kind)
					i, err := c.Inspect(ctx, b.name)
					require.NoError(t, err, kind)
					require.True(t, i.Held(), "%+v", i)
					if !record.reads || !k.shared {
						within, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
						require.ErrorIs(t, l.Lock(within), context.DeadlineExceeded, kind)
						cancel()
					}
					_, err = l.ForceUnlock(ctx)
					require.NoError(t, err, kind)
					b.forget()
				}
			})
		}
	})
}
