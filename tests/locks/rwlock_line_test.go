package locks

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
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
)

// A lineBench has a real server, and clients whose attempts for the write lock it counts.
type lineBench struct {
	*locktest.Bench
	line, releases string // the key of the line, and the channel of the lock
	asked          atomic.Int64
}

func newRWLineBench(t *testing.T) *lineBench {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	for _, script := range locktest.AllScripts() {
		b.Must(b.Rdb.ScriptLoad(context.Background(), script.Source()).Err()) // so that an attempt is one command
	}
	return &lineBench{Bench: b, line: record.LineKey(b.LockName), releases: record.PrefixName("redisson_rwlock", b.LockName)}
}

func (b *lineBench) rw(opts ...LockOption) *RWLock {
	rdb := testredis.Client(b, b.Addr)
	rdb.AddHook(locktest.CommandHook(func(cmd redis.Cmder) {
		if args := cmd.Args(); len(args) > 1 && args[1] == record.Script("write_acquire").Digest() {
			b.asked.Add(1)
		}
	}))
	return b.ClientOn(rdb, WithPollInterval(time.Hour), WithHandoffWindow(time.Minute)).NewRWLock(b.LockName, opts...)
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
	testredis.Await(b, "the writer stands in the line", locktest.Soon, func() bool {
		line := b.Rdb.HGetAll(context.Background(), b.line).Val()
		for number, client := range line {
			if client == locktest.ClientOf(l).ID() {
				return strings.HasPrefix(line[client], number+" ")
			}
		}
		return false
	})
}

// listeners returns how many connections are subscribed to the channel of the lock.
func (b *lineBench) listeners() int64 {
	return b.Hearers(b.releases)
}

// With one script a writer passes the lock to the first writer of another process, whose Lock returns without a
// request.
func TestWriterPassesToTheNextWriter(t *testing.T) {
	for name, opts := range map[string][]LockOption{"plain": nil, "fenced": {Fenced()}} {
		t.Run(name, func(t *testing.T) {
			b := newRWLineBench(t)
			ctx := ContextWithOwner(context.Background())
			from, to := b.rw(opts...).Write(), b.rw(opts...).Write()
			b.Must(from.Lock(ctx))
			var last, asked int64
			for range 5 {
				got := b.waits(ctx, to)
				before := b.asked.Load()
				b.Must(from.Unlock(ctx))
				b.Must(locktest.Await(b.Bench, "the next writer has the lock", got))
				asked += b.asked.Load() - before
				record := b.Rdb.HGetAll(ctx, b.LockName).Val()
				assert.Len(t, record, 2, "%v", record)
				assert.Equal(t, "write", record["mode"])
				for field := range record {
					if field != "mode" {
						assert.Equal(t, locktest.ClientOf(to).ID(), field[:36])
						assert.True(t, strings.HasSuffix(field, ":write"), field)
					}
				}
				held, err := to.IsHeld(ctx)
				b.Must(err)
				assert.True(t, held)
				assert.Zero(t, b.Rdb.Exists(ctx, "relock_rwlock_writers:{"+b.LockName+"}").Val(), "no writer waits")
				if name == "fenced" {
					token, err := to.Token(ctx)
					b.Must(err)
					assert.Greater(t, token, last)
					last = token
				}
				from, to = to, from
			}
			b.Must(from.Unlock(ctx))
			assert.LessOrEqual(t, asked, int64(1), "attempts after the release; a heartbeat may have been due")
		})
	}
}

// A granted writer whose lease is short at first renews it, and holds the lock for as long as it needs.
func TestGrantedWriterRenews(t *testing.T) {
	b := newRWLineBench(t)
	ctx := ContextWithOwner(context.Background())
	from, to := b.rw().Write(), b.rw().Write()
	b.Must(from.Lock(ctx))
	got := b.waits(ctx, to)
	b.Must(from.Unlock(ctx))
	b.Must(locktest.Await(b.Bench, "the next writer has the lock", got))
	testredis.Await(
		t,
		"the grant is confirmed",
		locktest.Soon,
		func() bool { return b.Rdb.PTTL(ctx, b.LockName).Val() > 2*engine.ProvisionalLease },
	)
	b.Must(to.Unlock(ctx))
}

// Writers that pass the lock to each other let readers in between, and readers that follow each other let writers in.
func TestReadersAndWritersOfManyProcessesTakeTurns(t *testing.T) {
	b := newRWLineBench(t)
	ctx, cancel := context.WithTimeout(context.Background(), 4*locktest.Soon) // a limit for a caller that is starved
	defer cancel()
	enough := time.Now().Add(locktest.Full(time.Second/2, 10*time.Second))
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
	relock := locktest.EngineOf(b.Client()).Probe().NewField(1)
	for name, data := range map[string][]any{
		"a writer":                     {"mode", "write", locktest.JavaThread + ":write", 1},
		"a reader":                     {"mode", "read", locktest.JavaThread, 1},
		"a reader beside a relock one": {"mode", "read", relock, 1, locktest.JavaThread, 1},
	} {
		b.Must(b.Rdb.HSet(ctx, b.LockName, data...).Err())
		for i := 1; i < len(data); i++ {
			if field, ok := data[i].(string); ok {
				b.Must(b.Rdb.Set(ctx, "{"+b.LockName+"}:"+field+":rwlock_timeout:1", 1, time.Minute).Err())
			}
		}
		b.Must(b.Rdb.PExpire(ctx, b.LockName, time.Minute).Err())
		write := b.rw().Write()
		got := b.waits(ctx, write)
		testredis.Await(t, "the writer hears the channel", locktest.Soon, func() bool { return b.listeners() == 1 })
		asked := b.asked.Load()
		testredis.Await(t, "it has asked since", locktest.Soon, func() bool { return b.asked.Load() > asked })
		time.Sleep(50 * time.Millisecond) // the answer has arrived
		b.Must(b.Rdb.Del(ctx, append(b.Rdb.Keys(ctx, "*rwlock_timeout*").Val(), b.LockName)...).Err())
		start := time.Now()
		b.Must(b.Rdb.Publish(ctx, b.releases, "0").Err())
		b.Must(locktest.Await(b.Bench, "the writer has the lock", got))
		assert.Less(t, time.Since(start), testredis.Scale(start, record.WriterHeartbeat/2), name)
		b.Must(write.Unlock(ctx))
	}
}

// A writer whose owner acquires the read lock has no entry in the line: the line grants nothing to it.
func TestUpgraderStandsInNoLine(t *testing.T) {
	b := newRWLineBench(t)
	ctx := ContextWithOwner(context.Background())
	rw, other := b.rw(), b.rw()
	owner := ContextWithOwner(ctx)
	b.Must(other.Read().Lock(ctx))
	b.Must(rw.Read().Lock(owner))
	got := make(chan error, 1)
	go func() { got <- rw.Write().Lock(owner) }()
	testredis.Await(t, "the upgrader waits", locktest.Soon, func() bool { return b.listeners() == 1 })
	assert.Zero(t, b.Rdb.Exists(ctx, b.line).Val(), "there is a line")
	b.Must(other.Read().Unlock(ctx))
	b.MustBe(locktest.Await(b.Bench, "the upgrader is refused", got), ErrInvalid)
	b.Must(rw.Read().Unlock(owner))

	// Its owner reads later.
	b.Must(other.Read().Lock(ctx))
	go func() { got <- rw.Write().Lock(owner) }()
	b.awaitPlace(rw.Write())
	testredis.Await(t, "the reader comes in", locktest.Soon, func() bool {
		b.Rdb.Del(ctx, "relock_rwlock_writers:{"+b.LockName+"}")
		ok, err := rw.Read().TryLock(owner, 0, 0)
		return ok && err == nil
	})
	testredis.Await(t, "the upgrader has left the line", locktest.Soon, func() bool { return b.Rdb.Exists(ctx, b.line).Val() == 0 })
	b.Must(other.Read().Unlock(ctx))
	b.MustBe(locktest.Await(b.Bench, "the upgrader is refused", got), ErrInvalid)
	b.Must(rw.Read().Unlock(owner))
}

// A writer that may not subscribe keeps its entry, and polls often only while the lock changes hands.
func TestWriterThatMayNotSubscribeStandsInTheLine(t *testing.T) {
	b := newRWLineBench(t)
	ctx := ContextWithOwner(context.Background())
	b.Must(
		b.Rdb.Do(
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
	rdb := redis.NewClient(&redis.Options{Addr: b.Addr, Username: "alice", Password: "pass"})
	defer rdb.Close()
	rdb.AddHook(locktest.CommandHook(func(cmd redis.Cmder) {
		if args := cmd.Args(); len(args) > 1 && args[1] == record.Script("write_acquire").Digest() {
			b.asked.Add(1)
		}
	}))
	from, to := b.rw().Write(), b.ClientOn(rdb).NewRWLock(b.LockName).Write()
	b.Must(from.Lock(ctx))
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
	b.Must(from.Unlock(ctx))
	assert.True(
		t,
		strings.HasPrefix(strings.Join(b.Rdb.HKeys(ctx, b.LockName).Val(), " "), "mode "+locktest.ClientOf(to).ID()),
		"it is granted the lock",
	)
	b.Must(locktest.Await(b.Bench, "the writer has the lock", got))
	b.Must(to.Unlock(ctx))
}
