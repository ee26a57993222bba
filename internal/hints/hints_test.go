//go:build go1.25

package hints

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/wake"
	"github.com/relock-go/relock/internal/wake/waketest"
)

// A bench has a Channel on a server, and what it was told.
type bench struct {
	*Channel
	server  *waketest.Server
	checked []string
	spawned []func() // the jobs that have not run, if they are held back
	holds   bool     // jobs are held back
	log     bytes.Buffer
}

// Node makes a bench the only server, of which it is the wake.Router.
func (b *bench) Node(string) wake.Node {
	return wake.Node{Dial: func() wake.Subscriber { return b.server.Dial() }}
}
func (*bench) Reload()            {}
func (*bench) Refused(error) bool { return false }

func (b *bench) spawn(job func()) {
	if b.holds {
		b.spawned = append(b.spawned, job)
		return
	}
	go job()
}

func newBench(t *testing.T) *bench {
	b := &bench{server: new(waketest.Server)}
	log := slog.New(slog.NewTextHandler(&b.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	hub := wake.New(b, log, func(_ string, err error) { b.Refuse(err) })
	b.Channel = New(Config{
		ID: "me", Channel: "hints:me", Log: log,
		Check: func(name string) { b.checked = append(b.checked, name) },
		Join:  hub.Join, Spawn: b.spawn, Later: func(report func()) { report() },
	})
	t.Cleanup(hub.Close)
	return b
}

// settle lets time pass, until all that then happens has happened.
func settle() {
	time.Sleep(time.Minute)
	synctest.Wait()
}

// The Client that forces a lock open sends hints to the other holders, without waiting for them.
func TestForceSendsHintsToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, told := newBench(t), make(chan []string, 10)
		b.Tell = func(ctx context.Context, clients []string, hint string) {
			_, bounded := ctx.Deadline()
			assert.True(t, bounded)
			told <- append(clients, hint)
		}
		b.Send("x", []string{"one", "me", "two"})
		assert.Equal(t, []string{"one", "two", "check x"}, <-told)
		b.Send(strings.Repeat("x", longest), []string{"one"})
		assert.Equal(t, []string{"one", "check " + strings.Repeat("x", longest)}, <-told)
		b.Send("x", []string{"me"})
		b.Send("x", nil)
		b.Send(strings.Repeat("x", longest+1), []string{"one"})
		settle()
		assert.Empty(t, told, "hints for this Client, for nobody, and with a long name")
		b.Tell = nil
		b.Send("x", []string{"one"})
		settle()
	})
}

// On a Redis or a machine that is slow for some seconds the hints are sent all the same, and one that hangs ends.
func TestHintsHaveTimeOnASlowMachine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, ended := newBench(t), make(chan error, 1)
		for _, takes := range []time.Duration{4 * time.Second, time.Hour} {
			b.Tell = func(ctx context.Context, _ []string, _ string) {
				select {
				case <-time.After(takes):
				case <-ctx.Done():
				}
				ended <- ctx.Err()
			}
			b.Send("x", []string{"one"})
			settle()
			assert.Equal(t, takes > time.Minute, <-ended != nil, "%v", takes)
		}
	})
}

// While a hold is old there is one subscription, however often that is said.
func TestChannelIsHeardWhileAHoldIsOld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		for round := 1; round <= 2; round++ {
			for range 3 {
				b.Hear(true)
			}
			settle()
			assert.Equal(t, 2*round-1, b.server.Count("subscribe hints:me"))
			assert.Equal(t, 1, b.server.Publish("hints:me"), "connections that hear it")
			b.server.Cut()
			settle()
			assert.Equal(t, 2*round, b.server.Count("subscribe hints:me"), "and once on another connection")
			b.Hear(false)
			settle()
			assert.Equal(t, round, b.server.Count("unsubscribe hints:me"))
			assert.Zero(t, b.server.Publish("hints:me"))
		}
		assert.Empty(t, b.checked)
	})
}

// A Client whose last old hold has ended before it listens for hints does not begin to listen.
func TestChannelIsNotHeardAfterTheLastOldHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.holds = true
		b.Hear(true)
		b.Hear(false) // the goroutine that joins the channel has not run yet
		b.spawned[0]()
		settle()
		assert.Nil(t, b.listener)
		assert.Equal(t, b.server.Count("subscribe hints:me"), b.server.Count("unsubscribe hints:me"))
		assert.Zero(t, b.server.Publish("hints:me"))
	})
}
