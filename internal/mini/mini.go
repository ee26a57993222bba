// Package mini has an embedded Redis server whose leases expire.
//
// Rules: miniredis is used with a clock (ClockTTL), because otherwise no lease would ever expire. The clock is set
// from outside, because the clock of Redis stands still while a script runs. It is set before every script (Tick).
package mini

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"github.com/relock-go/relock/internal/waitgroup"
)

// Still starts a miniredis on a loopback port, with a clock that only SetTime moves. It is closed when the test ends.
func Still(t testing.TB) *miniredis.Miniredis {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	m.SetTime(time.Now())
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		t.Fatalf("the embedded Redis does not start: %v", err)
	}
	t.Cleanup(m.Close)
	return m
}

// Tick calls set, which sets the clock of m, before every script, and every millisecond until the test ends; two calls
// may be under way at once. before, if it is not nil, is the hook of m from then on: see server.SetPreHook.
//
// The ticks alone are not enough. On a loaded machine their goroutine may get no processor for 100 ms, while others run
// one script after the other. Then the clock stands still, as that of Redis never does, and after a loss of the counter
// a script draws from it the fencing tokens of the scripts before.
func Tick(t testing.TB, m *miniredis.Miniredis, set func(), before server.Hook) {
	m.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
		if strings.HasPrefix(cmd, "EVAL") { // not a command of a script: SetTime waits until no script runs
			set()
		}
		return before != nil && before(c, cmd, args...)
	})
	stop := make(chan struct{})
	var ticking sync.WaitGroup
	waitgroup.Go(&ticking, func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				set()
			case <-stop:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		ticking.Wait()
	})
}
