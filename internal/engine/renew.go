package engine

// Renewing: the watchdog of internal/lease decides when the lease of a record is renewed, and calls the methods here.
//
// Rules: leases that must not wait for one another are in different groups. The hold of a RedLock is renewed by its
// vote, without a request of its own. A lease that is checked although it is not renewed stays as it is. Each answer is
// reported as an event, and no event delays a renewal.

import (
	"context"

	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// renewing has the functions of an engine that its watchdog calls.
type renewing struct{ *Engine }

// newWatchdog returns the watchdog of e.
func (e renewing) newWatchdog() *lease.Watchdog {
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
func (e renewing) renewGroup(l *lease.Lease) string {
	r := l.Holder.(*record)
	if !r.first.hasRecord() {
		return "kept without requests"
	}
	return e.Servers.Node(r.first.lock.Traits().ID.Name).Name
}

// renew sets every lease to one watchdog timeout, counted from now. A lease with a limit gets no more than is left
// until the limit.
func (e renewing) renew(ctx context.Context, leases []*lease.Lease) []lease.Renewal {
	answers := make([]lease.Renewal, len(leases))
	var asked []Renewal
	var of []int // the indexes in leases of the elements of asked
	for i, l := range leases {
		var request Renewal
		answers[i], request = l.Holder.(*record).first.keeper().renewal(l)
		if request.Lock != nil {
			asked, of = append(asked, request), append(of, i)
		}
	}
	if len(asked) > 0 {
		defer e.renewed(leases, answers, asked, of)
		e.Renewer(ctx, e.sender, asked)
	}
	return answers
}

// renewed stores the answers of asked in those elements of answers, and notes how long the records last, and the
// requests that may still run.
func (e renewing) renewed(leases []*lease.Lease, answers []lease.Renewal, asked []Renewal, of []int) {
	for n, i := range of {
		answers[i].Held, answers[i].Err = asked[n].Held, asked[n].Err
		length, err := asked[n].Length, asked[n].Err
		if send.RedisClosed(err) {
			leases[i].Holder.(*record).first.lockState.endLocalWaits()
		}
		if length == 0 || err == nil && !asked[n].Held {
			continue
		}
		if send.MayRunLater(err) {
			e.late.Left(asked[n].Field, late.Effect{Lease: length}, 0, true)
		}
		leases[i].Holder.(*record).first.mayLast(length, err)
	}
}

// endLocalWaits makes all callers that wait in the local queues of s ask Redis themselves.
func (s *lockState) endLocalWaits() {
	s.Lock()
	defer s.Unlock()
	for _, q := range s.queues {
		q.FailBehind(0, errBypassQueue)
	}
}

// observedRenew is renew for an engine whose events are observed: it also reports the answers.
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
			case a.Looked:
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
