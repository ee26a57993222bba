package relock

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
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
)

// A releaseKind is a script that releases a lock for which others wait.
type releaseKind struct {
	name string
	mine func(c *Client, name string) contract.Record
	wait func(c *Client, name string) contract.Record // the same lock, for those that wait

	// needs are the commands without which the script cannot release a lock for which nobody waits.
	needs string
}

var releaseKinds = []releaseKind{
	{"lock", recordOfLock, recordOfLock, "hdel"},
	{"fenced", recordOfFenced, recordOfFenced, "hdel"},
	{"fair", recordOfFair, recordOfFair, "hdel"},
	{"read", recordOfReader, recordOfWriter, "hget hlen hgetall pttl del"},
	{"write", recordOfWriter, recordOfWriter, "hexists hlen hgetall hdel del"},
	{"semaphore", recordOfSemaphore, recordOfSemaphore, "get zscore zrem time incrby"},
}

func recordOfLock(c *Client, name string) contract.Record   { return c.NewLock(name).record }
func recordOfFenced(c *Client, name string) contract.Record { return c.NewLock(name, Fenced()).record }
func recordOfFair(c *Client, name string) contract.Record   { return c.NewFairLock(name).record }
func recordOfReader(c *Client, name string) contract.Record { return c.NewRWLock(name).Read().record }
func recordOfWriter(c *Client, name string) contract.Record { return c.NewRWLock(name).Write().record }
func recordOfSemaphore(c *Client, name string) contract.Record {
	return c.NewSemaphore(name, 1).handle.record
}

// withoutTheLine returns c as it is sent by a Client that may not use the line.
func withoutTheLine(c call) call {
	c.Keys = slices.Clone(c.Keys)
	for _, o := range c.Optional {
		if o.Key < len(c.Keys) { // the token counter is the last key, if there is one
			c.Keys[o.Key] = c.Keys[o.Instead]
		}
	}
	return c
}

// A released lock is what a test of a release looks at.
type releaseBench struct {
	*bench
	kind            releaseKind
	me, alive, dead *Client
}

func attemptOf(c *Client) contract.Attempt {
	return contract.Attempt{Field: c.ID() + ":1:01", Lease: time.Minute, HoldCount: 1, Delivery: contract.Push, Asked: 1}
}

func (b *releaseBench) eval(rdb *redis.Client, c call) any {
	b.Helper()
	answer, err := rdb.Eval(context.Background(), c.Script.Source(), c.Keys, c.Args...).Result()
	if err != nil {
		return err
	}
	return answer
}

// does runs a script that must not fail.
func (b *releaseBench) does(c call, first int64) {
	b.Helper()
	answer := b.eval(b.rdb, c)
	require.IsType(b, []any{}, answer)
	require.Equal(b, first, answer.([]any)[0], answer)
}

// subscribes returns a subscription to the channel on which c is granted the lock.
func (b *releaseBench) subscribes(c *Client) *redis.PubSub {
	s := b.rdb.Subscribe(context.Background(), b.kind.wait(c, b.name).Grants(attemptOf(c)))
	_, err := s.Receive(context.Background())
	b.must(err)
	return s
}

// holders returns the fields that hold the lock.
func (b *releaseBench) holders() (fields []string) {
	ctx := context.Background()
	if b.kind.name == "semaphore" {
		return b.rdb.ZRange(ctx, record.PermitsKey(b.name), 0, -1).Val()
	}
	fields = b.rdb.HKeys(ctx, b.name).Val()
	if len(fields) > 1 {
		fields = slices.DeleteFunc(fields, func(f string) bool { return f == "mode" })
	}
	return fields
}

// prepare has b.me hold the lock, and others wait for it, in this order.
func (b *releaseBench) prepare(waiters string) {
	ctx := context.Background()
	b.must(b.rdb.FlushDB(ctx).Err())
	b.does(b.kind.mine(b.me, b.name).Acquire(attemptOf(b.me)), 1)
	for _, waiter := range strings.Fields(waiters) {
		switch waiter {
		case "dead":
			s := b.subscribes(b.dead)
			b.does(b.kind.wait(b.dead, b.name).Acquire(attemptOf(b.dead)), 0)
			b.must(s.Close())
			channel := b.kind.wait(b.dead, b.name).Grants(attemptOf(b.dead))
			testredis.Await(b, "it is dead", soon, func() bool { return b.hearers(channel) == 0 })
		case "subscribed":
			b.does(b.kind.wait(b.alive, b.name).Acquire(attemptOf(b.alive)), 0)
		case "polls":
			a := attemptOf(b.alive)
			a.Delivery = contract.Poll
			b.does(b.kind.wait(b.alive, b.name).Acquire(a), 0)
		}
	}
}

// gone checks that b.me does not hold the lock any more, and that nobody holds it but a waiter that lives, for a while.
func (b *releaseBench) gone(what string) {
	b.Helper()
	for _, field := range b.holders() {
		if assert.Contains(b, field, b.alive.ID(), what) && b.kind.name != "semaphore" {
			ttl := b.rdb.PTTL(context.Background(), b.name).Val()
			assert.Positive(b, ttl, "the lease of the next one, %s", what)
		}
	}
}

func newReleaseBench(t *testing.T, s *testredis.Server, kind releaseKind) *releaseBench {
	b := &releaseBench{bench: newBench(t, s.Addr()), kind: kind}
	b.me, b.alive, b.dead = b.client(), b.client(), b.client()
	hears := b.subscribes(b.alive)
	t.Cleanup(func() {
		b.must(hears.Close())
		b.must(b.rdb.FlushDB(context.Background()).Err())
	})
	return b
}

// The commands that a script may run.
func commandsOf(script *luaScript) (all []string) {
	for _, m := range regexp.MustCompile(`call\('(\w+)'`).FindAllStringSubmatch(script.Source(), -1) {
		all = append(all, m[1])
	}
	all = append(all, "publish", "pubsub")
	slices.Sort(all)
	return slices.Compact(all)
}

// userWithout returns the client of a user of d that may do everything but run this command.
func (b *bench) userWithout(d *deployment, command string) *redis.Client {
	b.Helper()
	name := "without-" + command
	b.must(b.rdb.Do(context.Background(), "acl", "setuser", name, "reset", "on", ">pass", "allkeys", "allchannels",
		"allcommands", "-"+command).Err())
	return d.client(name, "pass").(*redis.Client)
}

// Whatever a user may not do, the lines that others have made do not keep its lock from being released: a release needs
// no more than it needs when nobody waits.
func TestReleaseNeedsNoCommandOfTheLine(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	for _, kind := range releaseKinds {
		t.Run(kind.name, func(t *testing.T) {
			b := newReleaseBench(t, s, kind)
			release := b.kind.mine(b.me, b.name).Release(released(attemptOf(b.me).Field, 0, false))
			late := b.kind.mine(b.me, b.name).Release(released(attemptOf(b.me).Field, 0, true))
			back := b.kind.mine(b.me, b.name).RollBack(attemptOf(b.me))
			commands := commandsOf(release.Script)
			require.Greater(t, len(commands), 10)
			d := b.deployment(s)
			for _, command := range commands {
				user := b.userWithout(d, command)
				if slices.Contains(strings.Fields(kind.needs), command) {
					b.prepare("")
					b.eval(user, withoutTheLine(release))
					assert.NotEmpty(t, b.holders(), "it does not need %s", command)
					continue
				}
				b.prepare("")
				b.eval(user, withoutTheLine(release))
				require.Empty(t, b.holders(), "without %s", command)
				for _, waiters := range []string{"", "subscribed", "dead", "dead subscribed", "polls", "dead polls"} {
					for what, c := range map[string]call{"release": release, "late release": late, "rollback": back} {
						b.prepare(waiters)
						answer := b.eval(user, c)
						b.gone(fmt.Sprintf("without %s, for [%s]: %s answers %v", command, waiters, what, answer))
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
		t.Run(kind.name, func(t *testing.T) {
			b := newReleaseBench(t, s, kind)
			from := attemptOf(b.me).Field
			rename := b.kind.mine(b.me, b.name).Rename(contract.Rename{From: from, To: b.me.ID() + ":0:09", Lease: time.Minute})
			commands := commandsOf(rename.Script)
			require.Greater(t, len(commands), 5)
			d := b.deployment(s)
			for _, command := range commands {
				b.prepare("")
				answer := b.eval(b.userWithout(d, command), rename)
				assert.Len(t, b.holders(), 1, "without %s: %v", command, answer)
				if kind.name != "semaphore" {
					assert.Positive(t, b.rdb.PTTL(ctx, b.name).Val(), "the lease, without %s: %v", command, answer)
				}
			}
		})
	}
}

// otherData has, for each type of Redis, the command that makes a key of it.
var otherData = map[string][]any{
	"string": {"set", "", "x"}, "list": {"rpush", "", "x"}, "set": {"sadd", "", "x"}, "zset": {"zadd", "", 1, "x"},
	"stream": {"xadd", "", "*", "x", "y"}, "hash": {"hset", "", "first", "x"},
	"hash of a long line": {"hset", "", "first", 1, "last", veryMany},
}

// put makes the key hold this data, in the place of what it has.
func (b *bench) put(key string, data []any) {
	b.Helper()
	b.must(b.rdb.Del(context.Background(), key).Err())
	command := slices.Clone(data)
	command[1] = key
	b.must(b.rdb.Do(context.Background(), command...).Err())
}

// keysBeside returns the keys of the lock that a release can do without: the line, the queue of a fair lock, the writers
// that wait, and the token counter.
func (k releaseKind) keysBeside(c call) []string {
	if k.name == "semaphore" {
		return c.Keys[2:]
	}
	return c.Keys[1:]
}

// typeOf returns the type that the script of a call expects of a key.
func typeOf(c call, key string) string {
	for name, script := range record.Scripts {
		if script == c.Script {
			return library().KeyTypes(name)[slices.Index(c.Keys, key)]
		}
	}
	return ""
}

func TestReleaseGoesOnWhateverTheLineHolds(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	ctx := context.Background()
	for _, kind := range releaseKinds {
		t.Run(kind.name, func(t *testing.T) {
			b := newReleaseBench(t, s, kind)
			field := attemptOf(b.me).Field
			for of, data := range otherData {
				for what, release := range map[string]func(l contract.Record) call{
					"release":       func(l contract.Record) call { return l.Release(released(field, 0, false)) },
					"late release":  func(l contract.Record) call { return l.Release(released(field, 0, true)) },
					"rollback":      func(l contract.Record) call { return l.RollBack(attemptOf(b.me)) },
					"late rollback": func(l contract.Record) call { a := attemptOf(b.me); a.Late = true; return l.RollBack(a) },
				} {
					c := release(b.kind.mine(b.me, b.name))
					for _, key := range kind.keysBeside(c) {
						b.prepare("subscribed")
						b.put(key, data)
						before := b.rdb.Dump(ctx, key).Val()
						answer := b.eval(b.rdb, c)
						b.gone(fmt.Sprintf("%s with a %s at %s answers %v", what, of, key, answer))
						if kind, _, _ := strings.Cut(of, " "); kind != typeOf(c, key) {
							assert.Equal(t, before, b.rdb.Dump(ctx, key).Val(), "%s with a %s at %s", what, of, key)
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
		if kind.name == "fair" || kind.name == "semaphore" {
			continue
		}
		t.Run(kind.name, func(t *testing.T) {
			b := newReleaseBench(t, s, kind)
			mine, other := b.kind.mine(b.me, b.name), recordOfLock(b.me, b.name+"-other")
			again := attemptOf(b.me)
			part := func(l contract.Record) contract.BundledCall {
				return contract.BundledCall{Script: l.Traits().Bundled, Acquire: l.Acquire(again), RollBack: l.RollBack(again)}
			}
			both := bundleOf([]contract.BundledCall{part(mine), part(other)})
			prepare := func(waiters string) {
				b.prepare(waiters)
				b.must(b.rdb.Del(ctx, b.name).Err()) // the lease has expired: the bundle acquires the first lock
				b.does(recordOfLock(b.alive, b.name+"-other").Acquire(attemptOf(b.alive)), 1)
			}
			line := mine.Acquire(again).Keys[mine.Acquire(again).Optional[0].Key]
			for of, data := range otherData {
				prepare("")
				b.put(line, data)
				answer := b.eval(b.rdb, both)
				b.gone(fmt.Sprintf("with a %s at the line the bundle answers %v", of, answer))
			}
			d := b.deployment(s)
			for _, command := range []string{"hmget", "hlen", "hget", "hgetall", "hdel", "exists", "pubsub", "publish", "del"} {
				name := "without-" + command
				b.must(b.rdb.Do(ctx, "acl", "setuser", name, "reset", "on", ">pass", "allkeys", "allchannels", "allcommands",
					"-"+command).Err())
				prepare("subscribed")
				answer := b.eval(d.client(name, "pass").(*redis.Client), both)
				if err, failed := answer.(error); failed {
					assert.True(t, refused(err), "without %s: %v", command, err)
					continue
				}
				b.gone(fmt.Sprintf("without %s the bundle answers %v", command, answer))
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
		if kind.name == "fair" || kind.name == "semaphore" {
			continue
		}
		t.Run(kind.name, func(t *testing.T) {
			b := newReleaseBench(t, s, kind)
			a := attemptOf(b.me)
			a.Delivery = contract.Barge
			part := func(l contract.Record) contract.BundledCall {
				return contract.BundledCall{Script: l.Traits().Bundled, Acquire: l.Acquire(a), RollBack: l.RollBack(a)}
			}
			other := recordOfLock(b.me, b.name+"-other")
			both := bundleOf([]contract.BundledCall{part(b.kind.mine(b.me, b.name)), part(other)})
			for what, end := range map[string]func(){
				"replaced": func() { b.must(b.rdb.Set(context.Background(), b.name+"-other", "data", 0).Err()) },
				"released": func() { b.does(other.Release(released(a.Field, 0, true)), 1) },
				"lost": func() {
					b.does(other.Force(), 1)
					b.does(recordOfLock(b.alive, b.name+"-other").Acquire(attemptOf(b.alive)), 1)
				},
			} {
				b.must(b.rdb.FlushDB(context.Background()).Err())
				b.does(both, 1)
				before := b.holders()
				require.Len(t, before, 1)
				end()
				answer := b.eval(b.rdb, both)
				assert.Equal(t, before, b.holders(), "%s: %v", what, answer)
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
func (b *bench) state() string {
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
		t.Run(kind.name, func(t *testing.T) {
			b := newReleaseBench(t, s, kind)
			l := b.kind.mine(b.me, b.name)
			dead := attemptOf(b.dead).Field
			for of, data := range otherData {
				for _, delivery := range []string{contract.Push, contract.Poll, contract.Defer, contract.Barge} {
					a := attemptOf(b.me)
					a.Delivery = delivery
					c := l.Acquire(a)
					for _, key := range kind.keysBeside(c) {
						b.must(b.rdb.FlushDB(ctx).Err())
						switch kind.name {
						case "write":
							b.must(b.rdb.HSet(ctx, b.name, "mode", "read", dead, 1).Err())
							b.must(b.rdb.PExpire(ctx, b.name, time.Minute).Err())
						case "fair":
							b.must(b.rdb.RPush(ctx, c.Keys[1], dead).Err())
							b.must(b.rdb.ZAdd(ctx, c.Keys[2], redis.Z{Score: float64(past), Member: dead}).Err())
							b.must(b.rdb.ZAdd(ctx, c.Keys[3], redis.Z{Score: float64(past), Member: dead}).Err())
							b.must(b.rdb.HSet(ctx, b.name, attemptOf(b.alive).Field, 1).Err())
							b.must(b.rdb.PExpire(ctx, b.name, time.Minute).Err())
						case "semaphore":
							b.must(b.rdb.ZAdd(ctx, c.Keys[1], redis.Z{Score: float64(past), Member: dead}).Err())
						}
						b.put(key, data)
						before := b.state()
						hears := b.subscribes(b.me)
						answer := b.eval(b.rdb, c)
						b.must(hears.Close())
						if err, fails := answer.(error); fails {
							assert.ErrorContains(t, err, "NOTALOCK", "%s, %s at %s", delivery, of, key)
							assert.Equal(t, before, b.state(), "%s, %s at %s: %v", delivery, of, key, err)
						}
					}
				}
			}
		})
	}
}
