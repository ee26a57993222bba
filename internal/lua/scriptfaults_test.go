package lua_test

// Scripts that meet other data than their own, or may not run a command. A release goes on whatever it finds in the
// line, which is the wait queue in Redis; an acquire that refuses what it finds has written nothing.

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/locktest"
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
	{Name: "write", Mine: locktest.RecordOfWriter, Wait: locktest.RecordOfWriter, Needs: "hexists hlen hgetall hdel del"},
	{Name: "semaphore", Mine: locktest.RecordOfSemaphore, Wait: locktest.RecordOfSemaphore, Needs: "get zscore zrem time incrby"},
}

func recordOfFenced(c *Client, name string) contract.Record {
	return locktest.RecordOf(c.NewLock(name, Fenced()))
}

// withoutTheLine returns c as it is sent by a Client that may not use the line.
func withoutTheLine(c send.Call) send.Call {
	c.Keys = slices.Clone(c.Keys)
	for _, o := range c.Optional {
		if o.Key < len(c.Keys) { // the token counter is the last key, if there is one
			c.Keys[o.Key] = c.Keys[o.Instead]
		}
	}
	return c
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
			commands := commandsOf(release.Script)
			require.Greater(t, len(commands), 10)
			d := b.Deployment(s)
			for _, command := range commands {
				user := userWithout(b.Bench, d, command)
				if slices.Contains(strings.Fields(kind.Needs), command) {
					prepare(b, "")
					b.Eval(user, withoutTheLine(release))
					assert.NotEmpty(t, holders(b), "it does not need %s", command)
					continue
				}
				prepare(b, "")
				b.Eval(user, withoutTheLine(release))
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

// Whatever a user may not do, a hold that it detaches stays with one owner: with two holders the record would be no lock
// any more, and with none the lock would be free.
func TestRenameWithoutACommandLeavesOneHolder(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	ctx := context.Background()
	for _, kind := range releaseKinds {
		t.Run(kind.Name, func(t *testing.T) {
			b := locktest.NewReleaseBench(t, s, kind)
			from := locktest.AttemptOf(b.Me).Field
			rename := b.Kind.Mine(b.Me, b.LockName).Rename(contract.Rename{From: from, To: b.Me.ID() + ":0:09", Lease: time.Minute})
			commands := commandsOf(rename.Script)
			require.Greater(t, len(commands), 5)
			d := b.Deployment(s)
			for _, command := range commands {
				prepare(b, "")
				answer := b.Eval(userWithout(b.Bench, d, command), rename)
				assert.Len(t, holders(b), 1, "without %s: %v", command, answer)
				if kind.Name != "semaphore" {
					assert.Positive(t, b.Rdb.PTTL(ctx, b.LockName).Val(), "the lease, without %s: %v", command, answer)
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

// put makes the key hold this data, in the place of what it has.
func put(b *locktest.Bench, key string, data []any) {
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
			return locktest.Library().KeyTypes(name)[slices.Index(c.Keys, key)]
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
						put(b.Bench, key, data)
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

// A bundle that cannot have all of its locks releases those that it has, whatever their lines hold. An error of that
// release is reported, because the lock may be held then.
func TestBundleRollsBackWhateverTheLineHolds(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	ctx := context.Background()
	for _, kind := range releaseKinds {
		if kind.Name == "fair" || kind.Name == "semaphore" {
			continue
		}
		t.Run(kind.Name, func(t *testing.T) {
			b := locktest.NewReleaseBench(t, s, kind)
			mine, other := b.Kind.Mine(b.Me, b.LockName), locktest.RecordOfLock(b.Me, b.LockName+"-other")
			again := locktest.AttemptOf(b.Me)
			part := func(l contract.Record) contract.BundledCall {
				return contract.BundledCall{Script: l.Traits().Bundled, Acquire: l.Acquire(again), RollBack: l.RollBack(again)}
			}
			both := locktest.BundleOf([]contract.BundledCall{part(mine), part(other)})
			prepare := func(waiters string) {
				prepare(b, waiters)
				b.Must(b.Rdb.Del(ctx, b.LockName).Err()) // the lease has expired: the bundle acquires the first lock
				b.Does(locktest.RecordOfLock(b.Alive, b.LockName+"-other").Acquire(locktest.AttemptOf(b.Alive)), 1)
			}
			line := mine.Acquire(again).Keys[mine.Acquire(again).Optional[0].Key]
			for of, data := range otherData {
				prepare("")
				put(b.Bench, line, data)
				answer := b.Eval(b.Rdb, both)
				gone(b, fmt.Sprintf("with a %s at the line the bundle answers %v", of, answer))
			}
			d := b.Deployment(s)
			for _, command := range []string{"hmget", "hlen", "hget", "hgetall", "hdel", "exists", "pubsub", "publish", "del"} {
				name := "without-" + command
				b.Must(b.Rdb.Do(ctx, "acl", "setuser", name, "reset", "on", ">pass", "allkeys", "allchannels", "allcommands",
					"-"+command).Err())
				prepare("subscribed")
				answer := b.Eval(d.Client(name, "pass").(*redis.Client), both)
				if err, failed := answer.(error); failed {
					assert.True(t, locktest.Refused(err), "without %s: %v", command, err)
					continue
				}
				gone(b, fmt.Sprintf("without %s the bundle answers %v", command, answer))
			}
		})
	}
}

// A bundle that runs late, or again, finds a lock that its owner holds since an earlier run, and another one that the
// owner has released since, or lost to another owner. It takes nothing from the owner, and says so.
func TestLateBundleLeavesTheLocksThatAreHeld(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	for _, kind := range releaseKinds {
		if kind.Name == "fair" || kind.Name == "semaphore" {
			continue
		}
		t.Run(kind.Name, func(t *testing.T) {
			b := locktest.NewReleaseBench(t, s, kind)
			a := locktest.AttemptOf(b.Me)
			a.Delivery = contract.Barge
			part := func(l contract.Record) contract.BundledCall {
				return contract.BundledCall{Script: l.Traits().Bundled, Acquire: l.Acquire(a), RollBack: l.RollBack(a)}
			}
			other := locktest.RecordOfLock(b.Me, b.LockName+"-other")
			both := locktest.BundleOf([]contract.BundledCall{part(b.Kind.Mine(b.Me, b.LockName)), part(other)})
			for what, end := range map[string]func(){
				"replaced": func() { b.Must(b.Rdb.Set(context.Background(), b.LockName+"-other", "data", 0).Err()) },
				"released": func() { b.Does(other.Release(locktest.Released(a.Field, 0, true)), 1) },
				"lost": func() {
					b.Does(other.Force(), 1)
					b.Does(locktest.RecordOfLock(b.Alive, b.LockName+"-other").Acquire(locktest.AttemptOf(b.Alive)), 1)
				},
			} {
				b.Must(b.Rdb.FlushDB(context.Background()).Err())
				b.Does(both, 1)
				before := holders(b)
				require.Len(t, before, 1)
				end()
				answer := b.Eval(b.Rdb, both)
				assert.Equal(t, before, holders(b), "%s: %v", what, answer)
				if what == "replaced" {
					assert.ErrorContains(t, answer.(error), "NOTALOCK", what)
				} else if numbers, ok := answer.([]any); assert.True(t, ok && len(numbers) == 6, "%s: %v", what, answer) {
					assert.Equal(t, []any{int64(1), int64(-1)}, numbers[:2], what)
					assert.Equal(t, int64(0), numbers[3], what)
				}
			}
		})
	}
}

// state returns all data in Redis. Times do not change while nobody waits, except for leases, which are left out.
func state(b *locktest.Bench) string {
	return regexp.MustCompile(`(?m)^(\S+ \w+) -?\d+: `).ReplaceAllString(dataOf(b), "$1: ")
}

// An acquire that refuses what it finds at one of its keys has written nothing: neither the lock nor what others have
// left there, such as expired permits and dead waiters.
func TestRefusedAcquireHasWrittenNothing(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	ctx := context.Background()
	past := time.Now().Add(-time.Hour).UnixMilli()
	for _, kind := range releaseKinds {
		t.Run(kind.Name, func(t *testing.T) {
			b := locktest.NewReleaseBench(t, s, kind)
			l := b.Kind.Mine(b.Me, b.LockName)
			dead := locktest.AttemptOf(b.Dead).Field
			for of, data := range otherData {
				for _, delivery := range []string{contract.Push, contract.Poll, contract.Defer, contract.Barge} {
					a := locktest.AttemptOf(b.Me)
					a.Delivery = delivery
					c := l.Acquire(a)
					for _, key := range keysBeside(kind, c) {
						b.Must(b.Rdb.FlushDB(ctx).Err())
						switch kind.Name {
						case "write":
							b.Must(b.Rdb.HSet(ctx, b.LockName, "mode", "read", dead, 1).Err())
							b.Must(b.Rdb.PExpire(ctx, b.LockName, time.Minute).Err())
						case "fair":
							b.Must(b.Rdb.RPush(ctx, c.Keys[1], dead).Err())
							b.Must(b.Rdb.ZAdd(ctx, c.Keys[2], redis.Z{Score: float64(past), Member: dead}).Err())
							b.Must(b.Rdb.ZAdd(ctx, c.Keys[3], redis.Z{Score: float64(past), Member: dead}).Err())
							b.Must(b.Rdb.HSet(ctx, b.LockName, locktest.AttemptOf(b.Alive).Field, 1).Err())
							b.Must(b.Rdb.PExpire(ctx, b.LockName, time.Minute).Err())
						case "semaphore":
							b.Must(b.Rdb.ZAdd(ctx, c.Keys[1], redis.Z{Score: float64(past), Member: dead}).Err())
						}
						put(b.Bench, key, data)
						before := state(b.Bench)
						hears := b.Subscribes(b.Me)
						answer := b.Eval(b.Rdb, c)
						b.Must(hears.Close())
						if err, fails := answer.(error); fails {
							assert.ErrorContains(t, err, "NOTALOCK", "%s, %s at %s", delivery, of, key)
							assert.Equal(t, before, state(b.Bench), "%s, %s at %s: %v", delivery, of, key, err)
						}
					}
				}
			}
		})
	}
}
