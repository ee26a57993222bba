package send

// Tries on goroutines of their own, or in a batch, which their caller can abandon.
//
// Rules: each outcome is received exactly once: by the caller while it waits, and by the OrphanHandler afterwards. A
// try reports its outcome even if a hook of the Redis client ends its goroutine. The context of a try has the values
// of the caller's context. It is canceled with the answer, when the caller leaves, and when the try should have a
// connection by now.

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// detached holds the tries of one request that have goroutines.
type detached struct {
	sender *Sender
	caller context.Context
	wake   chan struct{} // has room for all tries that are under way
	done   atomic.Bool   // the caller leaves because its context is done

	mu        sync.Mutex // guards below, and try.ended
	abandoned bool
}

// A try is one sending of a request, which its caller does not wait for on its own goroutine.
type try struct {
	outcome
	of      *detached
	req     Request
	ctx     context.Context
	cancel  context.CancelFunc
	resent  bool // it is counted
	bounded bool // it may be
	ended   bool // the caller may take the outcome
}

// A tryCtx also has the deadline of the caller, with which a Redis client with ContextTimeoutEnabled limits how long it
// waits for an answer. Only the goroutine of the caller asks the caller's context whether it is done.
type tryCtx struct {
	limited
	of *detached
}

func (c tryCtx) Deadline() (time.Time, bool) {
	by, _ := c.limited.Deadline()
	if d, ok := c.values.Deadline(); ok && d.Before(by) {
		return d, true
	}
	return by, true
}

// newTry returns the try that is sent now.
func (r *retry) newTry(caller context.Context) *try {
	if r.detached == nil {
		r.detached = &detached{sender: r.Sender, caller: caller, wake: make(chan struct{}, maxTries)}
	}
	t := &try{of: r.detached, req: r.req, cancel: func() {}}
	t.outcome = outcome{sent: r.sent, err: ErrHookExited} // unless the goroutine continues
	return t
}

// start makes one try on another goroutine.
func (r *retry) start(caller context.Context, bounded, resent bool) {
	t := r.newTry(caller)
	t.bounded, t.resent = bounded, resent
	timed, cancel := context.WithTimeout(context.Background(), ConnectTime+ConnectTime/4)
	t.ctx, t.cancel = tryCtx{limited{timed, caller}, t.of}, cancel
	r.underWay = append(r.underWay, t)
	r.asking.Add(1)
	r.config.Spawn(t.run)
}

func (t *try) run() {
	defer t.finish() // even if a hook ends the goroutine
	d := t.of
	if t.bounded {
		if o, sent := d.sender.runBounded(d.caller, &t.req, t.sent); sent {
			t.outcome = o
			return
		}
	}
	t.outcome = d.sender.runOnce(t.ctx, &t.req, t.sent)
}

// finish reports the outcome.
func (t *try) finish() {
	d, s := t.of, t.of.sender
	s.asking.Add(-1)
	if t.resent {
		s.resent.Add(-1)
	}
	d.mu.Lock()
	abandoned := d.abandoned
	if !abandoned {
		t.ended = true
		d.wake <- struct{}{}
	}
	d.mu.Unlock()
	if abandoned {
		t.orphaned(t.req.OnOrphan)
	}
}

func (o outcome) orphaned(h OrphanHandler) {
	if h != nil {
		h.HandleOrphan(o.sent, o.value, o.err)
	}
}

// wakes returns the channel from which the caller receives for each try that has ended. It is nil if d is nil.
func (d *detached) wakes() <-chan struct{} {
	if d == nil {
		return nil
	}
	return d.wake
}

// take returns a try that has ended.
func (d *detached) take(underWay []*try) *try {
	d.mu.Lock()
	defer d.mu.Unlock()
	return underWay[slices.IndexFunc(underWay, func(t *try) bool { return t.ended })]
}

// abandon passes the outcomes that the caller has not received to the OrphanHandler, now and later.
func (d *detached) abandon(underWay []*try) {
	for _, t := range underWay {
		t.cancel()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.abandoned = true
	for _, t := range underWay {
		if t.ended {
			d.sender.config.Spawn(func() { t.orphaned(t.req.OnOrphan) })
		}
	}
}
