package testredis

// Waiting until something becomes true.
//
// Rules: a test never sleeps and hopes. It waits for the state that it needs.

import (
	"testing"
	"time"
)

// Await polls cond until it returns true. If that takes longer than within, it fails the test with what in the
// message. Like t.Fatal, it must be called on the goroutine of the test.
func Await(t testing.TB, what string, within time.Duration, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for pause := time.Millisecond; !cond(); pause = min(2*pause, 20*time.Millisecond) {
		if !time.Now().Before(deadline) {
			t.Fatalf("waited %v in vain: %s", within, what)
		}
		time.Sleep(pause)
	}
}
