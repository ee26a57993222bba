package engine

// How leases are renewed: the watchdog of internal/lease keeps the leases of records, and asks here.
//
// Rules: leases that must not wait for one another are in different groups. The keeper of a hold renews it without a
// request. Each answer is reported, and delays no renewal.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// A Renewal asks that a record lasts for Length from now on.
type Renewal struct {
	Lock   Record
	Field  string
	Length time.Duration

	// The answer:
	Held bool
	Err  error
}

// A Renewer asks for all renewals together, and notes the answers.
type Renewer func(ctx context.Context, sender *send.Sender, all []Renewal)

// renewing is what the watchdog asks of an engine.
type renewing struct{ *Engine }

// newWatchdog makes the watchdog of e.
func (e renewing) newWatchdog() *lease.Watchdog {
	renew := e.renew
	if e.Observed {
		renew = e.observedRenew
	}
	return lease.NewWatchdog(lease.Config{
		Renew: renew, Group: e.renewGroup, Silent: e.pubsub.Reload, LimitReached: ErrMaxHold,
	})
}

// renewGroup is the group of a lease. Leases of different groups must not wait for one another: leases on
// different servers, and leases that need no request.
func (e renewing) renewGroup(l *lease.Lease) string {
	r := l.Holder.(*record)
	if r.first.vote != nil {
		return "kept without requests"
	}
	return e.Servers.Node(r.first.lock.ID().Name).Name
}

// renew asks for one more watchdog timeout for every lease.
func (e renewing) renew(ctx context.Context, leases []*lease.Lease) []lease.Renewal {
	answers := make([]lease.Renewal, len(leases))
	var asked []Renewal
	var of []int // the index of the lease of each renewal
	for i, l := range leases {
		r := l.Holder.(*record)
		if r.first.vote != nil {
			answers[i].Held = r.first.vote.Renew()
			continue
		}
		answers[i].Length = e.watchdog.RestOf(l, e.WatchdogTimeout)
		asked, of = append(asked, Renewal{Lock: r.first.commands(), Field: r.field, Length: answers[i].Length}), append(of, i)
	}
	if len(asked) == 0 {
		return answers
	}
	e.Renewer(ctx, e.sender, asked)
	for n, i := range of {
		answers[i].Held, answers[i].Err = asked[n].Held, asked[n].Err
	}
	return answers
}

// observedRenew is renew, with a report.
func (e renewing) observedRenew(ctx context.Context, leases []*lease.Lease) []lease.Renewal {
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
				events = append(events, func() { e.Events.RenewalFailed(h.subject(), a.Err, left) })
			case a.Held:
				events = append(events, func() { e.Events.Renewed(h.subject()) })
			}
		}
	}
	e.reporter.Renewals(events)
	return answers
}
