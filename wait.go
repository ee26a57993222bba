package relock

// How long a caller of a lock is willing to wait, and what it has seen meanwhile.
//
// Rules: send.Wait ends every wait: by a wake-up, its time, the ctx, or Close.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/send"
)

type waitOptions struct {
	send.Wait
	bypass   bool            // the next attempt is made past the wait queue
	number   uint64          // of the waiter that was refused in a wait queue; 0: there is none
	span     *span           // of the call, or nil
	obstacle *obstacle       // what the last attempt found, or nil
	changed  <-chan struct{} // wakes too: see group; nil: nothing
}

// waitOptionsFor is that of a caller of e that waits until ctx or e ends.
func (e *engine) waitOptionsFor(ctx context.Context) *waitOptions {
	return &waitOptions{Wait: send.Wait{Ctx: ctx, Closed: e.closed, Inline: true}}
}

// sleep returns nil when one of the channels is ready or d has passed (0: no limit), or the
// reason why there is no more time.
func (p *waitOptions) sleep(wake, ready <-chan struct{}, d time.Duration) error {
	return p.Sleep(wake, ready, p.changed, d)
}
