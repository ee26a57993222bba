//go:build go1.25

package lease

// Every order of a few events of one lease. There is no loop: the test looks at the leases itself, when the watchdog is
// armed to look, and answers the requests itself.

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// An orderOf is a watchdog after some events, and the requests of its lease that are under way.
type orderOf struct {
	watchdog *Watchdog
	lease    *Lease
	underWay []request // in the order in which they were sent
	lastAsk  time.Duration
	over     bool // the lease was removed, has ended, or is gone
	wrong    error
}

type request struct {
	sent   time.Duration
	looks  bool
	length time.Duration
}

// events are what may happen to a lease. Each returns false if it cannot happen now.
var events = []struct {
	name string
	do   func(o *orderOf) bool
}{
	{"look when armed", func(o *orderOf) bool { return o.pass(o.watchdog.armed - o.watchdog.Now()) }},
	{"look soon", func(o *orderOf) bool { return o.pass(time.Millisecond) }},
	{"look just before the end", func(o *orderOf) bool {
		return o.pass(o.watchdog.Left(o.lease) - min(o.lease.slack(), oldAge)/2)
	}},
	{"the first request succeeds", func(o *orderOf) bool { return o.answer(0, Renewal{Held: true}) }},
	{"the last request succeeds", func(o *orderOf) bool { return o.answer(len(o.underWay)-1, Renewal{Held: true}) }},
	{"the first request fails", func(o *orderOf) bool { return o.answer(0, Renewal{Err: errDown}) }},
	{"the last request fails", func(o *orderOf) bool { return o.answer(len(o.underWay)-1, Renewal{Err: errDown}) }},
	{"the first request finds no record", func(o *orderOf) bool { return o.answer(0, Renewal{}) }},
	{"check", func(o *orderOf) bool { o.watchdog.Check(o.lease); return o.lease.checkAt > 0 }},
	{"check now", func(o *orderOf) bool { return o.checkNow() }},
	{"extend", func(o *orderOf) bool {
		o.watchdog.Extend(o.lease, time.Now(), o.watchdog.RestOf(o.lease, testLease/2), true)
		return true
	}},
	{"remove", func(o *orderOf) bool {
		o.watchdog.Remove(o.lease)
		o.over = true
		return true
	}},
}

// newOrder returns a watchdog with a lease of this kind, and others, which are only looked for.
func newOrder(explicit, limited bool) *orderOf {
	w := NewWatchdog(Config{LimitReached: errLimit})
	w.turning = true // by the test
	o := &orderOf{watchdog: w}
	for _, length := range []time.Duration{testLease / 2, time.Hour} {
		other, _ := newLease(w)
		w.Watch(other, time.Now(), length, false, 0)
	}
	o.lease, _ = newLease(w)
	if limited {
		o.lease.SetLimit(testLease)
	}
	w.Watch(o.lease, time.Now(), testLease, !explicit, 0)
	o.look()
	return o
}

// pass lets d pass, and looks at the leases whenever the watchdog is armed to, and at the end.
func (o *orderOf) pass(d time.Duration) bool {
	w := o.watchdog
	end := w.Now() + d
	for d >= 0 && o.wrong == nil {
		now := min(max(w.armed, w.Now()), end)
		w.epoch = w.epoch.Add(w.Now() - now) // the clock of the bubble stands still
		o.look()
		if now == end {
			return true
		}
	}
	return false
}

func (o *orderOf) look() {
	w, now := o.watchdog, o.watchdog.Now()
	due, ended, _ := w.collect()
	if w.armed <= now {
		o.fail("the next turn is due now")
	}
	for _, l := range due {
		if l != o.lease {
			o.fail("a lease is asked for that is neither due nor checked")
			continue
		}
		o.underWay, o.lastAsk = append(o.underWay, request{now, !l.IsRenewable(), w.RestOf(l, testLease)}), now
	}
	for _, e := range ended {
		o.over = o.over || e.Holder == o.lease.Holder
	}
}

// answer answers request n.
func (o *orderOf) answer(n int, a Renewal) bool {
	if n < 0 || n >= len(o.underWay) {
		return false
	}
	r := o.underWay[n]
	o.underWay = append(o.underWay[:n:n], o.underWay[n+1:]...)
	if a.Looked = r.looks; !a.Looked {
		a.Length = r.length
	}
	o.over = len(o.watchdog.answered([]*Lease{o.lease}, r.sent, []Renewal{a})) > 0 || o.over
	return true
}

// checkNow sends a request as CheckNow does.
func (o *orderOf) checkNow() bool {
	w, l := o.watchdog, o.lease
	if len(w.startChecks([]*Lease{l})) == 0 {
		return false
	}
	w.work.Done()
	o.underWay = append(o.underWay, request{w.Now(), !l.IsRenewable(), w.RestOf(l, testLease)})
	return true
}

func (o *orderOf) fail(format string, args ...any) {
	if o.wrong == nil {
		o.wrong = fmt.Errorf(format, args...)
	}
}

// check checks what holds after every event.
func (o *orderOf) check() {
	w, l, now := o.watchdog, o.lease, o.watchdog.Now()
	if int(l.underWay) != len(o.underWay) || l.underWay > MostRenewals {
		o.fail("%d requests are counted, %d are under way", l.underWay, len(o.underWay))
	}
	for i, other := range w.leases {
		if other.index != i || w.leases.Less(i, (i-1)/2) {
			o.fail("the heap is out of order at %d", i)
		}
	}
	if len(w.leases) > 0 && w.armed > w.leases[0].next() {
		o.fail("the next turn is due at %v, and a lease is due at %v", w.armed, w.leases[0].next())
	}
	left := w.Left(l)
	if o.over || left <= 0 {
		return
	}
	until := now + left
	atEnd := o.lastAsk > 0 && until-o.lastAsk <= l.length/200 // a renewal just before the end is not repeated
	if l.IsRenewable() && l.underWay == 0 && l.renewAt >= until && !atEnd {
		o.fail("nothing is under way, and the lease is not asked for before it ends")
	}
	if l.checkAt > 0 && l.underWay < MostRenewals && l.next() > l.checkAt {
		o.fail("the check at %v is not sent", l.checkAt)
	}
}

// After every order of a few events, the loop sleeps until something is due, and a valid lease that is renewable has a
// request under way or is asked for before it ends. No order makes more than MostRenewals requests.
func TestEveryOrderOfEventsKeepsALeaseRenewed(t *testing.T) {
	t.Parallel()
	for _, explicit := range []bool{false, true} {
		for _, limited := range []bool{false, true} {
			t.Run(fmt.Sprintf("explicit=%v,limited=%v", explicit, limited), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					orders, most := 0, mostEvents
					if explicit { // until its lease is extended
						most--
					}
					tryOrders(t, explicit, limited, nil, most, &orders)
					t.Log(orders, "orders")
					require.Greater(t, orders, 1_000, "orders")
				})
			})
		}
	}
}

// tryOrders tries all orders that begin with begin and have at most this many events more.
func tryOrders(t *testing.T, explicit, limited bool, begin []int, more int, orders *int) {
	for i := range events {
		order := append(begin[:len(begin):len(begin)], i)
		o := newOrder(explicit, limited)
		possible := true
		for _, e := range order {
			possible = events[e].do(o)
		}
		if !possible && o.wrong == nil {
			continue
		}
		*orders++
		if o.check(); o.wrong != nil {
			var names []string
			for _, e := range order {
				names = append(names, events[e].name)
			}
			t.Fatalf("after %q: %v", names, o.wrong)
		}
		if more > 1 && !o.over {
			tryOrders(t, explicit, limited, order, more-1, orders)
		}
	}
}
