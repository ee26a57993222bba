package relock

// Batches: where many goroutines ask Redis at the same time, what they send goes
// out together, in pipelines, and needs no goroutine each.
//
// Rules: a request goes with others at once, or as soon as an earlier batch is back.
// Where none comes back for a while, because Redis is far or connections hang, those
// that wait go by themselves after all, so that only those are held up who are on it;
// and where one was not answered, all do for some time. Whoever leaves before his request is sent
// takes it out, and it was never sent; after that it is left behind, as any other. A
// batch has a time limit of its own, and nobody's ctx; that a hook of the Redis client
// panics is the panic of all who are in it. The goroutines that send are the engine's,
// and end when there is nothing to send.

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

const (
	batchFrom     = 8                     // requests under way that go by themselves
	batchMost     = 32                    // requests in one batch
	batchesAtOnce = 4                     // on their way
	batchPatience = 20 * time.Millisecond // how long none may go out before requests go by themselves
	batchRest     = 5 * time.Second       // without batches, after one that was not answered
)

// batches are those of one client.
type batches struct {
	engine  *engine
	sendAll func(context.Context, []call) []outcome
	from    int64 // batchFrom
	late    limit // of waiting for a batch

	mu      sync.Mutex // guards below, and the places of flights; a leaf
	queue   []*flight
	senders int
	sent    time.Time // when one of them last took a batch, or found none
	stuck   bool      // somebody has waited in vain since then
	rest    time.Time // no batches until then
}

func newBatches(e *engine, sendAll func(context.Context, []call) []outcome) *batches {
	return &batches{engine: e, sendAll: sendAll, from: batchFrom, late: limit{d: batchPatience}}
}

// A flight is a request that goes with others. It is also the ctx of that request,
// so that it is found where the call is known.
type flight struct {
	context.Context // of the caller, for its values
	batches         *batches
	patience        patience

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
	f := &flight{Context: p.ctx, batches: b, patience: p.worthAnAnswer()}
	value, err = request(f)
	switch {
	case f.why != nil || err == errSilent:
		if p.leftBehind = p.leftBehind || f.place == boarded && f.why != nil; f.place == boarded && late != nil {
			b.engine.spawn(func() {
				value, err := request(f) // it is under way already: this waits for the answer
				b.engine.noteHealth(err)
				late(value, err)
			})
		}
		b.engine.noteHealth(err)
		var none T
		if f.why != nil {
			err = nil
		}
		return none, err, f.why, true
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
	var why error
	patient := f.patience
	patient.deadline = time.Time{} // it is later than the first look around, and a timer costs a twentieth of a request
	for place := queued; place == queued && !f.isAnswered(); {
		why = patient.wait(f.done, b.late.begin(time.Now()).Done(), 0)
		patient.deadline = f.patience.deadline
		if place = b.takeOut(f, why != nil); place == grounded {
			f.why = why
			return nil, errGrounded
		}
	}
	if why == nil {
		why = f.patience.wait(f.done, b.engine.soon.begin(time.Now()).Done(), 0)
	}
	switch {
	case f.isAnswered():
		return f.answer, f.err
	case why == nil:
		return nil, errSilent // the request is sent again
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

// enqueue has f sent with the next batch, unless all are under way for long, or one was not answered.
func (b *batches) enqueue(f *flight) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stuck || !b.rest.IsZero() && time.Now().Before(b.rest) {
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

// takeOut takes f out of the queue if nothing goes out any more, or if it must be; and says where it is.
func (b *batches) takeOut(f *flight, must bool) flightPlace {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f.place == queued && (must || time.Since(b.sent) > batchPatience) {
		f.place = grounded // it is skipped
		b.stuck = b.stuck || !must
	}
	return f.place
}

// sendBatches sends what is in the queue until it is empty.
func (b *batches) sendBatches() {
	goesOn := true
	defer func() {
		if goesOn { // a hook has ended the goroutine
			b.engine.spawn(b.sendBatches)
		}
	}()
	for batch := b.next(); batch != nil; batch = b.next() {
		b.send(batch)
	}
	goesOn = false
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
	b.sent, b.stuck = time.Now(), false
	return batch
}

func (b *batches) send(batch []*flight) {
	calls := make([]call, len(batch))
	for i, f := range batch {
		calls[i] = f.what
	}
	ctx := b.engine.soon.begin(time.Now()) // for a connection
	var outcomes []outcome
	defer func() {
		if outcomes == nil {
			err := errHookExited
			if why := recover(); why != nil {
				err = &hookPanic{why, debug.Stack()}
				b.engine.logPanic(err)
			}
			outcomes = slices.Repeat([]outcome{{err: err}}, len(batch))
		}
		for i, o := range outcomes {
			f := batch[i]
			f.answer, f.err = o.answer, o.err
			if o.err != nil && errors.Is(o.err, ctx.Err()) { // the callers have no such limit
				f.err = fmt.Errorf("no connection to Redis within %v", resendTime)
			}
			if f.err != nil && !answered(f.err) {
				b.pause()
			}
			close(f.done)
		}
	}()
	outcomes = b.sendAll(ctx, calls)
}

// pause has all requests go by themselves for a while.
func (b *batches) pause() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rest = time.Now().Add(batchRest)
}
