package engine

// The wait of one caller for its locks: how long it may take, and what the caller has found so far.
//
// Rules: every wait is one of send.Wait, which ends when the caller is woken, when its time is up, when ctx is done, or
// at Close.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/poller"
	"github.com/relock-go/relock/internal/send"
)

// The waitOptions of a caller apply to all waits of its call.
type waitOptions struct {
	send.Wait
	fitted    bool          // the semaphore had as many permits as the caller wants when it began to wait
	waited    bool          // the call has begun to wait for other owners
	since     time.Duration // when the call began to wait, on the clock of the watchdog
	span      *span         // of the call; nil: there is no Observer
	lastReply time.Time     // when Redis last answered this call that the lock is busy; zero: it has not
	found     findings      // what the caller knows newest of its locks
	over      time.Time     // when the attempts have ended, before their rollback; zero: there was none
}

// waitOptionsFor returns the options of a caller that waits until ctx is done, or until Close.
func (e *Engine) waitOptionsFor(ctx context.Context) *waitOptions {
	return &waitOptions{Wait: *e.byCaller(ctx)}
}

// A patientKey is the key of the value that Patiently puts into a context.
type patientKey struct{}

// Patiently returns a copy of ctx for a caller whose attempt does not wait for other owners. The attempt then waits for
// its answer until ctx is done, and not only for Services.Patience.
func Patiently(ctx context.Context) context.Context {
	return context.WithValue(ctx, patientKey{}, true)
}

func isPatient(ctx context.Context) bool { return ctx.Value(patientKey{}) != nil }

// beginWait notes that the call of op is about to wait for other owners. It returns when the call began to wait.
func (e *Engine) beginWait(op *waitOptions) time.Duration {
	if !op.waited {
		op.waited, op.since = true, e.watchdog.Now()
	}
	return op.since
}

// noteLook notes what the poller has found while the caller of h slept.
func (op *waitOptions) noteLook(h *hold, l poller.Look) {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	op.findingsLocked(h).look.Update(l)
}

// findingsLocked returns where the caller of h notes what it finds out: in the local queue that has admitted it, for all
// that wait there, or else for itself.
func (op *waitOptions) findingsLocked(h *hold) *findings {
	if h.queue != nil && h.Asks() {
		return &h.queue.findings
	}
	return &op.found
}

// seesLocked notes what the callers that q has admitted have found out, unless the caller has a later answer itself.
func (f *findings) seesLocked(q *waitQueue) {
	if o := q.reply; o != nil && (f.reply == nil || f.reply.at.Before(o.at)) {
		f.reply, f.look = o, q.look
	}
	f.request = q.request
}

// waitsBehindLocked notes that the caller gives up behind another one, in q, which may be nil: the local queue of the
// lock called name.
func (f *findings) waitsBehindLocked(name string, q *waitQueue) {
	f.behind = name
	if q != nil {
		f.seesLocked(q)
	}
}

// noteBlocker is noteBusy for any blocker.
func (op *waitOptions) noteBlocker(h *hold, o *blocker) {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	f := op.findingsLocked(h)
	op.lastReply = o.at
	if f.reply, f.look = o, (poller.Look{}); o.cause != nil {
		return
	}
	if f.request = (inquiry{}); h.queue != nil {
		h.queue.owned = true
	}
}
