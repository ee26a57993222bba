//go:build go1.25

package lease

// Properties of the watchdog: random operations are compared with a model that is simpler than the code.
//
// Rules: a test draws all its steps first and then plays them in a bubble, so that rapid can shrink a failure. The
// test records what happens and when, and judges it at the end.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/relock-go/relock/internal/tests/seeds"
)

var properties = seeds.New("lease")

// inBubbleOf plays f in a bubble, and fails rt with the error that f returns.
func inBubbleOf(t *testing.T, rt *rapid.T, f func(t *testing.T) error) {
	var wrong error
	synctest.Test(t, func(t *testing.T) { wrong = f(t) })
	require.NoError(rt, wrong)
}

var errDown = errors.New("the server is down")

// A deed changes one lease, or how the fake Redis answers from then on.
type deed struct {
	after  time.Duration // since the previous deed
	what   string
	length time.Duration
	renew  bool
}

// The validity of one lease, and the times at which it is renewed, follow the rules.
func TestWatchdogKeepsValidityAndSchedule(t *testing.T) {
	deeds := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) deed {
		return deed{
			after: time.Duration(rapid.IntRange(0, 20_000).Draw(rt, "after ms")) * time.Millisecond,
			what: rapid.SampledFrom(
				[]string{"extend", "renew", "works", "works", "fails", "slow", "gone", "remove"},
			).Draw(
				rt,
				"what",
			),
			length: time.Duration(rapid.IntRange(100, 60_000).Draw(rt, "length ms")) * time.Millisecond,
			renew:  rapid.Bool().Draw(rt, "renewed"),
		}
	}), 0, 15)
	properties.Play(t, 5, func(q *seeds.Sequence) {
		q.SetRapid()
		rapid.Check(q.T, func(rt *rapid.T) {
			length := time.Duration(rapid.IntRange(100, 60_000).Draw(rt, "length ms")) * time.Millisecond
			renewed, all := rapid.Bool().Draw(rt, "renewed"), deeds.Draw(rt, "deeds")
			q.Note(length, renewed, all)
			inBubbleOf(q.T, rt, func(t *testing.T) error { return keep(t, length, renewed, all) })
		})
	})
}

// A keeper is the model of one lease.
type keeper struct {
	mu      sync.Mutex // guards below
	length  time.Duration
	until   time.Duration // the end of the validity
	renewed bool
	due     time.Duration // a renewal is to be sent by then
	quiet   time.Duration // and not before
	told    time.Duration // when the last answer came; the watchdog may see it after it sent the next renewal

	underWay int           // number of renewals
	sent     time.Duration // when the last confirmed request was sent
	retry    time.Duration // when to try again after an error
	asked    bool          // a renewal was sent after that request
	over     bool
	mode     string
	wrong    error
}

func (k *keeper) fail(format string, args ...any) {
	if k.wrong == nil {
		k.wrong = fmt.Errorf(format, args...)
	}
}

// confirmed records a request that was sent at the time sent and granted a lease.
func (k *keeper) confirmed(sent, length time.Duration, renewed bool) {
	k.until = max(k.until, sent+length-length/100-2*time.Millisecond)
	k.length, k.renewed, k.sent, k.asked = length, renewed, sent, false
	k.due = sent + length/3
	k.quiet = k.due - length/30
}

func keep(t *testing.T, length time.Duration, renewed bool, deeds []deed) error {
	k := &keeper{mode: "works"}
	var wd *Watchdog
	wd = NewWatchdog(Config{Renew: func(ctx context.Context, leases []*Lease) []Renewal {
		sent := wd.Now()
		k.mu.Lock()
		defer k.mu.Unlock()
		switch {
		case k.over || !k.renewed || sent >= k.until:
			k.fail("at %v: a lease is renewed that must not be", sent)
		case sent < k.quiet && sent != k.told || sent > k.due:
			k.fail("renewed at %v, want between %v and %v", sent, k.quiet, k.due)
		}
		// After an error the next renewal is sent when a quarter of the remaining validity has passed.
		k.retry = sent + max((k.until-sent)/4, k.length/200)
		k.due, k.quiet, k.asked = k.retry, k.retry, true
		switch k.mode {
		case "fails":
			return []Renewal{{Err: errDown}}
		case "slow":
			// Without an answer the next renewal is sent after renewTime, but there is no third one.
			k.due = min(k.due, sent+renewTime)
			k.quiet = k.due
			if k.underWay++; k.underWay > MostRenewals {
				k.fail("at %v: %d renewals are under way", sent, k.underWay)
			}
			if k.underWay == MostRenewals {
				k.due, k.quiet = k.until, k.until
			}
			k.mu.Unlock()
			time.Sleep(7*time.Second + 1)
			k.mu.Lock()
			k.underWay--
		case "gone":
			k.over = true
			return []Renewal{{Held: false}}
		}
		switch now := wd.Now(); {
		case k.over || now >= k.until:
		case sent >= k.sent:
			k.confirmed(sent, k.length, true)
			k.told = now
			k.due = max(k.due, k.told) // the answer was late
		case k.asked: // a later request was confirmed first, and one that was sent after it has no answer
			k.told = now
			k.due = max(k.retry, now)
			k.quiet = k.due
		case k.due < now: // the next renewal has waited for this answer
			k.told, k.due = now, now
		}
		return []Renewal{{Held: true}}
	}, Group: func(*Lease) string { return "" }, Silent: func() {}, LimitReached: errLimit})
	defer wd.Close()
	l, ends := newLease(wd)
	k.confirmed(0, length, renewed)
	wd.Watch(l, wd.epoch, length, renewed, 0)
	gone := false
	for i, d := range deeds {
		time.Sleep(d.after + time.Duration(i)*7*time.Nanosecond + 1) // never at the same instant as a renewal
		synctest.Wait()
		now := wd.Now()
		k.mu.Lock()
		if !k.over && k.until <= now {
			k.over = true
		}
		trusted := k.until > now
		over := k.over
		switch {
		case d.what == "works" || d.what == "fails" || d.what == "slow" || d.what == "gone":
			k.mode = d.what
		case over:
		case d.what == "extend":
			sent := time.Now().Add(-d.length / 50) // the answer took a while
			k.confirmed(sent.Sub(wd.epoch), d.length, k.renewed || d.renew)
			wd.Extend(l, sent, d.length, d.renew)
		case d.what == "renew" && !k.renewed:
			k.due = max(now, min(k.due, k.sent+d.length/3))
			k.quiet = k.due - max(k.length, d.length)/30
			k.length, k.renewed = d.length, true
			wd.Renew(l, d.length)
		}
		if d.what == "remove" && !over {
			k.over, gone = true, true
			wd.Remove(l)
		}
		if !over && !gone && wd.IsValid(l) != trusted {
			k.fail("at %v: trusted: %v, want %v", now, !trusted, trusted)
		}
		k.mu.Unlock()
	}
	k.mu.Lock()
	if k.mode = "fails"; !k.renewed { // when all renewals fail, the lease must end
		k.mode = "works"
	}
	k.mu.Unlock()
	time.Sleep(24 * time.Hour)
	synctest.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.wrong != nil:
	case gone && ends.times != 0:
		k.fail("the end of a removed lease was reported")
	case !gone && ends.times != 1:
		k.fail("the end was reported %d times", ends.times)
	case !gone && errors.Is(ends.cause, ErrExpired) && ends.at != k.until:
		k.fail("trusted until %v, want %v", ends.at, k.until)
	}
	return k.wrong
}
