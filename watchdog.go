package relock

// What a renewal is, and why a hold ends: the watchdog of internal/lease keeps leases, and the holds that have them
// are those of records (record.go).
//
// Rules: a renewal asks for one more watchdog timeout, or for what is left until MaxHold. One pipeline never has renewals
// for different servers. A record that was replaced by something else is gone, and an error of Redis is not: the watchdog
// tries again. An Observer is told of each answer, and delays no renewal.

import (
	"context"
	"errors"
	"fmt"

	"github.com/relock-go/relock/internal/lease"
)

// Causes of the end of a hold, beside ErrMaxHold and what the keeper of a hold says.
var (
	// errGone is the cause of a lease whose record is no longer there.
	errGone = lease.ErrGone

	// errForced is the cause of a lease whose lock was forced open by this client.
	errForced = fmt.Errorf("%w: the lock was forced open", errGone)

	// errLapsed is the cause of a lease that ran out without having been renewed.
	errLapsed = lease.ErrLapsed

	// errUnrenewed goes with errLapsed where the watchdog had to renew the lease: such an end is a loss.
	errUnrenewed = errors.New("it could not be renewed")
)

// newWatchdog makes the watchdog of e.
func (e *engine) newWatchdog() *lease.Watchdog {
	renew := e.renew
	if e.observer != nil {
		renew = e.observedRenew
	}
	return lease.NewWatchdog(lease.Config{
		Renew: renew, Group: e.renewGroup, Silent: e.pubsub.Reload, LimitReached: ErrMaxHold,
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
	var calls []call
	var called []int // the index of the lease of each call
	for i, l := range leases {
		r := l.Holder.(*record)
		if r.first.keeper != nil {
			answers[i].Held = r.first.keeper.renew()
			continue
		}
		answers[i].Length = e.watchdog.RestOf(l, e.watchdogTimeout)
		calls = append(calls, r.first.lock.(lockType).renew(r.field, answers[i].Length, false))
		called = append(called, i)
	}
	if len(calls) == 0 {
		return answers
	}
	replies, errs := e.sender.All(ctx, calls)
	for n, i := range called {
		answers[i].Held, answers[i].Err = replies[n][0] == 1, errs[n]
		if errors.Is(errs[n], ErrNotALock) { // the record was replaced by something else
			answers[i].Err = nil
		}
	}
	return answers
}

// observedRenew is renew, with a report.
func (e *engine) observedRenew(ctx context.Context, leases []*lease.Lease) []lease.Renewal {
	answers := e.renew(ctx, leases)
	if ctx.Err() != nil {
		return answers
	}
	background := context.Background()
	var events []func()
	for i, l := range leases {
		a, left := answers[i], e.watchdog.Left(l)
		for _, h := range l.Holder.(*record).holdsNow() {
			switch {
			case a.Err != nil:
				events = append(events, func() { e.observer.RenewalFailed(background, RenewalFailedEvent{h.info(), a.Err, left}) })
			case a.Held:
				events = append(events, func() { e.observer.Renewed(background, RenewedEvent{h.info()}) })
			}
		}
	}
	e.reporter.Renewals(events)
	return answers
}
