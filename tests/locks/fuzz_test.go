//go:build go1.25

package locks

// Fuzzing: a Client with any options, and a lock with any calls. The seeds run with the other tests. To search for more:
//
//	go test -run '^$' -fuzz '^FuzzLocker$' -fuzztime 1m ./tests/locks

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/inside"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A Client with any options that it accepts can wait for a lock and acquire it.
func FuzzOptions(f *testing.F) {
	for _, d := range []int64{0, 1, 100_000_000, 1_000_000_000, -1, math.MaxInt64, math.MinInt64} {
		f.Add(d, d, d, d)
	}
	f.Add(int64(30*time.Second), int64(time.Minute), int64(1), int64(1))
	f.Add(int64(time.Minute), int64(time.Minute), int64(0), int64(1))
	f.Add(int64(time.Minute), int64(time.Minute), int64(1), int64(0))
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), int64(time.Second), int64(time.Second))
	f.Fuzz(func(t *testing.T, dog, fair, wake, node int64) {
		r := fakeredis.New()
		config, err := inside.Config("client", []Option{
			WithWatchdogTimeout(time.Duration(dog)), WithFairWaitTimeout(time.Duration(fair)),
			WithPollInterval(
				time.Duration(wake),
			), WithRedLockNodeTimeout(time.Duration(node)), WithLogger(slog.New(slog.DiscardHandler)),
		}, r.Subscribe)
		bad := dog < int64(100*time.Millisecond) || fair < int64(time.Second) || wake <= 0 || node <= 0
		testredis.CheckText(t, err)
		require.Equal(t, bad, err != nil, "%v", err)
		require.Equal(t, bad, errors.Is(err, ErrInvalid), "%v", err)
		if bad {
			return
		}
		config.PollInterval = max(config.PollInterval, 100*time.Microsecond) // not a million attempts
		synctest.Test(t, func(t *testing.T) {
			config.Channel = "" // a subscription asks every second whether it is alive, and this test takes months
			e := engine.New(config, send.Config{Transport: r})
			b := &locktest.BubbleEngine{Engine: e, Redis: r, T: t}
			b.Lock(1)
			got := make(chan error, 1)
			go func() {
				_, err := b.LockWith(ctx, 2, engine.Request{Wait: locktest.Forever, Lease: time.Duration(dog)})
				got <- err
			}()
			time.Sleep(10 * time.Millisecond)
			b.Unlock(1)
			assert.NoError(t, <-got)
			time.Sleep(time.Duration(dog) / 1000)
			b.LockWith(ctx, 2, engine.Request{Wait: 0})
			assert.NoError(t, e.Close())
		})
	})
}

// A lock with any name, wait time and lease rejects them and sends nothing, or works and leaves nothing in Redis.
func FuzzLocker(f *testing.F) {
	kinds := append(slices.Clone(locktest.RecordLocks), locktest.LockKind{Name: "multi", One: func(c *Client, name string) Locker {
		return c.NewMultiLock(c.NewLock(name), c.NewLock(name+"2"))
	}})
	for i := range kinds {
		kind := byte(i)
		f.Add(kind, "orders:42", int64(time.Second), int64(0))
		f.Add(kind, "{orders}:42", int64(0), int64(time.Minute))
		f.Add(kind, "", int64(0), int64(0))
		f.Add(kind, "a{}\x00\r\n*", int64(1), int64(time.Millisecond))
		f.Add(kind, "x", int64(-1), int64(math.MaxInt64))
		f.Add(kind, "x", int64(math.MaxInt64), int64(-1))
		f.Add(kind, strings.Repeat("long", 1000), int64(0), int64(math.MaxInt64))
	}
	f.Add(byte(0), strings.Repeat("n", record.LongestName+1), int64(0), int64(0))
	f.Fuzz(func(t *testing.T, kind byte, name string, wait, lease int64) {
		// Each input has a server of its own: one that is skipped may leave what still runs or is still rolled back.
		m := testredis.Mini(t)
		rdb := testredis.Client(t, m.Addr())
		c, err := New(rdb, WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		k := kinds[int(kind)%len(kinds)]
		l := k.One(c, name)
		badName := name == "" || len(name) > record.LongestName || k.Name == "multi" && len(name) >= record.LongestName
		badLease := lease != 0 && lease < int64(time.Millisecond)
		check := func(what string, ok bool, err error, bad bool) bool {
			t.Helper()
			testredis.CheckText(t, err)
			if bad {
				require.ErrorIs(t, err, ErrInvalid, what)
				require.False(t, ok, what)
				left := slices.DeleteFunc(m.Keys(), func(key string) bool { return locktest.OnlyTombstones(rdb, key) })
				require.Empty(t, left, "%s leaves keys", what)
				return false
			}
			require.NotErrorIs(t, err, ErrInvalid, what)
			if errors.Is(err, engine.ErrNoAnswer) {
				t.Skip("the machine stood still for longer than the wait")
			}
			if !errors.Is(err, ErrLockLost) { // a lease may expire at once
				require.NoError(t, err, what)
			}
			return ok
		}
		unlock := func() {
			t.Helper()
			err := l.Unlock(ctx)
			require.True(t, err == nil && !badName || errors.Is(err, ErrNotHeld), "Unlock: %v", err)
			testredis.CheckText(t, err)
			testredis.Await(t, "nothing is left", locktest.Soon, func() bool {
				left := m.Keys()
				if k.Leaves != nil {
					left = slices.DeleteFunc(left, func(key string) bool { return key == name || key == k.Holds(name) })
				}
				left = slices.DeleteFunc(left, func(key string) bool { return locktest.OnlyTombstones(rdb, key) })
				return len(left) == 0 || k.Name == "fenced" && len(left) == 1 && left[0] == record.TokenKey(name)
			})
			m.FlushAll()
		}
		ok, err := l.TryLock(ctx, time.Duration(wait), time.Duration(lease))
		if check("TryLock", ok, err, badName || badLease || wait < 0) {
			unlock()
		}
		err = l.LockLease(ctx, time.Duration(lease))
		if check("LockLease", err == nil, err, badName || badLease || lease == 0) {
			held, err := l.IsHeld(ctx)
			check("IsHeld", held, err, false)
			_, err = l.TTL(ctx)
			check("TTL", true, err, false)
			unlock()
		}
		if badName {
			for what, f := range map[string]func() error{
				"Lock":        func() error { return l.Lock(ctx) },
				"Unlock":      func() error { return l.Unlock(ctx) },
				"Guard":       func() error { return locktest.Second(l.Guard(ctx)) },
				"Do":          func() error { return l.Do(ctx, func(context.Context) error { return nil }) },
				"IsLocked":    func() error { return locktest.Second(l.IsLocked(ctx)) },
				"HoldCount":   func() error { return locktest.Second(l.HoldCount(ctx)) },
				"TTL":         func() error { return locktest.Second(l.TTL(ctx)) },
				"ForceUnlock": func() error { return locktest.Second(l.ForceUnlock(ctx)) },
			} {
				check(what, false, f(), true)
			}
		}
	})
}
