package relock

// Batches: where many goroutines of a process have something to ask at the same
// time, what they ask goes out together, and costs the server and us much less.
//
// Rules: a few requests are under way at a time, each on a connection of its own,
// and nobody waits for more to come. Who comes while they all are waits for the
// first of them to be answered, and then one of those who wait sends all that has
// come. So there is no goroutine, and no time in which nobody sends. Not on a
// Cluster, where go-redis answers when the slowest node has; and not where
// requests may take long to end, which nobody else is to wait for.

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

const (
	batchLanes = 4  // requests under way at a time
	batchSize  = 64 // calls in one
)

type batcher struct {
	rdb redis.UniversalClient

	mu      sync.Mutex // guards below
	lanes   int        // requests under way
	waiting []*letter
}

// A letter is a call that waits to be sent, or to be answered.
type letter struct {
	call
	turn chan struct{} // closed when batch is to be sent by whoever wrote this, or outcome is there
	// Written before turn is closed:
	batch []*letter
	outcome
}

// send sends c, maybe together with others.
func (b *batcher) send(ctx context.Context, c call) (any, error) {
	b.mu.Lock()
	if b.lanes < batchLanes {
		b.lanes++
		b.mu.Unlock()
		defer b.next()
		return send(ctx, b.rdb, c)
	}
	l := &letter{call: c, turn: make(chan struct{})}
	b.waiting = append(b.waiting, l)
	b.mu.Unlock()
	select {
	case <-l.turn:
	case <-ctx.Done():
		if b.takeBack(l) {
			return nil, ctx.Err()
		}
		<-l.turn // it is under way
	}
	if l.batch != nil {
		defer b.next()
		b.sendTogether(ctx, l.batch)
	}
	return l.answer, l.err
}

// sendTogether sends what several have written. The first of them is the sender.
func (b *batcher) sendTogether(ctx context.Context, batch []*letter) {
	if len(batch) == 1 {
		batch[0].answer, batch[0].err = send(ctx, b.rdb, batch[0].call)
		return
	}
	calls := make([]call, len(batch))
	for i, l := range batch {
		calls[i] = l.call
	}
	for i, o := range sendAll(ctx, b.rdb, calls, pipelineOptions{}) {
		batch[i].outcome = o
		if i > 0 {
			close(batch[i].turn)
		}
	}
}

// next has the first who waits send what there is, in place of a request that was answered.
func (b *batcher) next() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) == 0 {
		b.lanes--
		return
	}
	n := min(len(b.waiting), batchSize)
	batch := b.waiting[:n:n]
	b.waiting = b.waiting[n:]
	batch[0].batch = batch
	close(batch[0].turn)
}

// takeBack takes a letter back that is not under way yet.
func (b *batcher) takeBack(l *letter) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, other := range b.waiting {
		if other == l {
			b.waiting = append(b.waiting[:i:i], b.waiting[i+1:]...)
			return true
		}
	}
	return false
}
