package relock

// Keys that hold other data than a lock.
//
// Rules: data that no lock has written are refused by every method that asks Redis, with a text that names the key, and
// are not touched, also where they replace the record of a lock that is held or awaited.

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// foreignValues write data under a key that no lock writes. Each has the text of its error. Further ones are in
// internal/lua/testdata/notalock.txt.
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
	"one number":              foreignHash(`"total"`, "total", 5),
	"a mode and data":         foreignHash(`"theme"`, "mode", "read", "theme", 1),
	"a field that is no text": foreignHash(`"a\n\x00\"\\ b`, "a\n\x00\"\\ b", 1),
	"an empty field":          foreignHash(`""`, "", 5),
	"a long field":            foreignHash(`… (5000 bytes)`, strings.Repeat("x", 5000), 1),
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
