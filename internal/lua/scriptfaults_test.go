package lua_test

// Scripts that meet other data than their own, or may not run a command: a release goes on whatever it finds in the line,
// which is the wait queue in Redis.

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/lua"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var releaseKinds = []locktest.ReleaseKind{
	{Name: "lock", Mine: locktest.RecordOfLock, Wait: locktest.RecordOfLock, Needs: "hdel"},
	{Name: "fenced", Mine: recordOfFenced, Wait: recordOfFenced, Needs: "hdel"},
	{Name: "fair", Mine: locktest.RecordOfFair, Wait: locktest.RecordOfFair, Needs: "hdel"},
	{Name: "read", Mine: locktest.RecordOfReader, Wait: locktest.RecordOfWriter, Needs: "hget hlen hgetall pttl del"},
	{Name: "write", Mine: locktest.RecordOfWriter, Wait: locktest.RecordOfWriter, Needs: "hexists hlen hgetall del"},
	{Name: "semaphore", Mine: locktest.RecordOfSemaphore, Wait: locktest.RecordOfSemaphore, Needs: "get zscore zrem time incrby"},
}

func recordOfFenced(c *Client, name string) contract.Record {
	return locktest.RecordOf(c.NewLock(name, Fenced()))
}

// holders returns the fields that hold the lock.
func holders(b *locktest.ReleaseBench) (fields []string) {
	ctx := context.Background()
	if b.Kind.Name == "semaphore" {
		return b.Rdb.ZRange(ctx, record.PermitsKey(b.LockName), 0, -1).Val()
	}
	fields = b.Rdb.HKeys(ctx, b.LockName).Val()
	if len(fields) > 1 {
		fields = slices.DeleteFunc(fields, func(f string) bool { return f == "mode" })
	}
	return fields
}

// prepare has b.me hold the lock, and others wait for it, in this order.
func prepare(b *locktest.ReleaseBench, waiters string) {
	ctx := context.Background()
	b.Must(b.Rdb.FlushDB(ctx).Err())
	b.Does(b.Kind.Mine(b.Me, b.LockName).Acquire(locktest.AttemptOf(b.Me)), 1)
	for _, waiter := range strings.Fields(waiters) {
		switch waiter {
		case "dead":
			s := b.Subscribes(b.Dead)
			b.Does(b.Kind.Wait(b.Dead, b.LockName).Acquire(locktest.AttemptOf(b.Dead)), 0)
			b.Must(s.Close())
			channel := b.Kind.Wait(b.Dead, b.LockName).Grants(locktest.AttemptOf(b.Dead))
			testredis.Await(b, "it is dead", locktest.Soon, func() bool { return b.Hearers(channel) == 0 })
		case "subscribed":
			b.Does(b.Kind.Wait(b.Alive, b.LockName).Acquire(locktest.AttemptOf(b.Alive)), 0)
		case "polls":
			a := locktest.AttemptOf(b.Alive)
			a.Delivery = contract.Poll
			b.Does(b.Kind.Wait(b.Alive, b.LockName).Acquire(a), 0)
		}
	}
}

// gone checks that b.me does not hold the lock any more, and that nobody holds it but a waiter that lives, for a while.
func gone(b *locktest.ReleaseBench, what string) {
	b.Helper()
	for _, field := range holders(b) {
		if assert.Contains(b, field, b.Alive.ID(), what) && b.Kind.Name != "semaphore" {
			ttl := b.Rdb.PTTL(context.Background(), b.LockName).Val()
			assert.Positive(b, ttl, "the lease of the next one, %s", what)
		}
	}
}

// The commands that a script may run.
func commandsOf(script *send.Script) (all []string) {
	for _, m := range regexp.MustCompile(`call\('(\w+)'`).FindAllStringSubmatch(script.Source(), -1) {
		all = append(all, m[1])
	}
	all = append(all, "publish", "pubsub")
	slices.Sort(all)
	return slices.Compact(all)
}

// userWithout returns the client of a user of d that may do everything but run this command.
func userWithout(b *locktest.Bench, d *locktest.Deployment, command string) *redis.Client {
	b.Helper()
	name := "without-" + command
	b.Must(b.Rdb.Do(context.Background(), "acl", "setuser", name, "reset", "on", ">pass", "allkeys", "allchannels",
		"allcommands", "-"+command).Err())
	return d.Client(name, "pass").(*redis.Client)
}

// Whatever a user may not do, the lines that others have made do not keep its lock from being released: a release needs
// no more than it needs when nobody waits.
func TestReleaseNeedsNoCommandOfTheLine(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	for _, kind := range releaseKinds {
		t.Run(kind.Name, func(t *testing.T) {
			b := locktest.NewReleaseBench(t, s, kind)
			release := b.Kind.Mine(b.Me, b.LockName).Release(locktest.Released(locktest.AttemptOf(b.Me).Field, 0, false))
			late := b.Kind.Mine(b.Me, b.LockName).Release(locktest.Released(locktest.AttemptOf(b.Me).Field, 0, true))
			back := b.Kind.Mine(b.Me, b.LockName).RollBack(locktest.AttemptOf(b.Me))
			longWay := release // publishing in both ways is no common case
			longWay.Args = slices.Clone(release.Args)
			longWay.Args[slices.Index(longWay.Args, any("publish"))] = "publish+spublish"
			commands := commandsOf(release.Script)
			require.Greater(t, len(commands), 10)
			d := b.Deployment(s)
			for _, command := range commands {
				user := userWithout(b.Bench, d, command)
				if slices.Contains(strings.Fields(kind.Needs), command) {
					prepare(b, "")
					b.Eval(user, longWay)
					assert.NotEmpty(t, holders(b), "it does not need %s", command)
					continue
				}
				prepare(b, "")
				b.Eval(user, longWay)
				require.Empty(t, holders(b), "without %s", command)
				for _, waiters := range []string{"", "subscribed", "dead", "dead subscribed", "polls", "dead polls"} {
					for what, c := range map[string]send.Call{"release": release, "late release": late, "rollback": back} {
						prepare(b, waiters)
						answer := b.Eval(user, c)
						gone(b, fmt.Sprintf("without %s, for [%s]: %s answers %v", command, waiters, what, answer))
					}
				}
			}
		})
	}
}

// otherData has, for each type of Redis, the command that makes a key of it.
var otherData = map[string][]any{
	"string": {"set", "", "x"}, "list": {"rpush", "", "x"}, "set": {"sadd", "", "x"}, "zset": {"zadd", "", 1, "x"},
	"stream": {"xadd", "", "*", "x", "y"}, "hash": {"hset", "", "first", "x"},
	"hash of a long line": {"hset", "", "first", 1, "last", locktest.VeryMany},
}

// replace makes the key hold this data, in the place of what it has.
func replace(b *locktest.Bench, key string, data []any) {
	b.Helper()
	b.Must(b.Rdb.Del(context.Background(), key).Err())
	command := slices.Clone(data)
	command[1] = key
	b.Must(b.Rdb.Do(context.Background(), command...).Err())
}

// keysBeside returns the keys of the lock that a release can do without: the line, the queue of a fair lock, the writers
// that wait, and the token counter.
func keysBeside(k locktest.ReleaseKind, c send.Call) []string {
	if k.Name == "semaphore" {
		return c.Keys[2:]
	}
	return c.Keys[1:]
}

// typeOf returns the type that the script of a call expects of a key.
func typeOf(c send.Call, key string) string {
	for name, script := range record.Scripts {
		if script == c.Script {
			return lua.KeyTypes(name)[slices.Index(c.Keys, key)]
		}
	}
	return ""
}

func TestReleaseGoesOnWhateverTheLineHolds(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	ctx := context.Background()
	for _, kind := range releaseKinds {
		t.Run(kind.Name, func(t *testing.T) {
			b := locktest.NewReleaseBench(t, s, kind)
			field := locktest.AttemptOf(b.Me).Field
			for of, data := range otherData {
				for what, release := range map[string]func(l contract.Record) send.Call{
					"release":       func(l contract.Record) send.Call { return l.Release(locktest.Released(field, 0, false)) },
					"late release":  func(l contract.Record) send.Call { return l.Release(locktest.Released(field, 0, true)) },
					"rollback":      func(l contract.Record) send.Call { return l.RollBack(locktest.AttemptOf(b.Me)) },
					"late rollback": func(l contract.Record) send.Call { a := locktest.AttemptOf(b.Me); a.Late = true; return l.RollBack(a) },
				} {
					c := release(b.Kind.Mine(b.Me, b.LockName))
					for _, key := range keysBeside(kind, c) {
						prepare(b, "subscribed")
						replace(b.Bench, key, data)
						before := b.Rdb.Dump(ctx, key).Val()
						answer := b.Eval(b.Rdb, c)
						gone(b, fmt.Sprintf("%s with a %s at %s answers %v", what, of, key, answer))
						if kind, _, _ := strings.Cut(of, " "); kind != typeOf(c, key) {
							assert.Equal(t, before, b.Rdb.Dump(ctx, key).Val(), "%s with a %s at %s", what, of, key)
						}
					}
				}
			}
		})
	}
}
