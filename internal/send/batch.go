package send

// Batches: if many goroutines ask Redis at the same time, their calls are sent together, in pipelines, and need no
// goroutine each.
//
// Rules:
//   - A call is sent at once if no batch is under way. Otherwise it waits for a batch to come back, because one large
//     batch costs Redis and the client less than several small ones.
//   - Another batch is sent as soon as the queue holds a third as many calls as the batches under way, so that Redis
//     runs one batch while the client reads and writes the others. A shorter queue is left to the senders whose batches
//     are still under way: a sender whose own batch is back ends rather than send a few calls. Where there are several
//     servers, the client has the batches of the others to work on meanwhile, so it takes more calls.
//   - Only a batch that was sent less than senderPause ago holds back others. One that takes longer, because Redis is
//     far or the connection hangs, keeps no sender from starting or from going on. On a Cluster, each master has its
//     own batches: one that hangs delays only calls to that master.
//   - If no batch comes back for a while, because Redis is far or connections hang, the calls in the queue go out by
//     themselves after all: a batch that hangs delays only the calls in it. Where a batch was not answered, all calls
//     go out by themselves for some time.
//   - A caller that leaves before its call is sent takes the call out of the queue, and the call is never sent. Later
//     the call is abandoned, as any other.
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
	besideFrom    = 4                     // calls at least in a batch that is sent while others are expected back
	besideOthers  = 12                    // the same where there are several servers
	besideShare   = 33                    // and at least so many percent of the calls in the others
	senderPause   = time.Millisecond      // how long after it was sent a batch is expected back
	batchWait     = 20 * time.Millisecond // how long no batch may go out before calls go out by themselves
	batchCooldown = 5 * time.Second       // without batches, after one that was not answered
)

// batches are the batches of one Sender to one server.
type batches struct {
	sender *Sender
	from   int64         // batchFrom
	beside int           // besideFrom or besideOthers
	pause  time.Duration // senderPause
	limit  limit         // batchWait
	heard  atomic.Int64  // when the server answered the last call, in ns since Sender.began
	spare  sync.Pool     // of *batchedCall
	empty  sync.Pool     // of *batch

	mu       sync.Mutex     // guards below, and the states of calls
	queue    []*batchedCall // empty if there is no sender
	senders  int
	underWay []*batch
	taken    time.Time // when a sender last took a batch, or found none
	stalled  bool      // a call has waited in vain since then
	cooldown time.Time // no batches until then
}

func newBatches(s *Sender) *batches {
	b := &batches{sender: s, from: batchFrom, beside: besideFrom, pause: senderPause, limit: limit{d: batchWait}}
	if s.config.Home != nil {
		b.beside = besideOthers
	}
	b.heard.Store(int64(never))
	return b
}

// BatchAll has every call go out in a batch that may, however few are under way. It is for tests, and called before
// the first call.
func (s *Sender) BatchAll() {
	s.batches.from = 0
}

// A batchedCall is a call that goes out with others.
type batchedCall struct {
	outcome // except for sent, written before done receives a value
	call    Call
	handler OrphanHandler
	done    chan struct{} // receives a value when the batch has ended

	state batchState // guarded by batches.mu
}

// newCall returns a call that is not in the queue.
func (b *batches) newCall() *batchedCall {
	if c, ok := b.spare.Get().(*batchedCall); ok {
		return c
	}
	return &batchedCall{done: make(chan struct{}, 1)}
}

// free keeps c for another caller. The caller of c has taken the outcome and the value of done, or c was never in the
// queue: so no one else refers to c.
func (b *batches) free(c *batchedCall) {
	*c = batchedCall{done: c.done}
	b.spare.Put(c)
}

// A batch is calls that are sent together.
type batch struct {
	calls []*batchedCall
	sent  []Call    // of calls
	taken time.Time // from the queue
}

// newBatch returns a batch without calls.
func (b *batches) newBatch(taken time.Time) *batch {
	one, ok := b.empty.Get().(*batch)
	if !ok {
		one = new(batch)
	}
	one.taken = taken
	return one
}

// freeBatch keeps the memory of one for another batch. The batch has ended, so no one else refers to it.
func (b *batches) freeBatch(one *batch) {
	clear(one.calls)
	clear(one.sent)
	*one = batch{calls: one.calls[:0], sent: one.sent[:0]}
	b.empty.Put(one)
}

// A batchState is where a batchedCall is.
type batchState int

const (
	queued    batchState = iota
	dequeued             // never sent
	inBatch              // sent, or being sent
	answered             // the caller takes the outcome
	abandoned            // the OrphanHandler gets the outcome
)

// sendInBatch sends the request with those of others, and waits for the outcome. If the call was not sent, the request
// has to go out by itself. The error is the reason why the caller leaves.
func (r *retry) sendInBatch(w *Wait, now time.Time) (o outcome, why error, sent bool) {
	b := r.batchesOf(r.req.key())
	if b == nil {
		return outcome{}, nil, false
	}
	c := b.newCall()
	c.outcome, c.call, c.handler = outcome{sent: now}, r.req.Call, r.req.OnOrphan
	if !b.enqueue(c) {
		b.free(c)
		return outcome{}, nil, false
	}
	ended, why := b.wait(w.WithMinWait(now), c)
	state := answered
	if !ended {
		state = b.leave(c)
	}
	switch state {
	case dequeued:
		return outcome{}, why, false
	case answered:
		if !ended { // the batch has ended meanwhile, and the value comes at once
			<-c.done
		}
		o, why = c.outcome, nil
		b.free(c)
		o.value, o.err = checkAnswer(o.value, o.err)
		r.recordAnswer(&r.req, o.sent, o.err)
		r.recordHealth(o.err)
	case abandoned:
		r.handed++
		r.abandoned = why != nil
		if why == nil {
			o = outcome{sent: now, err: ErrSilent} // the request is sent again
		}
		if why == nil || why == ErrTimeUp { // the call was without an answer for at least MinWait
			r.recordHealth(ErrSilent)
		}
	}
	return o, why, true
}

// wait waits until c is answered, is out of the queue, or was under way for ResendTime. ended reports whether it has
// received the value of c.done. The error is the reason why the caller leaves.
func (b *batches) wait(w Wait, c *batchedCall) (ended bool, why error) {
	deadline := w.Deadline
	w.Deadline = time.Time{} // is later than the first look, and a timer costs a twentieth of a call
	for {
		ended, why = w.sleep(c.done, b.limit.begin(time.Now()).Done(), nil, 0)
		if ended {
			return true, nil
		}
		w.Deadline = deadline
		switch state := b.look(c, why != nil); {
		case state == queued:
		case state != inBatch || why != nil:
			return false, why
		default:
			return w.sleep(c.done, b.sender.limit.begin(time.Now()).Done(), nil, 0)
		}
	}
}

// enqueue has c sent with the next batch. It returns false if calls are to go out by themselves.
func (b *batches) enqueue(c *batchedCall) bool {
	b.mu.Lock()
	if b.stalled || !b.cooldown.IsZero() && time.Now().Before(b.cooldown) {
		b.mu.Unlock()
		return false
	}
	b.queue = append(b.queue, c)
	// If there are more senders than batches under way, a sender is about to take c.
	more := b.senders == len(b.underWay) && b.senders < maxSenders && b.enoughLocked(c.sent)
	if more {
		b.senders++
	}
	b.mu.Unlock()
	if more {
		b.sender.config.Spawn(b.sendBatches)
	}
	return true
}

// enoughLocked reports whether the queue is worth a batch at this time: it holds enough calls to be sent beside the
// batches that are expected back, or there are none of those.
func (b *batches) enoughLocked(now time.Time) bool {
	expected := 0
	for _, other := range b.underWay {
		if now.Sub(other.taken) <= b.pause {
			expected += len(other.calls)
		}
	}
	return expected == 0 || len(b.queue) >= max(b.beside, expected*besideShare/100)
}

// look returns the state of c. It takes c out of the queue if c must leave, or if no batch goes out any more.
func (b *batches) look(c *batchedCall, must bool) batchState {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.state == queued && (must || time.Since(b.taken) > batchWait) {
		c.state = dequeued // and is skipped
		b.stalled = b.stalled || !must
	}
	return c.state
}

// leave ends the wait of the caller of c, and returns the last state of c that concerns the caller.
func (b *batches) leave(c *batchedCall) batchState {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.state == inBatch {
		c.state = abandoned
	}
	return c.state
}

// sendBatches sends the calls in the queue until there are none, or too few.
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

// next takes the next batch. If there is nothing to send, or too little beside the batches that are expected back, it
// returns nil, and there is one sender less. The senders of those batches send what is left in the queue.
func (b *batches) next() *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if !b.enoughLocked(now) {
		b.senders--
		return nil
	}
	next, at := b.newBatch(now), 0
	for ; at < len(b.queue) && len(next.calls) < maxBatch; at++ {
		if c := b.queue[at]; c.state == queued {
			c.state = inBatch
			next.calls = append(next.calls, c)
		}
	}
	b.queue = slices.Delete(b.queue, 0, at)
	b.taken, b.stalled = now, false
	if len(next.calls) == 0 {
		b.senders--
		b.queue = nil
		return nil
	}
	b.underWay = append(b.underWay, next)
	return next
}

// send sends a batch and hands in its outcomes.
func (b *batches) send(one *batch) {
	one.sent = slices.Grow(one.sent, len(one.calls))
	for _, c := range one.calls {
		one.sent = append(one.sent, c.call)
	}
	ctx := b.sender.limit.begin(time.Now()) // for a connection
	var outcomes []Outcome
	err := ErrHookExited // unless the goroutine goes on
	defer func() {       // also when a hook ends the goroutine
		b.finish(one, outcomes, err, ctx)
		if err == nil { // otherwise RunAll has not returned, and may still use the calls
			b.freeBatch(one)
		}
	}()
	err = CatchPanic(func() error {
		outcomes = b.sender.config.Transport.RunAll(ctx, one.sent, false)
		return nil
	})
	LogPanic(b.sender.config.Log, err)
}

// finish hands in the outcomes of a batch. If there are none, err is that of each call.
func (b *batches) finish(one *batch, outcomes []Outcome, err error, ctx context.Context) {
	unanswered := false
	for i, c := range one.calls {
		c.err = err
		if outcomes != nil {
			c.value, c.err = outcomes[i].Answer, outcomes[i].Err
		}
		c.err = orNoConnection(c.err, context.Background(), ctx, ResendTime) // a batch has the context of no caller
		unanswered = unanswered || c.err != nil && !Answered(c.err)
	}
	b.mu.Lock()
	b.underWay = slices.DeleteFunc(b.underWay, func(other *batch) bool { return other == one })
	if unanswered {
		b.cooldown = time.Now().Add(batchCooldown)
	}
	var orphans []*batchedCall
	for _, c := range one.calls {
		if c.state == abandoned {
			orphans = append(orphans, c)
		} else {
			c.state = answered
		}
	}
	b.mu.Unlock()
	for _, c := range one.calls { // from here on, the call belongs to its caller
		c.done <- struct{}{} // has room
	}
	for _, c := range orphans {
		b.sender.recordAnswer(&Request{Call: c.call}, c.sent, c.err)
		b.sender.recordHealth(c.err)
		if c.handler != nil {
			b.sender.config.Spawn(func() { c.orphaned(c.handler) })
		}
	}
}
