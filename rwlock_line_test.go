package relock

// The line of a read/write lock, in which writers wait.
//
// Rules: a writer, and the last reader, pass the lock to the first writer in the line with one script. A writer that has
// crashed or given up is passed over, and readers that wait get their turn between the writers.

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

// A lineBench has a real server, and clients whose attempts for the write lock it counts.
type lineBench struct {
	*bench
	line, releases string // the key of the line, and the channel of the lock
	asked          atomic.Int64
}

func newRWLineBench(t *testing.T) *lineBench {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	for _, script := range allScripts() {
		b.must(b.rdb.ScriptLoad(context.Background(), script.Source()).Err()) // so that an attempt is one command
	}
	return &lineBench{bench: b, line: record.LineKey(b.name), releases: record.PrefixName("redisson_rwlock", b.name)}
}

func (b *lineBench) rw(opts ...LockOption) *RWLock {
	rdb := testredis.Client(b, b.addr)
	rdb.AddHook(commandHook(func(cmd redis.Cmder) {
		if args := cmd.Args(); len(args) > 1 && args[1] == writeAcquire.Digest() {
			b.asked.Add(1)
		}
	}))
	return b.clientOn(rdb, WithPollInterval(time.Hour), WithHandoffWindow(time.Minute)).NewRWLock(b.name, opts...)
}

// waits starts a writer, and returns when it has an entry in the line.
func (b *lineBench) waits(ctx context.Context, l *WriteLock) <-chan error {
	b.Helper()
	got := make(chan error, 1)
	go func() { got <- l.Lock(ctx) }()
	b.awaitPlace(l)
	return got
}

func (b *lineBench) awaitPlace(l *WriteLock) {
	b.Helper()
	testredis.Await(b, "the writer stands in the line", soon, func() bool {
		line := b.rdb.HGetAll(context.Background(), b.line).Val()
		for number, client := range line {
			if client == l.client.ID() {
				return strings.HasPrefix(line[client], number+" ")
			}
		}
		return false
	})
}

// listeners returns how many connections are subscribed to the channel of the lock.
func (b *lineBench) listeners() int64 {
	return b.hearers(b.releases)
}

// With one script a writer passes the lock to the first writer of another process, whose Lock returns without a
// request.
func TestWriterPassesToTheNextWriter(t *testing.T) {
	for name, opts := range map[string][]LockOption{"plain": nil, "fenced": {Fenced()}} {
		t.Run(name, func(t *testing.T) {
			b := newRWLineBench(t)
			ctx := ContextWithOwner(context.Background())
			from, to := b.rw(opts...).Write(), b.rw(opts...).Write()
			b.must(from.Lock(ctx))
			var last, asked int64
			for range 5 {
				got := b.waits(ctx, to)
				before := b.asked.Load()
				b.must(from.Unlock(ctx))
				b.must(await(b.bench, "the next writer has the lock", got))
				asked += b.asked.Load() - before
				record := b.rdb.HGetAll(ctx, b.name).Val()
				assert.Len(t, record, 2, "%v", record)
				assert.Equal(t, "write", record["mode"])
				for field := range record {
					if field != "mode" {
						assert.Equal(t, to.client.ID(), field[:36])
						assert.True(t, strings.HasSuffix(field, ":write"), field)
					}
				}
				held, err := to.IsHeld(ctx)
				b.must(err)
				assert.True(t, held)
				assert.Zero(t, b.rdb.Exists(ctx, "relock_rwlock_writers:{"+b.name+"}").Val(), "no writer waits")
				if name == "fenced" {
					token, err := to.Token(ctx)
					b.must(err)
					assert.Greater(t, token, last)
					last = token
				}
				from, to = to, from
			}
			b.must(from.Unlock(ctx))
			assert.LessOrEqual(t, asked, int64(1), "attempts after the release; a heartbeat may have been due")
		})
	}
}

// A granted writer whose lease is short at first renews it, and holds the lock for as long as it needs.
func TestGrantedWriterRenews(t *testing.T) {
	b := newRWLineBench(t)
	ctx := ContextWithOwner(context.Background())
	from, to := b.rw().Write(), b.rw().Write()
	b.must(from.Lock(ctx))
	got := b.waits(ctx, to)
	b.must(from.Unlock(ctx))
	b.must(await(b.bench, "the next writer has the lock", got))
	testredis.Await(
		t,
		"the grant is confirmed",
		soon,
		func() bool { return b.rdb.PTTL(ctx, b.name).Val() > 2*engine.ProvisionalLease },
	)
	b.must(to.Unlock(ctx))
}

// Writers that pass the lock to each other let readers in between, and readers that follow each other let writers in.
func TestReadersAndWritersOfManyProcessesTakeTurns(t *testing.T) {
	b := newRWLineBench(t)
	ctx, cancel := context.WithTimeout(context.Background(), 4*soon) // a limit for a caller that is starved
	defer cancel()
	enough := time.Now().Add(full(time.Second/2, 10*time.Second))
	var all sync.WaitGroup
	var inside atomic.Int64 // number of readers, or -1 for a writer
	turns := make([]atomic.Int64, 6)
	for i := range turns {
		rw := b.rw()
		half := Locker(rw.Write())
		if i >= 3 {
			half = rw.Read()
		}
		waitgroup.Go(&all, func() {
			for ctx.Err() == nil {
				if half.Lock(ctx) != nil {
					continue
				}
				if i < 3 {
					assert.True(t, inside.CompareAndSwap(0, -1), "a writer is alone")
				} else {
					assert.Positive(t, inside.Add(1), "no writer beside readers")
				}
				time.Sleep(time.Millisecond)
				if i < 3 {
					inside.Store(0)
				} else {
					inside.Add(-1)
				}
				turns[i].Add(1)
				assert.NoError(t, half.Unlock(context.Background()))
			}
		})
	}
	for ctx.Err() == nil { // a machine that is busy needs longer for ten turns
		time.Sleep(10 * time.Millisecond)
		least := turns[0].Load()
		for i := range turns {
			least = min(least, turns[i].Load())
		}
		if time.Now().After(enough) && least >= 10 {
			cancel()
		}
	}
	all.Wait()
	for i := range turns {
		assert.GreaterOrEqual(t, turns[i].Load(), int64(10), "turns of %d; the first three write", i)
	}
}

// While a holder does not know the line, a writer listens to the channel of the lock, which is the only one on which
// this holder announces its release.
func TestWriterIsWokenByAHolderThatKnowsNoLine(t *testing.T) {
	b := newRWLineBench(t)
	ctx := ContextWithOwner(context.Background())
	relock := b.client().engine.Probe().NewField(1)
	for name, data := range map[string][]any{
		"a writer":                     {"mode", "write", javaThread + ":write", 1},
		"a reader":                     {"mode", "read", javaThread, 1},
		"a reader beside a relock one": {"mode", "read", relock, 1, javaThread, 1},
	} {
		b.must(b.rdb.HSet(ctx, b.name, data...).Err())
		for i := 1; i < len(data); i++ {
			if field, ok := data[i].(string); ok {
				b.must(b.rdb.Set(ctx, "{"+b.name+"}:"+field+":rwlock_timeout:1", 1, time.Minute).Err())
			}
		}
		b.must(b.rdb.PExpire(ctx, b.name, time.Minute).Err())
		write := b.rw().Write()
		got := b.waits(ctx, write)
		testredis.Await(t, "the writer hears the channel", soon, func() bool { return b.listeners() == 1 })
		asked := b.asked.Load()
		testredis.Await(t, "it has asked since", soon, func() bool { return b.asked.Load() > asked })
		time.Sleep(50 * time.Millisecond) // the answer has arrived
		b.must(b.rdb.Del(ctx, append(b.rdb.Keys(ctx, "*rwlock_timeout*").Val(), b.name)...).Err())
		start := time.Now()
		b.must(b.rdb.Publish(ctx, b.releases, "0").Err())
		b.must(await(b.bench, "the writer has the lock", got))
		assert.Less(t, time.Since(start), testredis.Scale(start, record.WriterHeartbeat/2), name)
		b.must(write.Unlock(ctx))
	}
}

// A writer whose owner acquires the read lock has no entry in the line: the line grants nothing to it.
func TestUpgraderStandsInNoLine(t *testing.T) {
	b := newRWLineBench(t)
	ctx := ContextWithOwner(context.Background())
	rw, other := b.rw(), b.rw()
	owner := ContextWithOwner(ctx)
	b.must(other.Read().Lock(ctx))
	b.must(rw.Read().Lock(owner))
	got := make(chan error, 1)
	go func() { got <- rw.Write().Lock(owner) }()
	testredis.Await(t, "the upgrader waits", soon, func() bool { return b.listeners() == 1 })
	assert.Zero(t, b.rdb.Exists(ctx, b.line).Val(), "there is a line")
	b.must(other.Read().Unlock(ctx))
	b.mustBe(await(b.bench, "the upgrader is refused", got), ErrInvalid)
	b.must(rw.Read().Unlock(owner))

	// Its owner reads later.
	b.must(other.Read().Lock(ctx))
	go func() { got <- rw.Write().Lock(owner) }()
	b.awaitPlace(rw.Write())
	testredis.Await(t, "the reader comes in", soon, func() bool {
		b.rdb.Del(ctx, "relock_rwlock_writers:{"+b.name+"}")
		ok, err := rw.Read().TryLock(owner, 0, 0)
		return ok && err == nil
	})
	testredis.Await(t, "the upgrader has left the line", soon, func() bool { return b.rdb.Exists(ctx, b.line).Val() == 0 })
	b.must(other.Read().Unlock(ctx))
	b.mustBe(await(b.bench, "the upgrader is refused", got), ErrInvalid)
	b.must(rw.Read().Unlock(owner))
}

// A writer that may not subscribe keeps its entry, and polls often only while the lock changes hands.
func TestWriterThatMayNotSubscribeStandsInTheLine(t *testing.T) {
	b := newRWLineBench(t)
	ctx := ContextWithOwner(context.Background())
	b.must(
		b.rdb.Do(
			ctx,
			"acl",
			"setuser",
			"alice",
			"reset",
			"on",
			">pass",
			"allcommands",
			"-subscribe",
			"allchannels",
			"allkeys",
		).Err(),
	)
	rdb := redis.NewClient(&redis.Options{Addr: b.addr, Username: "alice", Password: "pass"})
	defer rdb.Close()
	rdb.AddHook(commandHook(func(cmd redis.Cmder) {
		if args := cmd.Args(); len(args) > 1 && args[1] == writeAcquire.Digest() {
			b.asked.Add(1)
		}
	}))
	from, to := b.rw().Write(), b.clientOn(rdb).NewRWLock(b.name).Write()
	b.must(from.Lock(ctx))
	got := b.waits(ctx, to)
	before := b.asked.Load()
	time.Sleep(2 * record.WriterHeartbeat)
	// An answer that is late by some milliseconds looks like a renewal, after which the writer polls often for a
	// moment.
	assert.LessOrEqual(
		t,
		b.asked.Load()-before,
		int64(75),
		"attempts; without the heartbeat as a limit they are more than 90",
	)
	b.must(from.Unlock(ctx))
	assert.True(
		t,
		strings.HasPrefix(strings.Join(b.rdb.HKeys(ctx, b.name).Val(), " "), "mode "+to.client.ID()),
		"it is granted the lock",
	)
	b.must(await(b.bench, "the writer has the lock", got))
	b.must(to.Unlock(ctx))
}
