package engine

// Renewing: the watchdog of internal/lease decides when the lease of a record is renewed, and calls the methods here.
//
// Rules: leases that must not wait for one another are in different groups. A lease that is checked although it
// is not renewed stays as it is. Each answer is reported as an event, and no event delays a renewal.

import (
	"context"

	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// newWatchdog returns the watchdog of e.
func (e *Engine) newWatchdog() *lease.Watchdog {
	renew := e.renew
	if e.Observed {
		renew = e.observedRenew
	}
	config := lease.Config{Renew: renew, Group: e.renewGroup, Silent: e.pubsub.Reload, LimitReached: ErrMaxHold}
	if e.Channel != "" {
		config.Old = func(old bool) {
			if old {
				e.noteSlow()
			}
			e.hints.Hear(old)
		}
	}
	return lease.NewWatchdog(config)
}

// renewGroup returns the group of a lease. Leases on different servers are in different groups, because they must not
// wait for one another, and so are leases that need no request.
func (e *Engine) renewGroup(l *lease.Lease) string {
	r := l.Holder.(*record)
	if r.first.local() != nil {
		return "in this process"
	}
	return e.Servers.Node(r.first.lock.Traits().ID.Name).Name
}

// renew sets every lease to one watchdog timeout, counted from now. A lease with a limit gets no more than is left
// until the limit.
func (e *Engine) renew(ctx context.Context, leases []*lease.Lease) []lease.Renewal {
	answers, asked := make([]lease.Renewal, len(leases)), make([]Renewal, len(leases))
	for i, l := range leases {
		if answers[i].Looked = !l.IsRenewable(); !answers[i].Looked {
			answers[i].Length = e.watchdog.RestOf(l, e.WatchdogTimeout)
		}
		h := l.Holder.(*record).first
		asked[i] = Renewal{
			Lock: h.commands(), Field: h.Field().ID, Length: answers[i].Length,
			Err: send.ErrHookExited, // unless the Renewer returns
		}
	}
	defer e.renewed(leases, answers, asked)
	e.Renewer(ctx, e.sender, asked)
	return answers
}

// renewed stores the answers of asked in answers, and notes how long the records last, and the requests that may still
// run.
func (e *Engine) renewed(leases []*lease.Lease, answers []lease.Renewal, asked []Renewal) {
	for i, r := range asked {
		answers[i].Held, answers[i].Err = r.Held, r.Err
		h := leases[i].Holder.(*record).first
		if r.Length == 0 || r.Err == nil && !r.Held {
			continue
		}
		if send.MayRunLater(r.Err) {
			e.late.Left(r.Field, late.Effect{Lease: r.Length}, 0, true)
		}
		mayLast(h, r.Length, r.Err)
	}
}

// observedRenew is renew for an engine whose events are observed: it also reports the answers.
func (e *Engine) observedRenew(ctx context.Context, leases []*lease.Lease) []lease.Renewal {
	answers := e.renew(ctx, leases)
	if ctx.Err() != nil {
		return answers
	}
	var events []func()
	for i, l := range leases {
		a, left := answers[i], e.watchdog.Left(l)
		for _, h := range l.Holder.(*record).holdsNow() {
			v := Event{What: Renewed, Subject: h.subject()}
			if a.Err != nil {
				v.What, v.Err, v.Time = RenewalFailed, a.Err, left
			}
			if !a.Looked && (a.Held || a.Err != nil) {
				events = append(events, func() { e.Events.Report(context.Background(), v) })
			}
		}
	}
	e.reporter.Renewals(events)
	return answers
}
