package send

// Batches: if many goroutines ask Redis at the same time, their calls are sent together, in pipelines, and need no
// goroutine each.
//
// Rules:
//   - A call is sent at once if no batch is under way. Otherwise it waits for a batch to come back, because one large
//     batch costs Redis and the client less than several small ones. A batch that was sent a senderPause ago, because
//     Redis is far or the connection hangs, is not waited for: there is one sender more, up to maxSenders. On a
//     Cluster, each master has its own batches: one that hangs delays only calls to that master. Nor does a batch of
//     besideFrom calls wait: Redis runs it while the client reads and writes the others.
//   - If no batch comes back for a while, because Redis is far or connections hang, the calls in the queue go out by
//     themselves after all: a batch that hangs delays only the calls in it. Where a batch was not answered, all calls
//     go out by themselves for some time.
//   - A caller that leaves before its call is sent withdraws the call, and it is never sent. Later the call is
//     abandoned, as any other.
//   - A batch has a time limit of its own, and the ctx of no caller.
//   - A panic of a hook is the error of every call in the batch.
//   - The goroutines that send end when there is nothing to send.

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	batchFrom     = 4                     // tries under way that go out by themselves
	maxBatch      = 128                   // calls in one batch
	maxSenders    = 4                     // batches under way
	besideFrom    = 8                     // calls in a batch that does not wait for others
	senderPause   = time.Millisecond      // how long after it was sent a batch is expected back
	batchWait     = 20 * time.Millisecond // how long no batch may go out before calls go out by themselves
	batchCooldown = 5 * time.Second       // without batches, after one that was not answered
)

// batches are the batches of one Sender to one server.
type batches struct {
	sender *Sender
	from   int64         // batchFrom
	pause  time.Duration // senderPause
	limit  limit         // batchWait
	heard  atomic.Int64  // when the server answered the last call, in ns since Sender.began

	mu       sync.Mutex // guards below, and the batches
	queue    []*batch   // those that were not taken yet, all but the last one with maxBatch calls
	senders  int
	underWay int
	last     *batch          // the one that was taken last; nil: none
	taken    time.Time       // when a sender last took a batch, or found none
	stalled  bool            // a call has waited in vain since then
	cooldown time.Time       // no batches until then
	probed   time.Time       // when probe has last begun
	probes   <-chan struct{} // closed when they have ended; nil: none are under way
}

func newBatches(s *Sender) *batches {
	b := &batches{sender: s, from: batchFrom, pause: senderPause, limit: limit{d: batchWait}}
	b.heard.Store(int64(never))
	return b
}

// BatchAll has every call go out in a batch that may, however few are under way. It is for tests, and called before
// the first call.
func (s *Sender) BatchAll() {
	s.batches.from = 0
}

// A batch is calls that are sent together. Nothing changes after it has ended.
type batch struct {
	calls []*batchedCall // that were not withdrawn
	taken time.Time      // from the queue; zero: it was not yet
	done  chan struct{}  // closed when it has ended
	ended bool
}

// A batchState is where a call is.
type batchState int

const (
	queued    batchState = iota
	withdrawn            // never sent
	underWay             // sent, or being sent
	answered             // the caller takes the outcome
	abandoned            // the OrphanHandler gets the outcome
)

// A batchedCall is a call that goes out with others.
type batchedCall struct {
	outcome
	call      Call
	handler   OrphanHandler
	in        *batch
	withdrawn bool // it is not sent
	abandoned bool // the OrphanHandler gets the outcome
}

// sendInBatch sends the request with those of others, and waits for the outcome. If the call was not sent, the request
// has to go out by itself. The error is the reason why the caller leaves.
func (r *retry) sendInBatch(w *Wait, now time.Time) (o outcome, why error, sent bool) {
	b := r.batchesOf(&r.req)
	if b == nil {
		return outcome{}, nil, false
	}
	c := b.enqueue(&r.req, now)
	if c == nil {
		return outcome{}, nil, false
	}
	why = b.wait(w.WithMinWait(now), c)
	switch b.leave(c) {
	case withdrawn:
		return outcome{}, why, false
	case answered:
		o = c.outcome
		o.value, o.err = checkAnswer(o.value, o.err)
		r.recordAnswer(b, o.sent, o.err)
		r.recordHealth(o.err)
		return o, nil, true
	}
	r.handed++
	r.abandoned = why != nil
	if why == nil {
		o = outcome{sent: now, err: ErrSilent} // the request is sent again
	}
	if why == nil || why == ErrTimeUp { // the call was without an answer for at least MinWait
		r.recordHealth(ErrSilent)
	}
	return o, why, true
}

// wait waits until c is answered, is withdrawn, or was under way for ResendTime. The error is the reason why the caller
// leaves.
func (b *batches) wait(w Wait, c *batchedCall) error {
	deadline := w.Deadline
	w.Deadline = time.Time{} // is later than the first look, and a timer costs a twentieth of a call
	for {
		ended, why := w.sleep(c.in.done, b.limit.begin(time.Now()).Done(), nil, 0)
		if ended || why != nil {
			return why
		}
		w.Deadline = deadline
		switch b.look(c) {
		case withdrawn:
			return nil
		case underWay:
			_, why = w.sleep(c.in.done, b.sender.limit.begin(time.Now()).Done(), nil, 0)
			return why
		}
	}
}

// enqueue adds the call of r to the next batch. It returns nil if calls are to go out by themselves.
func (b *batches) enqueue(r *Request, now time.Time) *batchedCall {
	b.mu.Lock()
	if b.stalled || !b.cooldown.IsZero() && time.Now().Before(b.cooldown) {
		b.mu.Unlock()
		return nil
	}
	if n := len(b.queue); n == 0 || len(b.queue[n-1].calls) == maxBatch {
		b.queue = append(b.queue, &batch{done: make(chan struct{})})
	}
	in := b.queue[len(b.queue)-1]
	c := &batchedCall{outcome: outcome{sent: now}, call: r.Call, handler: r.OnOrphan, in: in}
	in.calls = append(in.calls, c)
	// If there are more senders than batches under way, a sender is about to take it.
	more := b.senders == b.underWay && b.senders < maxSenders && b.enoughLocked(now)
	if more {
		b.senders++
	}
	b.mu.Unlock()
	if more {
		b.sender.config.Spawn(b.sendBatches)
	}
	return c
}

// enoughLocked reports whether the queue is worth a batch at this time: no other batch is expected back, or it holds enough
// calls to be sent beside that.
func (b *batches) enoughLocked(now time.Time) bool {
	return b.last == nil || now.Sub(b.last.taken) > b.pause || len(b.queue) > 0 && len(b.queue[0].calls) >= besideFrom
}

// look returns the state of c, which it withdraws if no batch goes out any more.
func (b *batches) look(c *batchedCall) batchState {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !c.in.taken.IsZero():
		return underWay
	case time.Since(b.taken) <= batchWait:
		return queued
	}
	b.stalled = true
	c.withdrawLocked()
	return withdrawn
}

// leave ends the wait of the caller of c, and returns the last state that concerns the caller.
func (b *batches) leave(c *batchedCall) batchState {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case c.withdrawn:
	case c.in.taken.IsZero():
		c.withdrawLocked()
	case c.in.ended:
		return answered
	default:
		c.abandoned = true
		return abandoned
	}
	return withdrawn
}

// withdrawLocked takes c out of its batch, which was not taken.
func (c *batchedCall) withdrawLocked() {
	c.withdrawn = true
	c.in.calls = slices.DeleteFunc(c.in.calls, func(other *batchedCall) bool { return other == c })
}

// sendBatches sends the batches in the queue until there are none, or too few calls beside those that are expected back.
func (b *batches) sendBatches() {
	ended := false
	defer func() {
		if !ended { // a hook has ended the goroutine
			b.sender.config.Spawn(b.sendBatches)
		}
	}()
	for {
		runtime.Gosched() // so that the calls of goroutines that are ready to run go out in one batch
		next := b.next()
		if next == nil {
			break
		}
		b.send(next)
	}
	ended = true
}

// next takes the next batch. If there is none, or another one is expected back, whose sender then sends what is in the
// queue, it returns nil, and there is one sender less.
func (b *batches) next() *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if !b.enoughLocked(now) {
		b.senders--
		return nil
	}
	b.taken, b.stalled = now, false
	for len(b.queue) > 0 {
		next := b.queue[0]
		b.queue = slices.Delete(b.queue, 0, 1)
		next.taken = now
		if len(next.calls) > 0 {
			b.last = next
			b.underWay++
			return next
		}
	}
	b.senders--
	return nil
}

// send sends a batch and hands in its outcomes.
func (b *batches) send(one *batch) {
	calls := make([]Call, len(one.calls))
	for i, c := range one.calls {
		calls[i] = c.call
	}
	ctx := b.sender.limit.begin(time.Now()) // for a connection
	var outcomes []Outcome
	err := ErrHookExited                                 // unless the goroutine goes on
	defer func() { b.finish(one, outcomes, err, ctx) }() // also when a hook ends the goroutine
	err = CatchPanic(func() error {
		outcomes = b.sender.config.Transport.RunAll(ctx, calls, false)
		return nil
	})
	LogPanic(b.sender.config.Log, err)
}

// finish hands in the outcomes of a batch. If there are none, err is that of each call.
func (b *batches) finish(one *batch, outcomes []Outcome, err error, ctx context.Context) {
	unanswered := false
	for i, c := range one.calls {
		c.value, c.err = nil, err
		if outcomes != nil {
			c.value, c.err = outcomes[i].Answer, outcomes[i].Err
		}
		// A batch has the context of no caller.
		c.err = b.sender.orNoConnection(c.err, &Request{Call: c.call}, context.Background(), ctx, ResendTime)
		unanswered = unanswered || c.err != nil && !Answered(c.err)
	}
	b.end(one, unanswered)
	for _, c := range one.calls {
		if c.abandoned { // by now no other one will be
			b.sender.recordAnswer(b, c.sent, c.err)
			b.sender.recordHealth(c.err)
			if c.handler != nil {
				b.sender.config.Spawn(func() { c.orphaned(c.handler) })
			}
		}
	}
}

// end ends a batch, and wakes its callers.
func (b *batches) end(one *batch, unanswered bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	one.ended = true
	b.underWay--
	if b.last == one {
		b.last = nil
	}
	if unanswered {
		b.cooldown = time.Now().Add(batchCooldown)
	}
	close(one.done)
}
