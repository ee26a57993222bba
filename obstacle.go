package relock

// Obstacles: how an error that ends a wait says which lock was in the way, and who has it.
//
// Rules: no request is sent for it. The error says what this process knows: its own holds, and the last answer that
// said busy, to this caller or to the one in front of it. Where neither is known, the error says nothing.

import (
	"errors"
	"fmt"
	"time"
)

// An obstacle is the answer to an attempt that found a lock busy.
type obstacle struct {
	typ   LockType
	name  string
	ttl   time.Duration // of the record in the way; negative: none was answered
	at    time.Time     // when the answer came
	cause error         // what the error of a RedLock says anyway, or nil
}

func (o *obstacle) String() string {
	ago := time.Since(o.at)
	left := o.ttl - ago
	switch {
	case o.typ == TypeRed:
		return "others hold too many of its locks"
	case o.typ == TypeRead: // the answer does not say which of them
		return "another process (or Client) holds the write lock, or waits for it"
	case o.typ == TypeFair && o.ttl < 0:
		return "others are in front in the queue"
	case o.ttl < 0:
		return "a record without a lease is in the way"
	case left > 0:
		return fmt.Sprintf("another process (or Client) holds it, %v of its lease left", rounded(left))
	}
	return fmt.Sprintf("another process (or Client) held it when Redis was asked last, %v ago", rounded(ago))
}

// rounded is d as a reader wants it.
func rounded(d time.Duration) time.Duration {
	unit := time.Millisecond
	if d >= time.Second {
		unit = 100 * time.Millisecond
	}
	return (d + unit/2) / unit * unit
}

// noteBusy remembers what is in the way of h, for its caller and for those behind it at the gate.
func (e *engine) noteBusy(p *patience, h *hold, g grant) {
	p.obstacle = &obstacle{h.backend.typ(), h.key.id.name, g.ttl, time.Now(), g.cause}
	e.mu.Lock()
	defer e.mu.Unlock()
	if h.gate != nil {
		h.gate.obstacle = p.obstacle
	}
}

// sees remembers what another caller has found in the way, if p has not found anything later.
func (p *patience) sees(o *obstacle) {
	if o != nil && (p.obstacle == nil || p.obstacle.at.Before(o.at)) {
		p.obstacle = o
	}
}

// saysWho adds to an error that ended the wait of o for one of bs what it waited for, where that is known.
func (e *engine) saysWho(p *patience, bs []backend, o owner, r request, err error) error {
	if err == nil || err == errTimeUp {
		return err
	}
	if ended := p.ctx.Err(); (ended == nil || !errors.Is(err, ended)) && !errors.Is(err, ErrClosed) {
		return err
	}
	name, who := e.inTheWay(p, bs, o)
	switch {
	case who == "":
		return err
	case r.member || len(bs) > 1:
		return fmt.Errorf("%w: %s: %s", err, shortName(name), who)
	}
	return fmt.Errorf("%w: %s", err, who)
}

// inTheWay says which of bs o waited for, and who has it; "" where that is not known.
func (e *engine) inTheWay(p *patience, bs []backend, o owner) (name, who string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range bs {
		if h := e.holderLocked(b, o); h != nil {
			who = fmt.Sprintf("%v of this process holds it", h.key.owner)
			if h.key.id.half != b.id().half {
				who = fmt.Sprintf("%v of this process holds the %s lock", h.key.owner, h.key.id.half)
			}
			return b.id().name, who
		}
	}
	switch last := p.obstacle; {
	case last == nil:
		return e.inFrontLocked(bs, o)
	case last.cause != nil:
		return "", ""
	default:
		return last.name, last.String()
	}
}

// inFrontLocked says which other caller of this process waits for an answer at one of bs; "" for none.
func (e *engine) inFrontLocked(bs []backend, o owner) (name, who string) {
	for _, b := range bs {
		for key, h := range e.holds {
			if key.id == b.id() && key.owner != o && h.state == fresh && h.gate != nil {
				return key.id.name, fmt.Sprintf("%v of this process is in front, and Redis has not answered it", key.owner)
			}
		}
	}
	return "", ""
}

// holderLocked is a hold of another owner in this process that is in the way of o, who asks for b; or nil.
func (e *engine) holderLocked(b backend, o owner) *hold {
	own := b.id()
	if b.passage() == together || isComposite(b) && b.passage() != oneByOne {
		own = lockID{} // others may have it too
	}
	for key, h := range e.holds {
		if h.state == holding && key.owner != o && key.id != (lockID{}) && (key.id == own || key.id == b.kin()) {
			return h
		}
	}
	return nil
}
