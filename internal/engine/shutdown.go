package engine

// Shutdown: how a Client stops while its locks are held.
//
// Rules: after stopAcquiring no caller of the Client acquires a lock, on any path: nothing is acquired, handed off or
// shared. So the number of holds only decreases from then on. Shutdown looks from time to time whether there are any, as
// that of net/http does, and returns when the last hold has ended. Until Close the watchdog renews leases, and requests are sent.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/relock-go/relock/internal/each"
	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/send"
)

const (
	// closeTime is how long Close waits for requests under way. A release may take 1.25 times UnlockTime.
	closeTime  = 7 * time.Second
	mostLogged = 16                    // the number of holds that an event of Close names
	heldPause  = 10 * time.Millisecond // between two looks of Shutdown at whether there are holds left
)

var errHangs = errors.New("relock: close: the Logger or the Observer has not returned")

// Shutdown stops acquiring locks, and closes e when all holds have ended or ctx is done. In the latter case it returns
// an error that names the holds that are left.
func (e *Engine) Shutdown(ctx context.Context) error {
	e.stopAcquiring()
	held, why := e.stillHeld(), error(nil)
	for held.count > 0 && why == nil {
		why = e.Pause(ctx, heldPause)
		held = e.stillHeld()
	}
	err := e.Close()
	if why != nil && held.count > 0 {
		return errors.Join(fmt.Errorf("relock: shutdown: %w: %v", why, &held), err)
	}
	return err
}

// stopAcquiring ends all waits for locks and cancels all guards, except those of agents: these look after what their
// principals have to finish. No caller acquires a lock any more.
func (e *Engine) stopAcquiring() {
	e.isLeaving.Store(true)
	e.leave()
	e.endGuards(false)
}

// endGuards cancels all guards, those of agents only if all is set. There are no new ones: every step that makes one, or
// a hold, looks at isLeaving with the mutex of the lock state.
func (e *Engine) endGuards(all bool) {
	var guards []guard.Ends
	e.table.each(func(s *lockState) {
		for h := range s.holds.all() {
			if all || h.owner.agent() == nil {
				guards = append(guards, h.guards.Take())
			}
		}
	})
	each.Do(guards, func(ends guard.Ends) { ends.EndAll(send.ErrClosed) })
}

// stillHeld describes the holds that are left.
type stillHeld struct {
	count int
	some  []string // the locks and owners of some of them, at most mostLogged
}

// stillHeld returns the holds that are left, after stopAcquiring.
func (e *Engine) stillHeld() (held stillHeld) {
	e.table.each(func(s *lockState) {
		for h := range s.holds.all() {
			if !h.Holds() {
				continue
			}
			if held.count++; len(held.some) < mostLogged {
				held.some = append(held.some, fmt.Sprintf("%s by %v", send.CutName(h.lock.Traits().Name), h.owner.principal()))
			}
		}
	})
	return held
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

// Close wakes all waiters, and cancels the contexts of all guards. It returns when the goroutines of the engine have
// ended. If a request gets no answer, or the Logger or the Observer does not return, Close returns an error after
// closeTime.
func (e *Engine) Close() (err error) {
	defer func() { err = e.end() }() // each step also if a context of the user panics, or ends the goroutine
	defer e.endGuards(true)
	e.stopAcquiring()
	return nil
}

// end is Close after stopAcquiring.
func (e *Engine) end() error {
	if !e.isClosed.CompareAndSwap(false, true) {
		return nil
	}
	e.endLife()
	if held := e.stillHeld(); held.count > 0 {
		e.reporter.Later(func() {
			e.Log.Debug("relock: closed while locks are held; they expire with their leases", "count", held.count, "locks", held.some)
		})
	}
	e.reporter.Later(e.tellOmittedLosses)
	e.reporter.Close()
	drained := e.workers.Close() // ends after the last report

	ended := make(chan struct{})
	go func() {
		e.pubsub.Close()
		e.watchdog.Close()
		<-drained
		<-e.workers.Close() // of what the watchdog has begun since
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-time.After(closeTime):
	}
	if e.UserCalls() > 0 || e.reporter.Busy() {
		return errHangs
	}
	return errors.New("relock: close: Redis has not answered some requests; they end with the timeouts of the Redis client")
}
