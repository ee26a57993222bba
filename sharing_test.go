//go:build go1.25

package relock

// Readers of one process that share a record: in bubbles, on a lock that refuses a second record, so
// that a reader that does not share waits; and on a real Redis.

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

// A reader that asks for the write lock waits for the other readers, and is refused when only its own
// read lock is left.
func TestUpgradeOfASharedReadWaitsForOthersAndIsRefused(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		rw := b.client(WithHandoverSlice(time.Hour)).NewRWLock(b.name)
		me, you := WithOwner(context.Background()), WithOwner(context.Background())
		b.must(rw.Read().Lock(me))
		b.must(rw.Read().Lock(you))
		// The fields are the mode and one holder.
		require.Equal(t, int64(2), b.rdb.HLen(me, b.name).Val(), "fields: the readers do not share")
		ok, err := rw.Write().TryLock(me, 0, 0)
		require.NoError(t, err, "beside another reader")
		require.False(t, ok, "beside another reader")
		got := make(chan error, 1)
		go func() { got <- rw.Write().Lock(me) }()
		stays(b, "it waits for the other reader", got, 100*time.Millisecond)
		b.mustBe(rw.Write().Lock(you), ErrInvalid) // each would wait for the other
		b.must(rw.Read().Unlock(you))
		b.mustBe(await(b, "nobody but itself is in its way", got), ErrInvalid)
		b.must(rw.Read().Unlock(me))
		b.must(rw.Write().Lock(me))
		b.must(rw.Write().Unlock(me))
	})
}

// L5: once a reader waits to write, other readers do not share its record.
func TestUpgradingReaderIsNotJoined(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		rw, elsewhere := b.client(WithHandoverSlice(time.Hour)).NewRWLock(b.name), b.client().NewRWLock(b.name).Read()
		me, you := WithOwner(context.Background()), WithOwner(context.Background())
		b.must(elsewhere.Lock(you))
		b.must(rw.Read().Lock(me))
		got := make(chan error, 1)
		go func() { got <- rw.Write().Lock(me) }()
		testredis.Await(t, "a writer waits", soon, func() bool { return b.rdb.ZCard(me, "relock_rwlock_writers:{"+b.name+"}").Val() == 2 })
		b.tries(rw.Read(), false)
		b.must(elsewhere.Unlock(you))
		b.mustBe(await(b, "nobody but itself is in its way", got), ErrInvalid)
		b.must(rw.Read().Unlock(me))
	})
}

// The read lock of a writer is a record of its own, and no other reader shares it.
func TestDowngradeIsNotShared(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	rw := b.client(WithHandoverSlice(time.Hour)).NewRWLock(b.name)
	me, you := WithOwner(context.Background()), WithOwner(context.Background())
	b.must(rw.Write().Lock(me))
	got := make(chan error, 1)
	go func() { got <- rw.Read().Lock(you) }()
	stays(b, "a reader waits for the writer", got, 50*time.Millisecond)
	b.must(rw.Read().Lock(me))
	stays(b, "a reader waits for the writer that reads", got, 50*time.Millisecond)
	b.must(rw.Write().Unlock(me))
	b.must(await(b, "a reader beside a reader", got))
	b.must(rw.Read().Unlock(me))
	b.must(rw.Read().Unlock(you))
}

// A ForceUnlock of a shared record ends all holds of it.
func TestForceUnlockEndsAllSharedReads(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	c := b.client(WithHandoverSlice(time.Hour))
	l := c.NewRWLock(b.name).Read()
	var owners, guards []context.Context
	for range 5 {
		o := WithOwner(context.Background())
		b.must(l.Lock(o))
		guarded, err := l.Guard(o)
		b.must(err)
		owners, guards = append(owners, o), append(guards, guarded)
	}
	freed, err := l.ForceUnlock(context.Background())
	require.NoError(t, err)
	require.True(t, freed)
	for i, o := range owners {
		b.mustBe(context.Cause(guards[i]), ErrLockLost)
		b.mustBe(l.Unlock(o), ErrLockLost)
	}
}

// An owner that waits for both halves at a time may be granted the write half first. Its read lock is then
// a downgrade, which no other reader shares.
func TestReadOfAWriterAdmitsNoOtherReader(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	rw := b.client(WithHandoverSlice(time.Hour)).NewRWLock(b.name)
	me, you, other := WithOwner(context.Background()), WithOwner(context.Background()), WithOwner(context.Background())
	elsewhere := b.client().NewRWLock(b.name)
	b.must(elsewhere.Read().Lock(other))
	waits := func(l known, ctx context.Context) <-chan error {
		got := make(chan error, 1)
		go func() { got <- l.(Locker).Lock(ctx) }()
		return got
	}
	ctx, cancel := context.WithCancel(WithOwner(context.Background()))
	first := waits(elsewhere.Write(), ctx) // the sign of this writer keeps the readers waiting
	testredis.Await(b, "a writer's sign", time.Second, func() bool {
		return b.rdb.Exists(me, "relock_rwlock_writers:{"+b.name+"}").Val() == 1
	})
	mine := waits(rw.Read(), me)
	testredis.Await(b, "a reader that asks", time.Second, func() bool { return b.asks(rw.Read()) })
	yours := waits(rw.Read(), you)
	testredis.Await(b, "a second reader behind it", time.Second, func() bool { return b.waitsInQueue(rw.Read()) })
	wrote := waits(rw.Write(), me)
	testredis.Await(b, "the sign of both writers", time.Second, func() bool {
		return b.rdb.ZCard(me, "relock_rwlock_writers:{"+b.name+"}").Val() == 2
	})
	cancel()
	b.mustBe(<-first, context.Canceled)
	b.must(elsewhere.Read().Unlock(other))
	b.must(await(b, "the writer", wrote))
	b.must(await(b, "its read", mine))
	stays(b, "a reader beside a writer", yours, 100*time.Millisecond)
	ok, err := rw.Read().TryLock(you, 0, 0)
	assert.NoError(t, err, "a reader that comes later")
	assert.False(t, ok, "a reader that comes later")
	b.must(rw.Write().Unlock(me))
	b.must(await(b, "a reader beside a reader", yours))
	b.must(rw.Read().Unlock(me))
	b.must(rw.Read().Unlock(you))
}
