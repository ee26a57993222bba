package engine

// Shutdown: how a Client stops while its locks are held.
//
// Rules: from refuse on no caller of the Client comes to hold a lock, by no path: a name that is closed grants, hands
// over and shares nothing. So the number of holds only falls from then on, and the last one ends the wait of Shutdown.
// Until Close the watchdog renews what is held, and requests go out.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/send"
)

// A drain is the holds that a Client still has while it shuts down.
type drain struct {
	left atomic.Int64
	done chan struct{} // closed when there are none
}

// begin adds holds; end takes some away. Only the end that leaves none closes done.
func (d *drain) begin(holds int) { d.left.Add(int64(holds)) }

func (d *drain) end(holds int) {
	if holds > 0 && d.left.Add(-int64(holds)) == 0 {
		close(d.done)
	}
}

func (e *Engine) Shutdown(ctx context.Context) error {
	e.stopAcquiring()
	var why error
	select {
	case <-e.draining.done:
	default:
		select {
		case <-e.draining.done:
		case <-ctx.Done():
			why = send.CtxError(ctx)
		case <-e.closed:
			why = send.ErrClosed
		}
	}
	held := e.stillHeld()
	err := e.Close()
	if why != nil && held.count > 0 {
		return errors.Join(fmt.Errorf("relock: shutdown: %w: %v", why, &held), err)
	}
	return err
}

// stopAcquiring wakes all waiters and ends all guards. No caller comes to hold a lock any more.
func (e *Engine) stopAcquiring() {
	if !e.isLeaving.CompareAndSwap(false, true) {
		return
	}
	e.leave()
	e.draining.begin(1) // until all names are closed
	var guards []*guard.End
	for _, s := range e.table.close() {
		guards = append(guards, s.close()...)
	}
	guard.EndAll(guards, send.ErrClosed)
	e.draining.end(1)
}

// close ends the name, and returns the guards of its holds.
func (s *lockState) close() (guards []*guard.End) {
	s.Lock()
	defer s.Unlock()
	s.closed = true
	holds := 0
	for h := range s.holds.all() {
		guards = append(guards, h.guards.Take()...)
		if h.state.holds() {
			holds++
		}
	}
	s.engine.draining.begin(holds)
	return guards
}

// endLocked sets the state of h, which holds its lock no longer.
func (h *hold) endLocked(state holdState) {
	if h.state.holds() && h.name.closed {
		h.name.engine.draining.end(1)
	}
	h.state = state
}

// stillHeld are holds that are left.
type stillHeld struct {
	count int
	some  []string // the first mostLogged, and their owners
}

func (e *Engine) stillHeld() (held stillHeld) {
	for _, s := range e.table.close() {
		s.addHeld(&held)
	}
	return held
}

func (s *lockState) addHeld(held *stillHeld) {
	s.Lock()
	defer s.Unlock()
	for h := range s.holds.all() {
		if !h.state.holds() {
			continue
		}
		if held.count++; len(held.some) < mostLogged {
			held.some = append(held.some, fmt.Sprintf("%s by %v", send.CutName(h.lock.Name()), h.key.owner))
		}
	}
}

func (s *stillHeld) String() string {
	text := "1 lock is still held: "
	if s.count > 1 {
		text = fmt.Sprintf("%d locks are still held: ", s.count)
	}
	text += strings.Join(s.some, ", ")
	if more := s.count - len(s.some); more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return text
}
