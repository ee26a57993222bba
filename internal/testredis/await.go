package testredis

// Waiting for something to become true.
//
// Rules: a test never sleeps and hopes; it awaits what it wants to see.

import (
	"testing"
	"time"
)

// Await polls cond until it is true, and ends the test, naming what it waited
// for, if that takes longer than within. Like t.Fatal it belongs on the
// goroutine of the test.
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
