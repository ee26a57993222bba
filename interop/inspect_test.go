package interop

// Inspections of the locks of Java.

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

func TestInspectReadsLocksOfJava(t *testing.T) {
	forEachVersion(t, setting{}, func(b *both) {
		isJava := func(c relock.Contender) bool {
			return c.Client != "" && c.Client != b.client.ID() && strings.HasPrefix(c.Owner, "thread ")
		}
		for _, k := range kinds[:5] {
			if !k.has(b.version()) {
				continue
			}
			name := "inspect-" + k.name
			op := func(op string, thread int) command {
				return command{Op: op, Kind: k.name, Name: name, Thread: thread}
			}
			b.java.must(op("lock", 1))
			b.java.must(op("lock", 1))
			i, err := b.client.Inspect(ctx, name)
			b.must(err)
			want := relock.TypeLock
			if k.name == "read" || k.name == "write" {
				want = relock.TypeReadWrite
			}
			require.Equal(b, want, i.Type, k.name)
			require.True(b, i.Held(), k.name)
			require.Len(b, i.Holders, 1, k.name)
			require.Positive(b, i.TTL, k.name)
			require.Equal(b, k.name == "fenced", i.Token > 0, "%s has a token", k.name)
			h := i.Holders[0] // Java adds up the leases of a writer that acquires the lock again
			assert.True(b, isJava(h.Contender), "%s: %+v", k.name, h)
			assert.Equal(b, 2, h.HoldCount, k.name)
			assert.Positive(b, h.Remaining, k.name)
			assert.LessOrEqual(b, h.Remaining, time.Minute, k.name)
			assert.Equal(b, k.name == "write", h.Write, k.name)
			if k.name == "fair" {
				got := b.java.start(op("lock", 2))
				b.queued(name, 1)
				inspect := func() relock.Inspection {
					i, err := b.client.Inspect(ctx, name)
					b.must(err)
					return i
				}
				i := inspect()
				assert.Equal(b, relock.TypeFair, i.Type)
				require.Len(b, i.Waiters, 1)
				assert.True(b, isJava(i.Waiters[0].Contender), "a waiter")
				assert.NotEqual(b, h.Owner, i.Waiters[0].Owner, "a waiter")
				assert.True(b, i.Waiters[0].Deadline.After(i.At), "a waiter")
				assert.True(b, i.Waiters[0].AliveUntil.IsZero(), "a waiter")
				b.java.must(op("unlock", 1))
				b.java.must(op("unlock", 1))
				a := b.java.await(got, soon)
				assert.True(b, a.OK, a.Error)
				testredis.Await(
					b,
					"the waiter has it",
					soon,
					func() bool { i := inspect(); return i.Held() && i.Holders[0].Owner != h.Owner },
				)
				b.java.must(op("unlock", 2))
			} else {
				b.java.must(op("unlock", 1))
				b.java.must(op("unlock", 1))
			}
			i, err = b.client.Inspect(ctx, name)
			b.must(err)
			assert.Equal(b, relock.TypeNone, i.Type, k.name)
			assert.False(b, i.Held(), k.name)
		}
	})
}
