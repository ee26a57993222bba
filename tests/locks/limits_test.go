package locks

import (
	"context"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// limitedLocks are a lock of each type with a record, and one that it excludes.
var limitedLocks = []struct {
	name  string
	make  func(c *Client, name string, opts ...LockOption) Locker
	rival locktest.LockMaker
}{
	{"Lock", func(c *Client, name string, opts ...LockOption) Locker { return c.NewLock(name, opts...) },
		func(c *Client, name string) Locker { return c.NewLock(name) }},
	{"fenced Lock", func(c *Client, name string, opts ...LockOption) Locker {
		return c.NewLock(name, append(opts, Fenced())...)
	},
		func(c *Client, name string) Locker { return c.NewLock(name) }},
	{"FairLock", func(c *Client, name string, opts ...LockOption) Locker { return c.NewFairLock(name, opts...) },
		func(c *Client, name string) Locker { return c.NewFairLock(name) }},
	{"ReadLock", func(c *Client, name string, opts ...LockOption) Locker { return c.NewRWLock(name, opts...).Read() },
		func(c *Client, name string) Locker { return c.NewRWLock(name).Write() }},
	{"WriteLock", func(c *Client, name string, opts ...LockOption) Locker { return c.NewRWLock(name, opts...).Write() },
		func(c *Client, name string) Locker { return c.NewRWLock(name).Read() }},
	{"MultiLock", func(c *Client, name string, opts ...LockOption) Locker {
		return c.NewMultiLock(
			c.NewLock(name, opts...),
			c.NewFairLock(name+":fair", opts...),
			c.NewRWLock(name+":rw", opts...).Write(),
		)
	}, func(c *Client, name string) Locker { return c.NewLock(name) }},
}

func TestMinHoldKeepsTheRecordUntilItHasPassed(t *testing.T) {
	t.Parallel()
	const d = time.Second
	addr := testredis.Start(t).Addr()
	for _, c := range limitedLocks {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, lease := range []time.Duration{0, d * 3 / 4, time.Minute} {
				b := locktest.NewBench(t, addr)
				l, rival := c.make(b.Client(), b.LockName, MinHold(d)), c.rival(b.Client(), b.LockName)
				start := time.Now() // the limit of the first lock of a MultiLock starts with its own acquire
				ok, err := l.TryLock(ctx, 0, lease)
				require.NoError(t, err)
				require.True(t, ok)
				guarded, err := l.Guard(ctx)
				require.NoError(t, err)
				require.NoError(t, l.Unlock(ctx))
				assert.ErrorIs(t, guarded.Err(), context.Canceled, "the guard after Unlock")
				assert.ErrorIs(t, l.Unlock(ctx), ErrNotHeld, "a second Unlock")
				ttl, err := rival.TTL(ctx)
				require.NoError(t, err)
				assert.LessOrEqual(t, ttl, d, "lease %v", lease)
				ok, err = rival.TryLock(ctx, 0, 0)
				require.NoError(t, err)
				assert.True(t, !ok || time.Since(start) >= d, "lease %v: it is free %v after Lock", lease, time.Since(start))
				if !ok {
					require.NoError(t, rival.Lock(ctx))
				}
				assert.GreaterOrEqual(t, time.Since(start), d, "lease %v: the time until the next one has it", lease)
				require.NoError(t, rival.Unlock(ctx))
			}
		})
	}
}

// The write lock keeps its record in the same hash as the read lock of its owner, whose lease it must not shorten.
func TestMinHoldOfAWriterShortensNoLeaseOfItsReader(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	rw := b.Client().NewRWLock(b.LockName, MinHold(time.Second))
	start := time.Now()
	require.NoError(t, rw.Write().Lock(ctx))
	require.NoError(t, rw.Read().Lock(ctx))
	require.NoError(t, rw.Write().Unlock(ctx))
	assert.Greater(t, b.Rdb.PTTL(ctx, b.LockName).Val(), 20*time.Second, "the lease of the reader")
	reads, err := rw.Read().IsHeld(ctx)
	require.NoError(t, err)
	assert.True(t, reads)
	other := b.Client().NewRWLock(b.LockName)
	ok, err := other.Read().TryLock(ctx, 0, 0)
	require.NoError(t, err)
	assert.True(t, !ok || time.Since(start) >= time.Second, "the write lock is free")
	if !ok {
		require.NoError(t, other.Read().Lock(ctx))
	}
	assert.GreaterOrEqual(t, time.Since(start), time.Second)
	require.NoError(t, other.Read().Unlock(ctx))
	require.NoError(t, rw.Read().Unlock(ctx))
}

func TestMaxHoldLosesALockOfEachType(t *testing.T) {
	t.Parallel()
	addr := testredis.Start(t).Addr()
	for _, c := range limitedLocks {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := locktest.NewBench(t, addr)
			const d = 800 * time.Millisecond
			l, rival := c.make(b.Client(), b.LockName, MaxHold(d)), c.rival(b.Client(), b.LockName)
			require.ErrorIs(t, l.LockLease(ctx, d+time.Millisecond), ErrInvalid)
			start := time.Now()
			require.NoError(t, l.Lock(ctx))
			guarded, err := l.Guard(ctx)
			require.NoError(t, err)
			require.NoError(t, rival.Lock(ctx))
			assert.Less(t, time.Since(start), locktest.Soon)
			assert.ErrorIs(t, context.Cause(guarded), ErrMaxHold)
			require.NoError(t, rival.Unlock(ctx))
			assert.ErrorIs(t, l.Unlock(ctx), ErrMaxHold)
		})
	}
}

// A write hold with a limit ends in time, even if its owner continues to read.
func TestMaxHoldOfAWriterThatReadsOn(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	c := b.Client()
	write, read := c.NewRWLock(b.LockName, MaxHold(time.Second)).Write(), c.NewRWLock(b.LockName).Read()
	require.NoError(t, write.Lock(ctx))
	require.NoError(t, read.Lock(ctx))
	other := b.Client().NewRWLock(b.LockName).Read()
	start := time.Now()
	require.NoError(t, other.Lock(ctx))
	assert.Less(t, time.Since(start), locktest.Soon)
	held, err := read.IsHeld(ctx)
	require.NoError(t, err)
	assert.True(t, held, "the read lock")
	require.NoError(t, other.Unlock(ctx))
	require.NoError(t, read.Unlock(ctx))
	assert.ErrorIs(t, write.Unlock(ctx), ErrMaxHold)
}

func TestReadersWithLimitsShareNoRecord(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	read := b.Client(WithHandoffWindow(time.Hour)).NewRWLock(b.LockName, MaxHold(time.Minute)).Read()
	first, second := ContextWithOwner(ctx), ContextWithOwner(ctx)
	require.NoError(t, read.Lock(first))
	require.NoError(t, read.Lock(second))
	i, err := locktest.ClientOf(read).Inspect(ctx, b.LockName)
	require.NoError(t, err)
	assert.Len(t, i.Holders, 2)
	require.NoError(t, read.Unlock(first))
	require.NoError(t, read.Unlock(second))
}

func TestLimitsThatMakeNoSenseAreRefused(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client()
	for text, opts := range map[string][]LockOption{
		"MaxHold(0s): must be at least 1ms":      {MaxHold(0)},
		"MaxHold(999µs): must be at least 1ms":   {MaxHold(999 * time.Microsecond)},
		"MinHold(2s) is longer than MaxHold(1s)": {MinHold(2 * time.Second), MaxHold(time.Second)},
		"MinHold(0s): must be at least 1ms":      {MinHold(0)},
		"MinHold(-1s): must be at least 1ms":     {MinHold(-time.Second)},
		"MinHold(999µs): must be at least 1ms":   {MinHold(999 * time.Microsecond)},
	} {
		for _, l := range limitedLocks {
			locker := l.make(c, b.LockName, opts...)
			for _, err := range []error{locker.Lock(ctx), locker.Unlock(ctx)} {
				assert.ErrorIs(t, err, ErrInvalid, "%s %s", l.name, text)
				assert.ErrorContains(t, err, text, l.name)
			}
		}
	}
	red := c.NewRedLock(c.NewLock(b.LockName), c.NewLock(b.LockName+"2", MinHold(time.Second)), c.NewLock(b.LockName+"3"))
	assert.ErrorIs(t, red.Lock(ctx), ErrInvalid)
	red = c.NewRedLock(c.NewLock(b.LockName), c.NewLock(b.LockName+"2", MaxHold(time.Second)), c.NewLock(b.LockName+"3"))
	assert.ErrorIs(t, red.Lock(ctx), ErrInvalid)
}
