package relock

// How long a caller of a lock is willing to wait, and what it has seen meanwhile.
//
// Rules: send.Wait ends every wait: by a wake-up, its time, the ctx, or Close.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/send"
)

type patience struct {
	send.Wait
	bypass   bool            // the next attempt is made past the gate
	number   uint64          // of the waiter that was refused at a gate; 0: there is none
	span     *span           // of the call, or nil
	obstacle *obstacle       // what the last attempt found, or nil
	changed  <-chan struct{} // wakes too: see group; nil: nothing
}

// patienceFor is that of a caller of e that waits until ctx or e ends.
func (e *engine) patienceFor(ctx context.Context) *patience {
	return &patience{Wait: send.Wait{Ctx: ctx, Closed: e.closed, Inline: true}}
}

// sleep returns nil when one of the channels is ready or d has passed (0: no limit), or the
// reason why there is no more time.
func (p *patience) sleep(wake, ready <-chan struct{}, d time.Duration) error {
	return p.Sleep(wake, ready, p.changed, d)
}
