package locks

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
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/send"
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

func TestWhatIsNoLockIsRefusedAndNotTouched(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		for what, foreign := range foreignValues {
			t.Run(what, func(t *testing.T) {
				b := locktest.NewBench(t, addr)
				c := b.Client(WithPollInterval(time.Hour))
				for _, k := range locktest.LockKinds {
					kind := k.Name
					for method, ask := range locktest.AskingMethods {
						b.Must(foreign.put(ctx, b.Rdb, b.LockName))
						before := b.Content(b.LockName)
						ctx, cancel := context.WithTimeout(ctx, locktest.Soon)
						err := ask(ctx, c, k.One(c, b.LockName), b.LockName)
						cancel()
						require.ErrorIs(t, err, ErrNotALock, "%s, %s", kind, method)
						says := foreign.says
						if k.Record != "hash" && method != "Inspect" { // it reads no fields
							says, _, _ = strings.Cut(says, " that ")
						}
						assert.Contains(t, err.Error(), "the key "+send.ShortName(b.LockName)+" "+says, "%s, %s", kind, method)
						assert.Contains(t, err.Error(), send.ShortName("lock:"+b.LockName), "%s, %s", kind, method)
						assert.Less(t, len(err.Error()), 600, "%s, %s", kind, method)
						assert.Equal(t, before, b.Content(b.LockName), "%s, %s", kind, method)
						testredis.Await(t, kind+" "+method+" leaves nothing else", locktest.Soon, func() bool { return len(b.Keys()) == 1 })
						b.Forget()
					}
				}
			})
		}
	})
}

// Data that replace a record while the lock is held, or awaited.
func TestWhatTakesThePlaceOfARecordIsNotTouched(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		for _, what := range []string{"string", "one number", "a mode and data"} {
			for _, k := range locktest.LockKinds {
				t.Run(what+", "+k.Name, func(t *testing.T) {
					t.Parallel()
					replaced := func(b *locktest.Bench) {
						_, err := b.Rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
							p.Del(ctx, b.LockName)
							return foreignValues[what].put(ctx, p, b.LockName)
						})
						b.Must(err)
					}
					for method, ask := range map[string]func(l Locker) error{
						"Unlock":    func(l Locker) error { return l.Unlock(ctx) },
						"IsHeld":    func(l Locker) error { return locktest.Second(l.IsHeld(ctx)) },
						"HoldCount": func(l Locker) error { return locktest.Second(l.HoldCount(ctx)) },
					} {
						b := locktest.NewBench(t, addr)
						c := b.Client()
						l := k.One(c, b.LockName)
						require.NoError(t, l.Lock(ctx))
						replaced(b)
						before := b.Content(b.LockName)
						err := ask(l)
						assert.ErrorIs(t, err, ErrNotALock, method)
						if method == "Unlock" {
							assert.ErrorIs(t, err, ErrLockLost, method)
						} else {
							assert.ErrorIs(t, l.Unlock(ctx), ErrNotHeld, method)
						}
						assert.Equal(t, before, b.Content(b.LockName), method)
						b.Must(b.Rdb.Del(ctx, b.LockName).Err())
						testredis.Await(t, "all else is released", locktest.Soon, func() bool {
							if k.Expires {
								b.Forget()
							}
							return !slices.ContainsFunc(
								b.Keys(),
								func(key string) bool { return !strings.HasPrefix(key, "redisson_lock_token") },
							)
						})
					}

					if k.Holds != nil {
						return // the renewed key is still there
					}
					// The watchdog notices, and a waiter gets the error.
					b := locktest.NewBench(t, addr)
					holder := k.One(b.Client(WithWatchdogTimeout(3*time.Second)), b.LockName)
					require.NoError(t, holder.Lock(ctx))
					guarded, err := holder.Guard(ctx)
					require.NoError(t, err)
					me := ContextWithOwner(ctx)
					got := b.StartWaiter(me, k.Rival(b.Client(WithPollInterval(50*time.Millisecond)), b.LockName))
					replaced(b)
					before := b.Content(b.LockName)
					assert.ErrorIs(t, locktest.Await(b, "the waiter is told", got), ErrNotALock)
					locktest.Await(b, "the holder is told", guarded.Done())
					assert.ErrorIs(t, context.Cause(guarded), ErrLockLost)
					_ = holder.Unlock(ctx)
					assert.Equal(t, before, b.Content(b.LockName))
					b.Must(b.Rdb.Del(ctx, b.LockName).Err())
					testredis.Await(t, "all else is released", locktest.Soon, func() bool {
						if k.Expires {
							b.Forget()
						}
						return !slices.ContainsFunc(
							b.Keys(),
							func(key string) bool { return !strings.HasPrefix(key, "redisson_lock_token") },
						)
					})
				})
			}
		}
	})
}
