package engine

// Transitions: all changes of the state of a hold. Each of the methods here is one event.
//
//	          adopts                 runs
//	fresh ──────────────► adopting ────────► fresh
//	fresh ── acquired ──► holding
//	fresh ── handed ────► handed ── runs ──► holding
//	handed, holding ───── lost ────────────► lost; expired, if the lease was explicit, and has run out
//	lost, expired ─────── reported ────────► lossReported
//	any ───────────────── ended ───────────► ended
//
// Rules: no other function assigns hold.state. An event that is impossible in the state of the hold is a bug of this
// package. In tests and in the simulator it panics. In a service the hold stays as it is, and ends as lost, with a
// cause that describes what has happened: that costs less than a crash, or a second holder.

import (
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/ledger"
)

// errImpossible is the cause of the loss of a hold for which something impossible has happened.
var errImpossible = errors.New("bug in relock, please report it")

// possible has the states that may follow each state.
var possible = [...][]holdState{
	fresh:        {adopting, handed, holding, ended},
	adopting:     {fresh},
	handed:       {holding, lost, expired, ended},
	holding:      {lost, expired, ended},
	lost:         {lossReported, ended},
	expired:      {lossReported, ended},
	lossReported: {ended},
	ended:        {},
}

var stateNames = [...]string{
	"fresh", "adopting", "handed", "holding", "lost", "expired", "loss reported", "ended",
}

func (s holdState) String() string { return stateNames[s] }

// becomesLocked changes the state of h, if that is possible, and reports whether it was.
func (h *hold) becomesLocked(next holdState) bool {
	for _, s := range possible[h.state] {
		if s == next {
			if h.state.holds() && !next.holds() && h.lockState.closed {
				h.lockState.engine.draining.end(1)
			}
			h.state = next
			return true
		}
	}
	why := fmt.Errorf("%w: a hold that is %v became %v", errImpossible, h.state, next)
	if ledger.Strict {
		panic(why)
	}
	h.lockState.oweLocked(duty{lose: h, cause: why})
	return false
}

// acquiredLocked makes h, which is fresh, hold the lock with the record r, from since on.
func (h *hold) acquiredLocked(r *record, since time.Duration) {
	h.joinLocked(r, since, holding)
}

// handedLocked makes h, which waits, hold the lock with the record r of another hold, from since on. Its caller is about
// to run.
func (h *hold) handedLocked(r *record, since time.Duration) {
	h.joinLocked(r, since, handed)
	h.ownerQueue.Release()
}

func (h *hold) joinLocked(r *record, since time.Duration, state holdState) {
	if !h.becomesLocked(state) {
		return
	}
	if !h.adopts {
		r.first.field.Use()
	}
	h.field, h.adopts = r.first.field, false
	h.count, h.since, h.record = 1, since, r
	if limits := h.lock.Traits().Limits; limits.MinHold > 0 {
		h.keepUntil = keptUntil(limits, h.lockState.engine.watchdog.Now())
	}
	h.lockState.wakeOwnerLocked(h)
	h.index = int32(len(r.holds))
	r.holds = append(r.holds, h)
}

// adoptsLocked leaves the field f, and the record that it has in Redis, to h, which is fresh, and has to adopt it by an
// attempt of its own. It is a user of f until it has ended.
func (h *hold) adoptsLocked(f *ledger.Field) {
	if h.becomesLocked(adopting) {
		f.Use()
		h.field, h.adopts = f, true
	}
}

// runsLocked notes that the caller of h runs, to which the lock or a record was handed off. The hold may have ended, or
// may have been lost, since.
func (h *hold) runsLocked() {
	switch h.state {
	case adopting:
		h.becomesLocked(fresh)
	case handed:
		h.becomesLocked(holding)
	}
}

// lostLocked notes that the owner of h has lost the lock. ranOut is set if an explicit lease has run out.
func (h *hold) lostLocked(ranOut bool) {
	if ranOut {
		h.becomesLocked(expired)
	} else {
		h.becomesLocked(lost)
	}
}

// reportedLocked notes that an acquire returns the loss of h to its owner, if it was lost.
func (h *hold) reportedLocked() {
	if h.state == lost || h.state == expired {
		h.becomesLocked(lossReported)
	}
}

// endedLocked notes that the owner of h has released the lock, or does not acquire it.
func (h *hold) endedLocked() {
	if h.becomesLocked(ended) && h.adopts {
		h.adopts = false
		h.field.Leave()
	}
}

// wakeOwnerLocked wakes the callers of the owner of h that wait for the same lock in a multi-acquire, and those that
// wait for its counterpart. Now that the owner holds the lock, Redis grants or refuses their attempts at once.
func (s *lockState) wakeOwnerLocked(h *hold) {
	s.wakeMultiLocked(h.key)
	if h.lock.Traits().Counterpart == (contract.LockID{}) {
		return
	}
	s.wakeMultiLocked(holdKey{h.lock.Traits().Counterpart.Half, h.key.owner})
	if other := s.counterpartLocked(h); other != nil && other.state.wanted() {
		wakeCaller(other.changed)
	}
}

func (s *lockState) wakeMultiLocked(key holdKey) {
	for _, signal := range s.multis[key] {
		wakeCaller(signal)
	}
}
