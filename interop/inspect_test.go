package interop

// What Inspect says of the locks of Java.

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

func TestInspect(t *testing.T) {
	forEachVersion(t, setting{}, func(b *both) {
		ctx := context.Background()
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
			want := relock.KindPlain
			if k.name == "read" || k.name == "write" {
				want = relock.KindReadWrite
			}
			if i.Kind != want || !i.Held() || len(i.Holders) != 1 || i.TTL <= 0 || k.name == "fenced" != (i.Token > 0) {
				b.Fatalf("%s: %+v", k.name, i)
			}
			h := i.Holders[0] // Java adds the leases of a writer that re-enters
			if !isJava(h.Contender) || h.Levels != 2 || h.Lease <= 0 || h.Lease > time.Minute || h.Write != (k.name == "write") {
				b.Errorf("%s: %+v", k.name, h)
			}
			if k.name == "fair" {
				got := b.java.start(op("lock", 2))
				b.queued(name, 1)
				inspect := func() relock.Inspection {
					i, err := b.client.Inspect(ctx, name)
					b.must(err)
					return i
				}
				if i := inspect(); i.Kind != relock.KindFair || len(i.Waiters) != 1 || !isJava(i.Waiters[0].Contender) ||
					i.Waiters[0].Owner == h.Owner || !i.Waiters[0].Deadline.After(i.At) || !i.Waiters[0].Alive.IsZero() {
					b.Errorf("a waiter: %+v", i)
				}
				b.java.must(op("unlock", 1))
				b.java.must(op("unlock", 1))
				if a := b.java.await(got, soon); !a.OK {
					b.Error(a.Error)
				}
				testredis.Await(b, "the waiter has it", soon, func() bool { i := inspect(); return i.Held() && i.Holders[0].Owner != h.Owner })
				b.java.must(op("unlock", 2))
			} else {
				b.java.must(op("unlock", 1))
				b.java.must(op("unlock", 1))
			}
			i, err = b.client.Inspect(ctx, name)
			b.must(err)
			if i.Kind != relock.KindNone || i.Held() {
				b.Errorf("%s: %+v", k.name, i)
			}
		}
	})
}
