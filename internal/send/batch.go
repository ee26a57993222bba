package send

// Batches: if many goroutines ask Redis at the same time, their calls are sent together, in pipelines, and need no
// goroutine each.
//
// Rules:
//   - A call is sent at once if no batch is under way. Otherwise it waits for a batch to come back, because one large
//     batch costs Redis and the client less than several small ones. A batch that was sent a senderPause ago, because
//     Redis is far or the connection hangs, is not waited for: there is one sender more, up to maxSenders. On a
//     Cluster, each master has its own batches: one that hangs delays only calls to that master. Nor does a batch wait
//     that holds a third as many calls as the last one: Redis runs it while the client reads and writes the others.
//   - If no batch goes out for a while, because Redis is far or connections hang, there is a sender more than that: a
//     batch that hangs delays only the calls in it.
//   - A call that was not answered is sent again in a batch, too. By themselves all those of a batch would fill the
//     connection pool, and the batches behind them would get no connection, and fail as well.
//   - A caller that leaves before its call is sent withdraws the call, and it is never sent. A call without an answer for
//     a while is a try that is under way, like any other.
//   - A batch has a time limit of its own, and the ctx of no caller.
//   - A panic of a hook is the error of every call in the batch.
//   - A batch has a goroutine of its own. A call begins it, or the batch before it.

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	batchFrom   = 4                     // tries under way that go out by themselves
	maxBatch    = 128                   // calls in one batch
	maxSenders  = 8                     // batches under way, unless they take longer than batchWait
	besideFrom  = 4                     // calls that do not wait for the last batch to come back, at least
	besideShare = 3                     // and as many as that part of it
	senderPause = time.Millisecond      // how long after it was sent a batch is expected back
	batchWait   = 20 * time.Millisecond // how long calls wait before one more batch goes out
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
	coming   bool       // a sender is about to take a batch
	underWay int
	last     *batch          // the one that was taken last; nil: none, or it has ended
	taken    time.Time       // when a sender last took a batch
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
	ctx   context.Context
	done  chan struct{} // closed when it has ended
	ended bool
}

// A batchedCall is a call that goes out with others.
type batchedCall struct {
	outcome
	call Call
	in   *batch
	left *try // gets the outcome; nil: the caller waits for the batch
}

// sendInBatch sends the request with those of others. The outcome is silent if the try is still under way after a while.
// If the call was not sent, the request has to go out by itself. The error is the reason why the caller leaves.
func (r *retry) sendInBatch(w *Wait) (o outcome, why error, sent bool) {
	b := r.batchesOf(&r.req.Call)
	if b == nil {
		return outcome{}, nil, false
	}
	c := b.enqueue(&r.req, r.sent)
	ended, why := b.wait(w.WithMinWait(r.sent), c)
	if ended {
		return b.received(c), nil, true
	}
	t := r.newTry(w.Ctx)
	switch sent, ended = b.leave(c, t); {
	case ended:
		return b.received(c), nil, true
	case sent:
		r.asking.Add(1)
		r.underWay = append(r.underWay, t)
	}
	return outcome{}, why, sent
}

// wait waits until c is answered, or was sent for a while. The error is the reason why the caller leaves.
func (b *batches) wait(w Wait, c *batchedCall) (ended bool, why error) {
	for {
		if ended, why = w.sleepFor(c.in.done, &b.limit); ended || why != nil || b.hasTaken(c) {
			return ended, why
		}
	}
}

// enqueue adds the call of r to the next batch.
func (b *batches) enqueue(r *Request, now time.Time) *batchedCall {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.queue); n == 0 || len(b.queue[n-1].calls) == maxBatch {
		b.queue = append(b.queue, &batch{calls: make([]*batchedCall, 0, 8), done: make(chan struct{})})
	}
	in := b.queue[len(b.queue)-1]
	c := &batchedCall{outcome: outcome{sent: now}, call: r.Call, in: in}
	in.calls = append(in.calls, c)
	if b.comesLocked(now) {
		b.sender.config.Spawn(b.sendAll)
	}
	return c
}

// comesLocked reports whether a sender is to take the next batch, because the queue is worth one at this time: no other
// batch is expected back, or it holds enough calls to be sent beside that.
func (b *batches) comesLocked(now time.Time) bool {
	enough := 0
	if b.last != nil && now.Sub(b.last.taken) <= b.pause {
		enough = max(besideFrom, len(b.last.calls)/besideShare)
	}
	if b.coming || b.underWay >= maxSenders || len(b.queue) == 0 || len(b.queue[0].calls) < enough {
		return false
	}
	b.coming = true
	return true
}

// hasTaken reports whether c was sent. If no batch has gone out for batchWait, the next one goes out now.
func (b *batches) hasTaken(c *batchedCall) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	sent := !c.in.taken.IsZero()
	if !sent && !b.coming && time.Since(b.taken) > batchWait {
		b.coming = true
		b.sender.config.Spawn(b.sendAll)
	}
	return sent
}

// leave ends the wait of the caller of c. It withdraws a call that was not sent. If its batch has not ended, t gets the
// outcome.
func (b *batches) leave(c *batchedCall, t *try) (sent, ended bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.in.taken.IsZero() {
		c.in.calls = slices.DeleteFunc(c.in.calls, func(other *batchedCall) bool { return other == c })
		return false, false
	}
	c.left = t
	return true, c.in.ended
}

// sendAll sends batches until none is to be sent.
func (b *batches) sendAll() {
	for b.sendNext() { // on one goroutine, because the stack of a new one has to grow first
	}
}

// sendNext sends the next batch, and reports whether another one is to be sent then.
func (b *batches) sendNext() (more bool) {
	if b.sender.config.Home != nil { // the other servers have something to do meanwhile
		runtime.Gosched() // so that the calls of goroutines that are ready to run go out in one batch
	}
	one := b.next()
	if one == nil {
		return false
	}
	returned := false
	defer func() {
		if more = b.end(one); more && !returned { // a hook ends the goroutine
			b.sender.config.Spawn(b.sendAll)
		}
	}()
	calls := make([]Call, len(one.calls))
	for i, c := range one.calls {
		calls[i], c.err = c.call, ErrHookExited // unless the goroutine goes on
	}
	var outcomes []Outcome
	err := CatchPanic(func() error {
		outcomes = b.sender.config.Transport.RunAll(one.ctx, calls, false)
		return nil
	})
	for i, c := range one.calls {
		if c.err = err; err == nil {
			c.value, c.err = outcomes[i].Answer, outcomes[i].Err
		}
	}
	LogPanic(b.sender.config.Log, err)
	returned = true
	return
}

// next takes the next batch, or returns nil if there is none any more.
func (b *batches) next() *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.taken, b.coming = now, false
	b.queue = slices.DeleteFunc(b.queue, func(one *batch) bool { return len(one.calls) == 0 })
	if len(b.queue) == 0 {
		return nil
	}
	next := b.queue[0]
	b.queue = slices.Delete(b.queue, 0, 1)
	next.taken, next.ctx = now, b.sender.connect.begin(now)
	b.last = next
	b.underWay++
	if b.comesLocked(now) { // another batch may have come back since this sender was to come
		b.sender.config.Spawn(b.sendAll)
	}
	return next
}

// end ends a batch, hands in its outcomes, and reports whether a sender is to take the next one.
func (b *batches) end(one *batch) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	one.ended = true
	b.underWay--
	if b.last == one {
		b.last = nil
	}
	close(one.done)
	for _, c := range one.calls {
		if c.left != nil { // from now on no other one will be
			b.sender.config.Spawn(func() {
				defer c.left.finish() // also if the user's client ends the goroutine
				c.left.outcome = b.received(c)
			})
		}
	}
	return b.comesLocked(time.Now())
}

// received returns the outcome of a call, and records what it says about Redis.
func (b *batches) received(c *batchedCall) outcome {
	o := c.outcome
	o.err = b.sender.orNoConnection(o.err, &c.call, c.in.ctx, ConnectTime)
	o.value, o.err = checkAnswer(o.value, o.err)
	b.sender.record(b, o)
	return o
}
