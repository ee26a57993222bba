package locks

// MultiLocks of Lockers of another package, and of types that embed a lock of this one.
//
// Rules: they are acquired, extended and released through their own methods, which may fail in every way, and keep the
// lease that the MultiLock needs.

import (
	"context"
	"io"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A countedLock is a type of a user that embeds a lock of the package, and has methods of its own.
type countedLock struct {
	*FairLock
	held int
}

func (l *countedLock) Lock(ctx context.Context) error {
	err := l.FairLock.Lock(ctx)
	if err == nil {
		l.held++
	}
	return err
}

func (l *countedLock) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	ok, err := l.FairLock.TryLock(ctx, wait, lease)
	if ok {
		l.held++
	}
	return ok, err
}

func (l *countedLock) Unlock(ctx context.Context) error {
	l.held--
	return l.FairLock.Unlock(ctx)
}

// A type that embeds a lock is acquired and released through its own methods.
func TestMultiLockUsesTheMethodsOfATypeThatEmbedsALock(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client()
	counted := &countedLock{FairLock: c.NewFairLock(b.LockName)}
	for _, l := range []Locker{
		c.NewMultiLock(counted), c.NewMultiLock(counted, c.NewFairLock(b.LockName+"2"), c.NewLock(b.LockName+"3")),
	} {
		for _, lease := range []time.Duration{0, time.Minute} {
			ok, err := l.TryLock(ctx, locktest.Soon, lease)
			b.Must(err)
			require.True(t, ok)
			assert.Equal(t, 1, counted.held)
			b.Must(l.Unlock(ctx))
			assert.Zero(t, counted.held)
		}
		b.Must(l.Lock(ctx))
		assert.Equal(t, 1, counted.held)
		b.Must(l.Unlock(ctx))
		assert.Zero(t, counted.held)
	}
}

// The suite for a MultiLock that contains a foreign Locker, which does not end at the very moment when the others do.
func TestMultiLockOfForeignLockers(t *testing.T) {
	newLock := func(c *Client, name string) Locker {
		return c.NewMultiLock(locktest.StubLocker{Locker: c.NewLock(name + "-b")}, c.NewLock(name))
	}
	suite{newLock: newLock, rival: newLock}.run(t)
}

// A guardless is a foreign Locker that grants every request and guards nothing.
type guardless struct {
	Locker
	tries int
}

func (g *guardless) TryLock(context.Context, time.Duration, time.Duration) (bool, error) {
	g.tries++
	return true, nil
}

func (g *guardless) Lock(context.Context) error { g.tries++; return nil }

func (g *guardless) Unlock(context.Context) error { return nil }

func (g *guardless) Guard(context.Context) (context.Context, error) {
	return nil, io.ErrNoProgress
}

// Foreign Lockers may fail in different ways.
func TestMultiLockOfForeignLockersThatFail(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client()
	last := locktest.StubLocker{Locker: c.NewLock(b.LockName + "-z")}
	strange := &guardless{Locker: c.NewLock(b.LockName + "-A")}
	b.MustBe(c.NewMultiLock(strange, last).Lock(ctx), io.ErrNoProgress)

	lost := &guardless{Locker: c.NewLock(b.LockName + "-B")} // always
	deadline, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	b.MustBe(c.NewMultiLock(neverHeld{lost}, last).Lock(deadline), context.DeadlineExceeded)
	assert.LessOrEqual(t, lost.tries, 30, "tries in 100ms")

	panics := locktest.StubLocker{
		Locker:    c.NewLock(b.LockName + "-C"),
		OnTryLock: func(context.Context, time.Duration, time.Duration) (bool, error) { panic("mine") },
	}
	assert.PanicsWithValue(t, "mine", func() {
		_, _ = c.NewMultiLock(panics, c.NewLock(b.LockName+"-D")).TryLock(ctx, time.Second, 0)
	})
	b.IsLocked(c.NewLock(b.LockName+"-D"), false)
}

type neverHeld struct{ *guardless }

func (neverHeld) Guard(context.Context) (context.Context, error) { return nil, ErrLockLost }

// While a MultiLock waits for the last of its locks, it extends an explicit lease of the others, also of one whose type
// embeds a lock: the lease must last until the first extension.
func TestMultiLockKeepsTheLeaseOfATypeThatEmbedsALock(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string][]LockOption{"": nil, "MaxHold": {MaxHold(time.Minute)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := locktest.NewBench(t, testredis.Start(t).Addr())
			c := b.Client()
			last := b.Client().NewFairLock(b.LockName + "-last")
			b.Must(last.Lock(ctx))
			const lease = 500 * time.Millisecond
			got, owner := make(chan error), ContextWithOwner(ctx)
			early := &countedLock{FairLock: c.NewFairLock(b.LockName+"-1", limit...)}
			l := c.NewMultiLock(early, c.NewFairLock(b.LockName+"-last"))
			go func() {
				ok, err := l.TryLock(owner, time.Minute, lease)
				assert.True(b, ok)
				got <- err
			}()
			extended, left := 0, time.Duration(0)
			testredis.Await(b, "the lease was extended", time.Minute, func() bool {
				now := b.Rdb.PTTL(ctx, early.Name()).Val()
				if left > 0 {
					require.Positive(b, now, "the lease has expired")
				}
				if now > left && left > 0 {
					extended++
				}
				left = now
				return extended >= 2
			})
			b.Must(last.Unlock(ctx))
			b.Must(locktest.Await(b, "all are free", got))
			testredis.Await(b, "the lease has ended", time.Minute, func() bool { return len(b.Keys()) == 0 })
		})
	}
}

// The lease that its method is asked for is one that MaxHold allows.
func TestMultiLockAsksATypeThatEmbedsALockForNoMoreThanMaxHold(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client()
	const most = time.Second
	first := &countedLock{FairLock: c.NewFairLock(b.LockName, MaxHold(most))}
	l := c.NewMultiLock(first, c.NewFairLock(b.LockName+"2"))
	ok, err := l.TryLock(ctx, locktest.Soon, most/2)
	b.Must(err)
	require.True(b, ok)
	b.Must(l.Unlock(ctx))
	_, err = l.TryLock(ctx, locktest.Soon, most+1)
	b.MustBe(err, ErrInvalid)
}
