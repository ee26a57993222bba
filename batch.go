package relock

// Batches: where many goroutines ask Redis at the same time, what they send goes
// out together, in pipelines, and needs no goroutine each.
//
// Rules: a request goes with others at once, or as soon as an earlier batch is back;
// one that has waited for long goes by itself after all, so that a connection that
// hangs holds up nobody but those who are on it. Whoever leaves before his request is
// sent takes it out, and it was never sent; after that it is left behind, as any
// other. A batch has a time limit of its own, and nobody's ctx. The goroutines that
// send are the engine's, and end when there is nothing to send.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	batchFrom     = 8                      // requests under way that go by themselves
	batchMost     = 32                     // requests in one batch
	batchesAtOnce = 4                      // on their way
	batchPatience = 100 * time.Millisecond // how long a request waits for its batch, or a quarter longer
)

// batches are those of one client.
type batches struct {
	engine  *engine
	sendAll func(context.Context, []call) []outcome
	from    int64  // batchFrom
	late    *limit // of waiting for a batch

	mu      sync.Mutex // guards below, and the places of flights; a leaf
	queue   []*flight
	senders int
	sent    time.Time // when one of them last took a batch
}

func newBatches(e *engine, sendAll func(context.Context, []call) []outcome) *batches {
	return &batches{engine: e, sendAll: sendAll, from: batchFrom, late: newLimit(batchPatience)}
}

// A flight is a request that goes with others. It is also the ctx of that request,
// so that it is found where the call is known.
type flight struct {
	context.Context // of the caller, for its values
	batches         *batches
	patience        *patience

	place flightPlace // guarded by batches.mu
	what  call
	done  chan struct{} // closed when there is an answer
	why   error         // the caller had no more time

	// Written before done is closed:
	answer any
	err    error
}

// A flightPlace is where a flight is.
type flightPlace int

const (
	grounded flightPlace = iota // nowhere: it is not sent, or not with others
	queued                      // for a batch
	boarded                     // in a batch
)

// errGrounded is what a request says that has to go by itself. It was not sent.
var errGrounded = errors.New("in no batch")

type flightKey struct{}

func (f *flight) Value(key any) any {
	if key == (flightKey{}) {
		return f
	}
	return f.Context.Value(key)
}

// answerInBatch is answer for a request of one call, which is sent with others. If
// ok is false it has to go by itself, and was not sent.
func answerInBatch[T any](b *batches, p *patience, request func(context.Context) (T, error), late func(T, error)) (value T, err, why error, ok bool) {
	f := &flight{Context: p.ctx, batches: b, patience: p}
	value, err = request(f)
	switch {
	case f.why != nil && f.place == boarded && late != nil:
		b.engine.spawn(func() {
			value, err := request(f) // it is under way already: this waits for the answer
			b.engine.noteHealth(err)
			late(value, err)
		})
		fallthrough
	case f.why != nil:
		var none T
		return none, nil, f.why, true
	case errors.Is(err, errGrounded):
		return value, nil, nil, false
	}
	b.engine.noteHealth(err)
	return value, err, nil, true
}

// fly sends the call with others and waits for the answer. The next time it only waits.
func (f *flight) fly(what call) (any, error) {
	if f.done != nil {
		<-f.done
		return f.answer, f.err
	}
	b := f.batches
	f.what, f.done = what, make(chan struct{})
	if !b.enqueue(f) {
		return nil, errGrounded
	}
	why := f.patience.wait(f.done, b.late.begin().Done(), 0)
	if !f.isAnswered() && b.takeOut(f) {
		f.why = why
		return nil, errGrounded
	}
	if why == nil {
		why = f.patience.wait(f.done, b.engine.silence.begin().Done(), 0)
	}
	switch {
	case f.isAnswered():
		return f.answer, f.err
	case why == nil:
		return nil, errSilent // the answer is nobody's: to undo it would undo the next try
	}
	f.why = why
	return nil, why
}

func (f *flight) isAnswered() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// enqueue has f sent with the next batch, unless all are under way for long.
func (b *batches) enqueue(f *flight) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.senders == batchesAtOnce && time.Since(b.sent) > batchPatience {
		return false
	}
	f.place = queued
	b.queue = append(b.queue, f)
	if b.senders < batchesAtOnce {
		b.senders++
		b.engine.spawn(b.sendBatches)
	}
	return true
}

// takeOut takes f out of the queue, if it is still there.
func (b *batches) takeOut(f *flight) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f.place != queued {
		return false
	}
	f.place = grounded // it is skipped
	return true
}

// sendBatches sends what is in the queue until it is empty.
func (b *batches) sendBatches() {
	for batch := b.next(); batch != nil; batch = b.next() {
		b.send(batch)
	}
}

// next takes the next batch; nil: there is nothing to send, and a sender less.
func (b *batches) next() []*flight {
	b.mu.Lock()
	defer b.mu.Unlock()
	var batch []*flight
	at := 0
	for ; at < len(b.queue) && len(batch) < batchMost; at++ {
		if f := b.queue[at]; f.place == queued {
			f.place = boarded
			batch = append(batch, f)
		}
	}
	b.queue = b.queue[at:]
	if batch == nil {
		b.senders--
		b.queue = nil
	}
	b.sent = time.Now()
	return batch
}

func (b *batches) send(batch []*flight) {
	calls := make([]call, len(batch))
	for i, f := range batch {
		calls[i] = f.what
	}
	limit := b.engine.patient
	ctx := limit.begin()
	for i, o := range b.sendAll(ctx, calls) {
		f := batch[i]
		f.answer, f.err = o.answer, o.err
		if o.err != nil && errors.Is(o.err, ctx.Err()) { // the callers have no such limit
			f.err = fmt.Errorf("no connection to Redis within %v", limit.d)
		}
		close(f.done)
	}
}
