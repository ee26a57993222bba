package relock

// The line of a plain lock and a read/write lock of the same name.
//
// Rules: there is one line for both, and a client has one place in it. Readers, and writers without a place, are
// notified when the plain lock is released, and readers do not share while processes wait for the plain lock.

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func (b *bench) rwReleases() string { return prefixName("redisson_rwlock", b.name) }

// rw runs a script of a read/write lock.
func (m *manual) rw(s *luaScript, args ...any) reply {
	m.Helper()
	r, err := run(
		context.Background(),
		m.rdb,
		call{Script: s, Keys: []string{m.name, prefixName("relock_rwlock_writers", m.name), m.lineKey()}, Args: args},
	)
	m.must(err)
	return r
}

// writes asks for the write lock with the second field of m.
func (m *manual) writes(delivery string) reply {
	m.Helper()
	return m.rw(
		writeAcquire,
		m.id+":1:02",
		m.lease,
		1,
		suffixName(m.name, ""),
		"",
		0,
		delivery,
		1,
		false,
		m.rwReleases(),
		"publish",
	)
}

// endsWriting releases the write lock, or removes its entry. The hand-off window never ends.
func (m *manual) endsWriting() reply {
	m.Helper()
	return m.rw(
		writeRelease,
		m.id+":1:02",
		0,
		suffixName(m.name, ""),
		false,
		"",
		m.rwReleases(),
		"publish",
		neverDue.Milliseconds(),
		false,
	)
}

func (m *manual) reads() reply {
	m.Helper()
	return m.rw(readAcquire, m.id+":1:03", m.lease, 1, suffixName(m.name, ""), "", m.rwReleases(), "publish")
}

func (m *manual) endsReading() reply {
	m.Helper()
	return m.rw(
		readRelease,
		m.id+":1:03",
		0,
		suffixName(m.name, ""),
		true,
		m.rwReleases(),
		"publish",
		neverDue.Milliseconds(),
	)
}

// A plain lock and a write lock of one name have one line. A release of either grants the lock to the first entry,
// whichever of the two it is for, on its channel.
func TestLinePassesBetweenPlainAndWriteLocks(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.contender().takes()
		writer := b.contender()
		write := writer.client.NewRWLock(b.name).Write()
		go func() { writer.got <- write.Lock(writer.owner) }()
		writer.joined()
		next := b.contender().joins()
		reader := b.contender()
		read := reader.client.NewRWLock(b.name).Read()
		require.Equal(b, []string{writer.client.ID(), next.client.ID()}, b.clientsInLine(), "the line")

		first.unlocks()
		writer.gets()
		next.waits()
		b.must(write.Unlock(writer.owner))
		next.gets()
		b.tries(read, false)
		next.unlocks()
		b.emptyLine()

		// The last reader passes it on, too.
		b.must(read.Lock(reader.owner))
		next.joins()
		b.must(read.Unlock(reader.owner))
		next.gets().unlocks()
		b.emptyLine()
	})
}

// A client has one entry. While it belongs to a wait for the plain lock, a wait for the write lock has none: it is
// notified of the free lock once in each hand-off window, and acquires it ahead of the line. The same applies the other
// way round.
func TestLineClientWithAPlaceForTheOtherLockIsAGuest(t *testing.T) {
	onEachLine(t, func(b *bench) {
		releases := b.subscribe(b.rwReleases())
		m, first := b.manual().listens(), b.manual().takes()
		m.joins()
		require.Equal(b, int64(2), m.writes(contract.Push)[2], "only the channel says when the lock is free")
		assert.Equal(b, m.field, b.placeOf(m.id).field, "the place")
		assert.Equal(b, reply{1, 1, 0}, first.releaseIn(0, false), "the release is told beside the line")
		assert.Equal(b, []string{"0"}, b.received(releases, b.rwReleases()))
		assert.Equal(b, []string{"free"}, m.messages())
		require.Equal(b, int64(1), m.writes(contract.Push)[0], "the guest takes the free lock")
		assert.Equal(b, m.field, b.placeOf(m.id).field, "the place")
		b.must(releases.Close())
		testredis.Await(
			b,
			"nobody hears the channel of the write lock",
			soon,
			func() bool { return b.hearers(b.rwReleases()) == 0 },
		)
		assert.Equal(b, reply{1, 0, 1}, m.endsWriting(), "the lock passes to the place")
		assert.Equal(b, m.field, b.holder(), "the holder")
		assert.Len(b, m.messages(), 1, "the grant")

		writer := b.manual()
		writer.hears = b.subscribe(b.rwReleases() + ":" + writer.id)
		require.Equal(b, int64(1), writer.writes(contract.Push)[2], "a place for the write lock")
		require.Equal(b, int64(2), writer.ask(contract.Push)[2], "a guest")
		assert.Equal(b, writer.id+":1:02:write", b.placeOf(writer.id).field, "the place")
		assert.Equal(b, reply{1, 0, 1}, m.release(false))
		assert.Len(b, b.received(writer.hears, b.rwReleases()+":"+writer.id), 1, "the grant")
		assert.Equal(b, int64(2), writer.ask(contract.Push)[2], "the place is that of the hold")
		assert.Equal(b, int64(1), writer.endsWriting()[0])
		b.emptyLine()
	})
}

// The rest of the entry of a lost hold does not count as a guest.
func TestLineRestOfALostHoldMakesNoGuest(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.manual().takes()
		b.manual().listens().joins()
		m := b.manual().listens()
		b.must(b.rdb.HSet(context.Background(), b.lineKey(), m.id, "7 new push 60000 0 1 "+m.id+":1:0900:write").Err())
		assert.Equal(b, int64(1), m.ask(contract.Push)[2]%4, "a place")
		assert.Equal(b, m.field, b.placeOf(m.id).field, "the place")
	})
}

// A release of the plain lock notifies readers, and writers without an entry, even if no process has an entry in the
// line. A reader that is not subscribed leaves nothing behind.
func TestLineNotesThatReadersListen(t *testing.T) {
	onEachLine(t, func(b *bench) {
		lineExists := func() bool { return b.rdb.Exists(context.Background(), b.lineKey()).Val() == 1 }
		m, other := b.manual().takes(), b.manual()
		require.Equal(b, int64(0), other.reads()[0], "a plain lock is held")
		require.Equal(b, int64(0), other.writes(contract.Barge)[0], "a plain lock is held")
		assert.False(b, lineExists(), "there is a line")

		listens := b.subscribe(b.rwReleases())
		for _, asks := range []func() reply{other.reads, func() reply { return other.writes(contract.Barge) }} {
			require.Equal(b, int64(0), asks()[0], "a plain lock is held")
			assert.Positive(b, b.rdb.PTTL(context.Background(), b.lineKey()).Val(), "the lease of the line")
			assert.Equal(b, reply{1, 1, 0}, m.release(false), "connections that were told")
			assert.Equal(b, []string{"0"}, b.received(listens, b.rwReleases()))
			assert.False(b, lineExists(), "there is a line")
			m.takes()
		}
		require.Equal(b, int64(0), other.reads()[0], "a plain lock is held")
		next := b.manual().listens().joins()
		assert.Equal(b, reply{1, 0, 1}, m.releaseIn(time.Minute, false), "a release in the first slice of the line")
		last := b.manual().listens().joins()
		assert.Equal(b, reply{1, 1, 0}, next.releaseIn(0, false), "a release in the next slice")
		assert.Equal(b, int64(1), last.ask(contract.Push)[0], "the first place takes the free lock")
		last.release(false)
		b.emptyLine()
	})
}

// The release of the plain lock still notifies readers after a process that waited for the lock has left, whether it came
// before or behind them, and after the hold was renamed.
func TestLineThatEndsBesideAHolderStillTellsReaders(t *testing.T) {
	onEachLine(t, func(b *bench) {
		m, other := b.manual().takes(), b.manual()
		listens := b.subscribe(b.rwReleases())
		reads := func() { require.Equal(b, int64(0), other.reads()[0], "a plain lock is held") }
		leaves := func(waiter *manual) { require.Equal(b, int64(-1), waiter.release(false)[0], "the waiter leaves") }
		for name, happens := range map[string]func(){
			"a waiter comes and goes behind the reader": func() {
				reads()
				leaves(b.manual().listens().joins())
			},
			"the reader comes behind a waiter that leaves": func() {
				waiter := b.manual().listens().joins()
				reads()
				leaves(waiter)
			},
			"a writer comes and goes behind the reader": func() {
				reads()
				waiter := b.manual()
				waiter.hears = b.subscribe(b.rwReleases() + ":" + waiter.id)
				require.Equal(b, int64(1), waiter.writes(contract.Push)[2]%4, "a place for the write lock")
				waiter.endsWriting()
			},
			"the hold is renamed": func() {
				reads()
				from := m.field
				m.field = m.id + ":1:07"
				require.Equal(b, int64(1), m.run(lockRename, from, m.field, m.lease, 0, 0, false)[0])
			},
		} {
			happens()
			b.received(listens, b.rwReleases())
			assert.Equal(b, reply{1, 1, 0}, m.release(false), "connections that were told: %s", name)
			assert.Equal(b, []string{"0"}, b.received(listens, b.rwReleases()), name)
			assert.Zero(b, b.rdb.Exists(context.Background(), b.lineKey()).Val(), "there is a line: %s", name)
			m.takes()
		}
	})
}

// An entry for the write lock does not hide from a waiter for the plain lock, which has lost its own entry, that the
// lock is free.
func TestLinePlaceOfAWriterIsNoneOfThePlainLock(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.manual().takes()
		m := b.manual().listens()
		isWoken := func() bool {
			found, err := b.rdb.EvalSha(
				context.Background(),
				freeInspect.Digest(),
				[]string{b.name, b.lineKey()},
				1,
				m.id,
				" ",
			).Int64Slice()
			b.must(err)
			return len(found) > 0
		}
		m.joins()
		assert.False(b, isWoken(), "a waiter with a place")
		m.release(false)
		assert.True(b, isWoken(), "a waiter without a place")
		m.hears = b.subscribe(b.rwReleases() + ":" + m.id)
		require.Equal(b, int64(1), m.writes(contract.Push)[2]%4, "a place for the write lock")
		assert.True(b, isWoken(), "a waiter for the plain lock, with a place for the write lock")
		m.endsWriting()
	})
}

// A process that has released the lock leaves no entry behind, whichever way its release takes.
func TestLineReleaseRemovesTheEntryOfItsHold(t *testing.T) {
	onEachLine(t, func(b *bench) {
		m := b.manual().takes()
		one, two := b.manual().listens().joins(), b.manual().listens().joins()
		m.release(false)
		require.Equal(b, one.field, b.holder())
		assert.True(b, b.rdb.HExists(context.Background(), b.lineKey(), one.id).Val(), "while it holds the lock")
		one.release(false)
		require.Equal(b, two.field, b.holder())
		assert.False(b, b.rdb.HExists(context.Background(), b.lineKey(), one.id).Val(), "after its release")
		two.release(false)
		b.emptyLine()
	})
}

// Readers that were kept out by an entry are notified when its waiter leaves.
func TestLinePlaceThatLeavesTellsReaders(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first, second := b.manual(), b.manual()
		require.Equal(b, int64(1), first.reads()[0])
		m := b.manual().listens().joins()
		require.Equal(b, int64(0), second.reads()[0], "a reader, while another one reads")
		listens := b.subscribe(b.rwReleases())
		assert.Equal(b, int64(-1), m.release(true)[0], "the waiter leaves")
		assert.Equal(b, []string{"0"}, b.received(listens, b.rwReleases()))
		assert.Equal(b, int64(1), second.reads()[0], "a reader, while another one reads")
	})
}

// An entry of a client that polls, and is not subscribed, may be that of a process that has crashed: it keeps no reader
// out.
func TestLinePlaceThatAsksHoldsOffNoReader(t *testing.T) {
	onEachLine(t, func(b *bench) {
		require.Equal(b, int64(1), b.manual().reads()[0])
		require.Equal(b, int64(1), b.manual().ask(contract.Poll)[2], "a place")
		assert.Equal(b, int64(1), b.manual().reads()[0], "a reader, while another one reads")
	})
}

// A forced release also notifies the waiters for the other lock of the name.
func TestForcedReleaseTellsThoseBeside(t *testing.T) {
	onEachLine(t, func(b *bench) {
		ctx := context.Background()
		b.manual().takes()
		require.Equal(b, int64(0), b.manual().reads()[0], "a plain lock is held")
		listens := b.subscribe(b.rwReleases())
		require.Equal(b, int64(0), b.manual().reads()[0], "a plain lock is held")
		freed, err := b.client().NewLock(b.name).ForceUnlock(ctx)
		b.must(err)
		assert.True(b, freed)
		assert.Equal(b, []string{"0"}, b.received(listens, b.rwReleases()))
	})
}

// Readers do not share while processes wait for the plain lock. Otherwise they could keep it busy forever.
func TestLineOfThePlainLockHoldsOffReaders(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first, second := b.manual(), b.manual()
		require.Equal(b, int64(1), first.reads()[0])
		m := b.manual().listens().joins()
		assert.Equal(b, int64(0), second.reads()[0], "a reader, while another one reads")
		assert.Equal(b, int64(1), first.reads()[0], "the reader itself, once more")

		require.NoError(b, m.hears.Close()) // an entry that cannot be granted the lock
		testredis.Await(b, "it does not listen any more", soon, func() bool { return b.hearers(m.grants()) == 0 })
		assert.Equal(b, int64(1), second.reads()[0], "a reader, while another one reads")
		assert.Equal(b, int64(1), second.endsReading()[0])

		m.listens().joins()
		assert.Equal(b, int64(0), second.reads()[0], "a reader, while another one reads")
		assert.Equal(b, reply{1, 0, 1}, first.endsReading(), "the last reader passes the lock on")
		assert.Equal(b, m.field, b.holder(), "the holder")
	})
}

// If no client has an entry, all that are subscribed to the channel of the other lock are notified, too.
func TestLineWithoutPlacesTellsTheOtherLock(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.manual().takes()
		m := b.manual().listens().joins()
		first.release(false)
		plain, rw := b.subscribe(b.releaseChannel()), b.subscribe(b.rwReleases())
		assert.Equal(b, reply{1, 2, 0}, m.release(false), "connections that were told")
		assert.Equal(b, []string{"0"}, b.received(plain, b.releaseChannel()))
		assert.Equal(b, []string{"0"}, b.received(rw, b.rwReleases()))
	})
}

// A plain lock and a read/write lock of one name exclude each other, and neither starves the callers of the other.
func TestLineServesTwoTypesOfOneName(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	plain := func(c *Client, name string) Locker { return c.NewLock(name) }
	write := func(c *Client, name string) Locker { return c.NewRWLock(name).Write() }
	read := func(c *Client, name string) Locker { return c.NewRWLock(name).Read() }
	for name, mix := range map[string]struct {
		other    func(c *Client, name string) Locker
		together bool // each Client asks for both
		shared   bool // the other lock does not exclude itself
	}{
		"write":                     {other: write},
		"write of the same Clients": {other: write, together: true},
		"read":                      {other: read, shared: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, server.Addr())
			ctx, stop := context.WithTimeout(context.Background(), 2*soon) // a limit for a caller that is starved
			defer stop()
			var all sync.WaitGroup
			var inside atomic.Int32 // number of readers; negative for another holder
			var turns [2][8]atomic.Int64
			var longest [2]time.Duration
			var mu sync.Mutex // guards longest
			works := func(l Locker, kind, i int) {
				for {
					asked := time.Now()
					err := l.Lock(ctx)
					mu.Lock()
					longest[kind] = max(longest[kind], time.Since(asked))
					mu.Unlock()
					if err != nil {
						return
					}
					if mix.shared && kind == 1 {
						assert.Positive(t, inside.Add(1), "a reader beside another holder")
						inside.Add(-1)
					} else {
						assert.True(t, inside.CompareAndSwap(0, -1000), "a holder beside another one")
						inside.Store(0)
					}
					turns[kind][i].Add(1)
					assert.NoError(t, l.Unlock(context.WithoutCancel(ctx)))
				}
			}
			for n := range 2 {
				c := b.client()
				d := c
				if !mix.together {
					d = b.client()
				}
				for i := range 4 {
					waitgroup.Go(&all, func() { works(plain(c, b.name), 0, 4*n+i) })
					waitgroup.Go(&all, func() { works(mix.other(d, b.name), 1, 4*n+i) })
				}
			}
			least := func(kind int) int64 {
				n := turns[kind][0].Load()
				for i := range turns[kind] {
					n = min(n, turns[kind][i].Load())
				}
				return n
			}
			enough := time.Now().Add(full(time.Second, 10*time.Second))
			for ctx.Err() == nil && (time.Now().Before(enough) || min(least(0), least(1)) < 20) {
				time.Sleep(10 * time.Millisecond)
			}
			stop()
			all.Wait()
			for kind := range turns {
				t.Logf("type %d: at least %d turns each, longest wait %v", kind, least(kind), longest[kind].Round(time.Millisecond))
				assert.GreaterOrEqual(t, least(kind), int64(20), "turns of a caller of type %d", kind)
			}
		})
	}
}
