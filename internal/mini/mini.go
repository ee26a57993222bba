// Package mini has an embedded Redis server whose leases expire.
//
// Rules: miniredis is used with a clock (ClockTTL), because otherwise no lease would ever expire. The clock is set
// from outside, because the clock of Redis stands still while a script runs.
package mini

import (
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

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

// Tick calls set every millisecond until the test ends. SetTime waits for a script that runs.
func Tick(t testing.TB, set func()) {
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
