package locks

// How values print. Users log them, pass them to mocks, and compare structs that have them.
//
// Rules: to read a value by reflection, as fmt, mocks and assertions do, is no race with its use, and what they print is
// short. The text of a value has the name of the lock, and neither addresses nor secrets.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
)

// A printer is a value that has a text.
type printer interface {
	fmt.Stringer
	slog.LogValuer
}

// A failedTest keeps the message of an assertion that has failed.
type failedTest struct{ bytes.Buffer }

func (f *failedTest) Errorf(format string, args ...any) { fmt.Fprintf(f, format, args...) }

// A printCase is a value, another one of its type, and what changes the state of both.
type printCase struct {
	value, other printer
	what, name   string // its text is what, then name in quotes
	use          func() error
}

// printCases returns a case for each type that has a state.
func printCases(b *locktest.Bench) []printCase {
	quick := WithWatchdogTimeout(100 * time.Millisecond)
	c := b.Client(quick)
	name := func(suffix string) string { return b.LockName + suffix }
	of := func(kind string, l, other Locker) printCase {
		return printCase{l.(printer), other.(printer), kind, l.Name(), func() error {
			return l.Do(ctx, func(ctx context.Context) error {
				time.Sleep(time.Millisecond)
				return other.Do(ctx, func(context.Context) error { return nil })
			})
		}}
	}
	rw, other := c.NewRWLock(name("-rw")), c.NewRWLock(name("-rw2"))
	halves := of("read-write", rw.Write(), other.Write())
	halves.value, halves.other = rw, other
	multi := func(suffix string) Locker {
		return c.NewMultiLock(c.NewLock(name(suffix)), c.NewFairLock(name(suffix+"1")), b.Client().NewLock(name(suffix+"2")))
	}
	red := func(suffix string) Locker {
		var nodes []Locker
		for n, rdb := range b.Nodes {
			nodes = append(nodes, b.ClientOn(rdb, quick).NewLock(name(suffix+fmt.Sprint(n))))
		}
		return c.NewRedLock(nodes...)
	}
	client := of("Client", c.NewLock(name("-client")), c.NewLock(name("-client2")))
	client.value, client.other, client.name = c, b.Client(), c.ID()

	first, second := b.Hold(c.NewLock(name("-held"))), b.Hold(c.NewLock(name("-held2")))
	hold := printCase{first, second, "hold of lock", first.Name(), func() error {
		_, _ = first.Context(), second.Context()
		time.Sleep(time.Millisecond)
		_, _ = first.Release(ctx), second.Release(ctx) // only the first call ends the hold
		return nil
	}}
	elect := func(suffix string) (*Election, *Term) {
		e := c.NewElection(name(suffix))
		term, err := e.Campaign(ctx)
		b.Must(err)
		return e, term
	}
	chosen, term := elect("-chosen")
	chosen2, term2 := elect("-chosen2")
	lead := func() error {
		_, _ = term.Context(), term2.Context()
		_, _, err := chosen.Leader(ctx)
		b.Must(err)
		_, _ = term.Resign(ctx), term2.Resign(ctx)
		return nil
	}
	return []printCase{
		of("lock", c.NewLock(name("-plain")), c.NewLock(name("-plain2"))),
		of("fair", c.NewFairLock(name("-fair")), c.NewFairLock(name("-fair2"))),
		of("semaphore", c.NewSemaphore(name("-permits"), 3), c.NewSemaphore(name("-permits2"), 3)),
		of("read", rw.Read(), other.Read()),
		of("write", rw.Write(), other.Write()),
		of("lock", multi("-a"), multi("-b")),
		of("redlock", red("-red"), red("-redb")),
		halves, client, hold,
		{chosen, chosen2, "election", chosen.Name(), lead},
		{term, term2, fmt.Sprintf("term %d of", term.Token()), chosen.Name(), lead},
	}
}

func TestPrintingIsNoRaceAndShort(t *testing.T) {
	b := locktest.NewBench(t, testredis.Start(t).Addr(), testredis.Start(t).Addr(), testredis.Start(t).Addr())
	defer b.Forget() // the permits of semaphores
	const address = `0xc[0-9a-f]{5}`
	for _, of := range printCases(b) {
		type service struct { // of a user
			label string
			value printer
			deep  *struct{ value, same any }
			Shown printer
		}
		text := fmt.Sprintf("%s %q", of.what, of.name)
		if of.what == "Client" {
			text = "Client " + of.name
		}
		t.Run(text, func(t *testing.T) {
			ctx, end := context.WithCancel(ctx)
			var used sync.WaitGroup
			used.Add(1)
			go func() {
				defer used.Done()
				for ctx.Err() == nil {
					if err := of.use(); !errors.Is(err, ErrLockLost) { // the lease is short
						assert.NoError(t, err)
					}
				}
			}()
			for range 5 {
				for _, verb := range []string{"%v", "%+v", "%s", "%#v", "%d", "%x", "%q"} {
					got := fmt.Sprintf(verb, of.value)
					assert.Less(t, len(got), 3000, verb)
					if verb == "%v" || verb == "%+v" || verb == "%s" {
						assert.Equal(t, text, got, verb)
					}
					assert.Less(t, len(fmt.Sprintf(verb, service{"mine", of.value, nil, of.value})), 4000, verb)
				}
				mine := service{"mine", of.value, &struct{ value, same any }{of.value, of.value}, of.value}
				its := service{"its", of.other, &struct{ value, same any }{of.other, of.other}, of.other}
				var said failedTest
				assert.Equal(&said, mine, its)
				assert.Equal(&said, of.value, of.other)
				assert.Less(t, said.Len(), 200_000, "Equal walks behind unexported fields")
				assert.False(t, reflect.DeepEqual(mine, its))

				var log bytes.Buffer
				for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
					log.Reset()
					slog.New(h).Info("mine", "value", of.value)
					assert.Contains(t, log.String(), of.name)
					slog.New(h).Info("mine", "value", struct{ Value printer }{of.value})
					assert.NotRegexp(t, address, log.String())
				}
				time.Sleep(10 * time.Millisecond) // the leases are renewed
			}
			end()
			used.Wait()
		})
	}
}
