package send

// Tries on goroutines of their own, which their caller can abandon.
//
// Rules: each outcome is received exactly once: by the caller while it waits, and by the OrphanHandler afterwards. A
// try reports its outcome even if a hook of the Redis client ends its goroutine. The context of a try has the values
// of the caller's context. It is canceled with the answer, when the caller leaves, and when the try should have a
// connection by now.

import (
	"context"
	"sync"
	"time"
)

// detached holds the tries of one request that have goroutines.
type detached struct {
	sender   *Sender
	onOrphan OrphanHandler
	caller   context.Context
	outcomes chan *try // has room for all tries that are under way

	mu        sync.Mutex // guards abandoned, and sends to outcomes
	abandoned bool

	// Most requests need only one try.
	first try
	room  [maxTries]*try // the array of retry.underWay
}

// A try is one sending of a request, on a goroutine of its own.
type try struct {
	outcome
	of      *detached
	req     Request
	ctx     callCtx
	resent  bool // another try of the request was under way
	bounded bool // it may be
}

// start makes one try on another goroutine.
func (r *retry) start(caller context.Context, now time.Time, bounded bool) {
	d := r.detached
	var t *try
	if d == nil {
		d = &detached{sender: r.Sender, onOrphan: r.req.OnOrphan, caller: caller, outcomes: make(chan *try, maxTries)}
		r.detached, r.underWay, t = d, d.room[:0], &d.first
	} else {
		t = new(try)
	}
	t.outcome = outcome{sent: now, err: ErrHookExited} // unless the goroutine continues
	t.of, t.req, t.resent, t.bounded = d, r.req, len(r.underWay) > 0, bounded
	t.ctx = callCtx{Context: d.caller, begun: now, ended: make(chan struct{})}
	r.underWay = append(r.underWay, t)
	r.asking.Add(1)
	r.config.Spawn(t.run)
}

func (t *try) run() {
	defer t.finish() // even if a hook ends the goroutine
	if t.bounded {
		value, err, sent := t.of.sender.runBounded(t.of.caller, &t.req, t.sent)
		if sent {
			t.value, t.err = value, err
			return
		}
	}
	t.value, t.err = t.of.sender.runTransport(&t.ctx, &t.req)
}

// finish reports the outcome.
func (t *try) finish() {
	d, s := t.of, t.of.sender
	t.err = s.orNoConnection(t.err, &t.req, d.caller, &t.ctx, ConnectTime)
	s.asking.Add(-1)
	if t.resent {
		s.resent.Add(-1)
	}
	s.recordTry(&t.req, t.sent, t.err)
	d.mu.Lock()
	abandoned := d.abandoned
	if !abandoned {
		d.outcomes <- t // has room
	}
	d.mu.Unlock()
	if abandoned {
		t.orphaned(d.onOrphan)
	}
}

func (o outcome) orphaned(h OrphanHandler) {
	if h != nil {
		h.HandleOrphan(o.sent, o.value, o.err)
	}
}

// ended returns the channel of tries that have ended. It is nil if d is nil.
func (d *detached) ended() <-chan *try {
	if d == nil {
		return nil
	}
	return d.outcomes
}

// abandon passes the outcomes that the caller has not received to the OrphanHandler, now and later.
func (d *detached) abandon(underWay []*try) {
	for _, t := range underWay {
		t.ctx.end(context.Canceled)
	}
	d.mu.Lock()
	d.abandoned = true
	orphans := len(d.outcomes) // there will be no more
	d.mu.Unlock()
	if orphans == 0 || d.onOrphan == nil {
		return
	}
	d.sender.config.Spawn(func() {
		for range orphans {
			(<-d.outcomes).orphaned(d.onOrphan)
		}
	})
}

// A callCtx is the context of a try, which its caller ends. Contexts of package context would cost half a microsecond
// more, because they watch their parents.
type callCtx struct {
	context.Context // the caller's, for its values and its deadline
	begun           time.Time
	ended           chan struct{}
	why             error // written before ended is closed
}

// Deadline is for a Redis client with ContextTimeoutEnabled, which limits with it how long it waits for an answer.
func (c *callCtx) Deadline() (time.Time, bool) {
	by := c.begun.Add(ConnectTime + ConnectTime/4)
	if d, ok := c.Context.Deadline(); ok && d.Before(by) {
		return d, true
	}
	return by, true
}

func (c *callCtx) Done() <-chan struct{} { return c.ended }

func (c *callCtx) Err() error {
	select {
	case <-c.ended:
		return c.why
	default:
		return nil
	}
}

// end cancels the context. Only the caller calls it.
func (c *callCtx) end(why error) {
	if c.why == nil {
		c.why = why
		close(c.ended)
	}
}

// expire cancels a context that is so old that its try should have a connection. Only the caller calls it.
func (c *callCtx) expire(now time.Time) {
	if now.Sub(c.begun) > ConnectTime-ResendTime {
		c.end(context.DeadlineExceeded)
	}
}
