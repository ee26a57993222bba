package relock

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A level more is trusted no longer than its lease, counted from before it was asked
// for, also of the last lock.
func TestMultiLockReentryIsTrustedNoLongerThanItsLease(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	proxy := testredis.NewProxy(t, b.addr)
	ctx := context.Background()
	c := b.clientOn(proxy.Client())
	last := b.name + "-2"
	l := c.NewMultiLock(c.NewLock(b.name+"-1"), c.NewFairLock(last))
	b.must(l.LockLease(ctx, 2500*time.Millisecond))
	proxy.Latency(200 * time.Millisecond)
	err := l.LockLease(ctx, 2*time.Second) // the steps take half of that
	proxy.Latency(0)
	b.must(err)
	guarded, err := l.Guard(ctx)
	b.must(err)
	rival := b.client().NewLock(last)
	b.must(rival.Lock(ctx))
	assert.Error(t, guarded.Err(), "a rival has a lock that is still trusted")
	b.must(rival.Unlock(ctx))
}

// Locks of one kind cost one round trip, and leave the records that single locks leave.
func TestMultiLockOfOneKindCostsOneRoundTrip(t *testing.T) {
	for kind, newOne := range map[string]lockMaker{
		"lock":   func(c *Client, name string) Locker { return c.NewLock(name) },
		"fenced": func(c *Client, name string) Locker { return c.NewLock(name, Fenced()) },
		"read":   newReadLock,
		"write":  newWriteLock,
	} {
		t.Run(kind, func(t *testing.T) {
			onEachServer(t, func(t *testing.T, addr string) {
				b := newBench(t, addr)
				ctx := context.Background()
				rdb := testredis.Client(t, addr)
				sent := new(counter)
				rdb.AddHook(sent)
				c, other := b.clientOn(rdb), b.client()
				var single, many []Locker
				for i := range 5 {
					single = append(single, newOne(other, fmt.Sprint(b.name, "-single-", i)))
					many = append(many, newOne(c, fmt.Sprint(b.name, "-many-", i)))
					b.must(single[i].LockLease(ctx, time.Minute))
				}
				l := c.NewMultiLock(many...)
				b.must(l.LockLease(ctx, time.Minute)) // it is now a script that Redis knows
				b.must(l.Unlock(ctx))
				before := sent.n.Load()
				b.must(l.LockLease(ctx, time.Minute))
				assert.EqualValues(t, 1, sent.n.Load()-before, "requests")
				for i := range 5 {
					assert.Equal(t, b.record(fmt.Sprint(b.name, "-single-", i)), b.record(fmt.Sprint(b.name, "-many-", i)))
					b.holds(many[i], 1)
				}
				b.must(l.Unlock(ctx))
				for _, l := range single {
					b.must(l.Unlock(ctx))
				}
			})
		})
	}
}

// record is what Redis has under keys with that name, without what differs from hold to hold.
func (b *bench) record(name string) string {
	ctx := context.Background()
	var parts []string
	for _, key := range b.keys() {
		if !strings.Contains(key, name) || strings.HasPrefix(key, "redisson_lock_token") {
			continue
		}
		text := ""
		fields, err := b.rdb.HGetAll(ctx, key).Result()
		if err == nil {
			var all []string
			for field, value := range fields {
				all = append(all, fmt.Sprint(strings.Count(field, ":"), field[strings.LastIndex(field, ":")+1:] == "write", "=", value, " "))
			}
			slices.Sort(all)
			text = strings.Join(all, "")
		} else {
			text = b.rdb.Get(ctx, key).Val()
		}
		ttl := b.rdb.PTTL(ctx, key).Val().Round(20 * time.Second)
		parts = append(parts, fmt.Sprint(strings.Count(key, ":"), " ", text, ttl))
	}
	slices.Sort(parts)
	return strings.Join(parts, "\n")
}

// A lease counts from when the last one was taken, exactly, for each of them.
func TestMultiLockLeaseBeginsWithTheLast(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for _, lease := range []time.Duration{3 * time.Second, time.Hour} { // less and more than the watchdog's
			b := newBench(t, addr)
			ctx := context.Background()
			c, other := b.client(), b.client()
			early := []Locker{c.NewLock(b.name + "-1"), newWriteLock(c, b.name+"-2"), newReadLock(c, b.name+"-3")}
			before := c.NewLock(b.name + "-4")
			b.must(before.LockLease(ctx, 2*time.Hour)) // held already
			last := other.NewFairLock(b.name + "-last")
			b.must(last.Lock(ctx))
			// A fair lock comes before a plain one; a foreign Locker comes last.
			l := c.NewMultiLock(append(early, before, stubLocker{Locker: c.NewFairLock(b.name + "-last")})...)
			got := make(chan error)
			owned := engine.OwnerOf(ctx).In(ctx)
			go func() { got <- l.LockLease(owned, lease) }()
			testredis.Await(b, "the others are held", soon, func() bool {
				for _, e := range early {
					if held, err := e.IsHeld(ctx); !held || err != nil {
						return false
					}
				}
				return true
			})
			time.Sleep(2500 * time.Millisecond)
			b.must(last.Unlock(ctx))
			b.must(await(b, "all are free", got))
			for _, e := range early {
				ttl, err := e.TTL(ctx)
				require.NoError(t, err)
				assert.LessOrEqual(t, ttl, lease, e.Name())
				assert.GreaterOrEqual(t, ttl, lease-2300*time.Millisecond, e.Name())
			}
			ttl, err := before.TTL(ctx)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, ttl, time.Hour+time.Minute, "left of what was held longer")
			b.must(l.Unlock(ctx))
			b.holds(before, 1)
			b.must(before.Unlock(ctx))
		}
	})
}
