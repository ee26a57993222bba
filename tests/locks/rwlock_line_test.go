package locks

// The line of a read/write lock, in which writers wait.
//
// Rule: a writer passes the lock to the first writer in the line with one script. Whom the scripts grant it, and when
// readers have their turn, is in internal/lua/testdata/readwrite_line.txt.

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
)

// A lineBench has a real server, and clients whose attempts for the write lock it counts.
type lineBench struct {
	*locktest.Bench
	releases string // the channel of the lock
	asked    atomic.Int64
}

func newRWLineBench(t *testing.T) *lineBench {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	for _, script := range locktest.AllScripts() {
		b.Must(b.Rdb.ScriptLoad(ctx, script.Source()).Err()) // so that an attempt is one command
	}
	return &lineBench{Bench: b, releases: record.PrefixName("redisson_rwlock", b.LockName)}
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
		return slices.Contains(b.ClientsInLine(), locktest.ClientOf(l).ID())
	})
}

// With one script a writer passes the lock to the first writer of another process, whose Lock returns without a
// request.
func TestWriterPassesToTheNextWriter(t *testing.T) {
	for name, opts := range map[string][]LockOption{"plain": nil, "fenced": {Fenced()}} {
		t.Run(name, func(t *testing.T) {
			b := newRWLineBench(t)
			ctx := ContextWithOwner(ctx)
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
