package locks

// The line for users who may not publish, subscribe, or use its keys.
//
// Rules: a user who may not publish or subscribe acquires locks all the same, and passes them on. It lets those in the
// line go first.

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A user that may not publish, or not subscribe, acquires locks, and passes them to others.
func TestLineWithoutAPermission(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	for what, lack := range map[string]struct {
		rights []string
		warned string // the log when the user waits; "" if nothing is logged
	}{
		"publish":   {[]string{"allkeys", "allchannels", "allcommands", "-publish"}, ""},
		"subscribe": {[]string{"allkeys", "allchannels", "allcommands", "-subscribe"}, "refuses the subscription"},
		"channels":  {[]string{"allkeys", "resetchannels", "allcommands"}, "refuses the subscription"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := locktest.NewBench(t, s.Addr())
			d := b.Deployment(s)
			var logged locktest.LockedBuffer
			opts := []Option{WithPollInterval(300 * time.Millisecond), WithWatchdogTimeout(30 * time.Second)}
			user := d.User(b, lack.rights, append(opts, WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))...)
			other := []*Client{b.Client(opts...), b.Client(opts...)}
			ctx, cancel := context.WithTimeout(ctx, locktest.Soon)
			defer cancel()
			first := b.Manual().Takes()
			var all sync.WaitGroup
			var inside atomic.Int32
			for _, c := range []*Client{user, other[0], user, other[1]} {
				waitgroup.Go(&all, func() {
					l, me := c.NewLock(b.LockName), ContextWithOwner(ctx)
					for range 5 {
						if !assert.NoError(b, l.Lock(me), "Lock without the right to %s", what) {
							return
						}
						assert.Equal(b, int32(1), inside.Add(1), "owners inside")
						time.Sleep(time.Millisecond)
						inside.Add(-1)
						assert.NoError(b, l.Unlock(me))
					}
				})
			}
			testredis.Await(b, "the user waits", locktest.Soon, func() bool {
				return b.Asks(user.NewLock(b.LockName)) && (lack.warned == "" || logged.String() != "")
			})
			first.Release(false)
			all.Wait()
			log := logged.String()
			assert.Equal(b, map[bool]int{true: 1}[lack.warned != ""], strings.Count(log, "level="), "logged: %s", log)
			assert.Contains(b, log, lack.warned, "logged")
		})
	}
}

// A user that may not publish cannot notify waiters of its release, and they poll once in each poll interval. The user
// leaves the lock to them for that time, even if it has only one goroutine, and if there are several permits.
func TestLineUserWithoutPublishLetsOthersGoFirst(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	b := locktest.NewBench(t, server.Addr())
	d := b.Deployment(server)
	user := d.User(b, []string{"allkeys", "allchannels", "allcommands", "-publish"})
	t.Cleanup(func() { b.Must(b.Rdb.FlushAll(ctx).Err()) }) // a semaphore leaves its number of permits
	for kind, newLock := range map[string]func(c *Client, name string) Locker{
		"plain": func(c *Client, name string) Locker { return c.NewLock(name) },
		// In addition to a MultiLock, which has no entry.
		"multi":     func(c *Client, name string) Locker { return c.NewLock(name) },
		"semaphore": func(c *Client, name string) Locker { return c.NewSemaphore(name, 2) },
	} {
		for goroutines := range 2 {
			t.Run(fmt.Sprint(kind, goroutines+1), func(t *testing.T) {
				t.Parallel()
				name := fmt.Sprint(b.LockName, kind, goroutines)
				other, busy := newLock(b.Client(), name), newLock(user, name)
				ctx, stop := context.WithCancel(ctx)
				section, most := time.Millisecond, int64(300)
				if kind == "multi" { // the MultiLock has to be notified of each release
					section, most = 15*time.Millisecond, 100
				}
				var sections atomic.Int64
				var all sync.WaitGroup
				if kind == "semaphore" && goroutines == 0 { // otherwise the permits are enough for all
					require.NoError(t, other.Lock(ContextWithOwner(context.Background())))
				}
				for range goroutines + 1 {
					waitgroup.Go(&all, func() {
						for me := ContextWithOwner(ctx); busy.Lock(me) == nil; sections.Add(1) {
							time.Sleep(section)
							assert.NoError(t, busy.Unlock(me))
						}
					})
				}
				if kind == "multi" {
					c := b.Client()
					beside := c.NewMultiLock(c.NewLock(name), c.NewLock(name+"-beside"))
					waitgroup.Go(&all, func() {
						for me := ContextWithOwner(ctx); beside.Lock(me) == nil; {
							assert.NoError(t, beside.Unlock(me))
						}
					})
				}
				testredis.Await(t, "the user has the lock", locktest.Soon, func() bool { return sections.Load() > 0 })
				before, me := sections.Load(), ContextWithOwner(context.Background())
				require.NoError(t, other.Lock(me))
				assert.Less(t, sections.Load()-before, most, "sections of the user, while the other one waited")
				stop()
				all.Wait()
				assert.NoError(t, other.Unlock(me))
			})
		}
	}
}

// A user that may use the keys of Redisson alone is told at once which pattern to grant, for each type of lock, and
// nothing is left in Redis.
func TestLineWithoutItsKeysIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	b := locktest.NewLineBench(t, server.Addr())
	user := b.Deployment(server).User(b, []string{"~lock-*", "~{lock-*", "~redisson_lock_*", "allchannels", "allcommands"})
	for _, kind := range locktest.RecordLocks {
		l := kind.One(user, b.LockName)
		start := time.Now()
		for what, call := range map[string]func() error{
			"Lock":        func() error { return l.Lock(ctx) },
			"TryLock":     func() error { return locktest.Second(l.TryLock(ctx, 0, 0)) },
			"ForceUnlock": func() error { return locktest.Second(l.ForceUnlock(ctx)) },
			"Inspect":     func() error { return locktest.Second(user.Inspect(ctx, b.LockName)) },
		} {
			assert.ErrorContains(b, call(), "~relock_*", "%s: %s", kind.Name, what)
		}
		assert.Less(b, time.Since(start), locktest.Soon, kind.Name)
		assert.Empty(b, b.Rdb.Keys(ctx, "*").Val(), kind.Name)
	}
}
