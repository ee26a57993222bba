package relock

// How leases are renewed: the watchdog of internal/lease keeps the leases of records, and asks here.
//
// Rules: leases that must not wait for one another are in different groups. The keeper of a hold renews it without a request. Each
// answer is reported, and delays no renewal.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// A renewal asks that a record lasts for Length from now on.
type renewal struct {
	Lock   lockType
	Field  string
	Length time.Duration

	// The answer:
	Held bool
	Err  error
}

// A renewer asks for all renewals together, and notes the answers.
type renewer func(ctx context.Context, sender *send.Sender, all []renewal)

// newWatchdog makes the watchdog of e.
func (e *engine) newWatchdog() *lease.Watchdog {
	renew := e.renew
	if e.observed {
		renew = e.observedRenew
	}
	return lease.NewWatchdog(lease.Config{
		Renew: renew, Group: e.renewGroup, Silent: e.pubsub.Reload, LimitReached: errMaxHold,
	})
}

// renewGroup is the group of a lease. Leases of different groups must not wait for one another: leases on
// different servers, and leases that need no request.
func (e *engine) renewGroup(l *lease.Lease) string {
	r := l.Holder.(*record)
	if r.first.keeper != nil {
		return "kept without requests"
	}
	return e.servers.Node(r.first.lock.id().name).Name
}

// renew asks for one more watchdog timeout for every lease.
func (e *engine) renew(ctx context.Context, leases []*lease.Lease) []lease.Renewal {
	answers := make([]lease.Renewal, len(leases))
	var asked []renewal
	var of []int // the index of the lease of each renewal
	for i, l := range leases {
		r := l.Holder.(*record)
		if r.first.keeper != nil {
			answers[i].Held = r.first.keeper.renew()
			continue
		}
		answers[i].Length = e.watchdog.RestOf(l, e.watchdogTimeout)
		asked, of = append(asked, renewal{Lock: r.first.verbs(), Field: r.field, Length: answers[i].Length}), append(of, i)
	}
	if len(asked) == 0 {
		return answers
	}
	e.renewer(ctx, e.sender, asked)
	for n, i := range of {
		answers[i].Held, answers[i].Err = asked[n].Held, asked[n].Err
	}
	return answers
}

// observedRenew is renew, with a report.
func (e *engine) observedRenew(ctx context.Context, leases []*lease.Lease) []lease.Renewal {
	answers := e.renew(ctx, leases)
	if ctx.Err() != nil {
		return answers
	}
	var events []func()
	for i, l := range leases {
		a, left := answers[i], e.watchdog.Left(l)
		for _, h := range l.Holder.(*record).holdsNow() {
			switch {
			case a.Err != nil:
				events = append(events, func() { e.events.RenewalFailed(h.subject(), a.Err, left) })
			case a.Held:
				events = append(events, func() { e.events.Renewed(h.subject()) })
			}
		}
	}
	e.reporter.Renewals(events)
	return answers
}
