package relock

// MultiLocks of Lockers of another package, and of types that embed a lock of this one.
//
// Rules: they are acquired, extended and released through their own methods, which may fail in every way, and keep the
// lease that the MultiLock needs.

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A stubLocker is a foreign Locker: it wraps a Locker of the package, and overrides some answers.
type stubLocker struct {
	Locker
	tryLock func(ctx context.Context, wait, lease time.Duration) (bool, error)
	unlock  func(ctx context.Context) error
	guard   func(ctx context.Context) (context.Context, error)
}

func (s stubLocker) Guard(ctx context.Context) (context.Context, error) {
	if s.guard != nil {
		return s.guard(ctx)
	}
	return s.Locker.Guard(ctx)
}

func (s stubLocker) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	if s.tryLock != nil {
		return s.tryLock(ctx, wait, lease)
	}
	return s.Locker.TryLock(ctx, wait, lease)
}

func (s stubLocker) Unlock(ctx context.Context) error {
	err := s.Locker.Unlock(ctx)
	if s.unlock != nil {
		err = s.unlock(ctx)
	}
	return err
}

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
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c := b.client()
	counted := &countedLock{FairLock: c.NewFairLock(b.name)}
	for _, l := range []Locker{
		c.NewMultiLock(counted), c.NewMultiLock(counted, c.NewFairLock(b.name+"2"), c.NewLock(b.name+"3")),
	} {
		for _, lease := range []time.Duration{0, time.Minute} {
			ok, err := l.TryLock(ctx, soon, lease)
			b.must(err)
			require.True(t, ok)
			assert.Equal(t, 1, counted.held)
			b.must(l.Unlock(ctx))
			assert.Zero(t, counted.held)
		}
		b.must(l.Lock(ctx))
		assert.Equal(t, 1, counted.held)
		b.must(l.Unlock(ctx))
		assert.Zero(t, counted.held)
	}
}

// The suite for a MultiLock that contains a foreign Locker, which does not end at the very moment when the others do.
func TestMultiLockOfForeignLockers(t *testing.T) {
	newLock := func(c *Client, name string) Locker {
		return c.NewMultiLock(stubLocker{Locker: c.NewLock(name + "-b")}, c.NewLock(name))
	}
	suite{newLock: newLock, rival: newLock, without: "LapsedLeaseNeedsNoUnlock"}.run(t)
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
func (g *guardless) Lock(context.Context) error   { g.tries++; return nil }
func (g *guardless) Unlock(context.Context) error { return nil }
func (g *guardless) Guard(context.Context) (context.Context, error) {
	return nil, io.ErrNoProgress
}

// Foreign Lockers may fail in different ways.
func TestMultiLockOfForeignLockersThatFail(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c := b.client()
	last := stubLocker{Locker: c.NewLock(b.name + "-z")}
	strange := &guardless{Locker: c.NewLock(b.name + "-A")}
	b.mustBe(c.NewMultiLock(strange, last).Lock(ctx), io.ErrNoProgress)

	lost := &guardless{Locker: c.NewLock(b.name + "-B")} // always
	deadline, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	b.mustBe(c.NewMultiLock(neverHeld{lost}, last).Lock(deadline), context.DeadlineExceeded)
	assert.LessOrEqual(t, lost.tries, 30, "tries in 100ms")

	panics := stubLocker{
		Locker:  c.NewLock(b.name + "-C"),
		tryLock: func(context.Context, time.Duration, time.Duration) (bool, error) { panic("mine") },
	}
	assert.PanicsWithValue(t, "mine", func() {
		_, _ = c.NewMultiLock(panics, c.NewLock(b.name+"-D")).TryLock(ctx, time.Second, 0)
	})
	b.isLocked(c.NewLock(b.name+"-D"), false)
}

type neverHeld struct{ *guardless }

func (neverHeld) Guard(context.Context) (context.Context, error) { return nil, ErrLockLost }

// The same for a step that is a type of the user which embeds a lock: its lease must last until the first extension.
func TestMultiLockKeepsTheLeaseOfATypeThatEmbedsALock(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string][]LockOption{"": nil, "MaxHold": {MaxHold(time.Minute)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, ctx := newBench(t, testredis.Start(t).Addr()), context.Background()
			c := b.client()
			last := b.client().NewFairLock(b.name + "-last")
			b.must(last.Lock(ctx))
			const lease = 500 * time.Millisecond
			got, owner := make(chan error), ContextWithOwner(ctx)
			early := &countedLock{FairLock: c.NewFairLock(b.name+"-1", limit...)}
			l := c.NewMultiLock(early, c.NewFairLock(b.name+"-last"))
			go func() {
				ok, err := l.TryLock(owner, time.Minute, lease)
				assert.True(b, ok)
				got <- err
			}()
			extended, left := 0, time.Duration(0)
			testredis.Await(b, "the lease was extended", time.Minute, func() bool {
				now := b.rdb.PTTL(ctx, early.Name()).Val()
				if left > 0 {
					require.Positive(b, now, "the lease has expired")
				}
				if now > left && left > 0 {
					extended++
				}
				left = now
				return extended >= 2
			})
			b.must(last.Unlock(ctx))
			b.must(await(b, "all are free", got))
			testredis.Await(b, "the lease has ended", time.Minute, func() bool { return len(b.keys()) == 0 })
		})
	}
}

// The lease that its method is asked for is one that MaxHold allows.
func TestMultiLockAsksATypeThatEmbedsALockForNoMoreThanMaxHold(t *testing.T) {
	b, ctx := newBench(t, testredis.Mini(t).Addr()), context.Background()
	c := b.client()
	const most = time.Second
	first := &countedLock{FairLock: c.NewFairLock(b.name, MaxHold(most))}
	l := c.NewMultiLock(first, c.NewFairLock(b.name+"2"))
	ok, err := l.TryLock(ctx, soon, most/2)
	b.must(err)
	require.True(b, ok)
	b.must(l.Unlock(ctx))
	_, err = l.TryLock(ctx, soon, most+1)
	b.mustBe(err, ErrInvalid)
}
