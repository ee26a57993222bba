package relock

// Several locks on one Redis, taken together by one script: all of them, or none.
//
// Rules: nothing else about their holds is special: each hold is released, renewed and lost by
// itself. A MultiLock that takes locks in several steps gives the locks of the first steps an
// interim lease, until startLease.

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// A bundledScript is the number of a pair of scripts that a bundle can run: one takes a lock, the other
// undoes that. Locks with the number zero are taken by themselves.
type bundledScript int

// A bundledCall takes one lock of several, and can undo that.
type bundledCall struct {
	script     bundledScript
	take, undo send.Call
}

// attemptCall is the call of one attempt on all wants.
func attemptCall(wants []want) send.Call {
	if len(wants) == 1 {
		return wants[0].hold.verbs().acquire(wants[0].attempt)
	}
	calls := make([]bundledCall, len(wants))
	for i, w := range wants {
		l := w.hold.verbs()
		calls[i] = bundledCall{l.bundled(), l.acquire(w.attempt), l.undo(w.undoOf())}
	}
	return wants[0].hold.name.engine.bundle(calls)
}

// undoOf is the attempt of w for its undo in the same script.
func (w *want) undoOf() attempt {
	a := w.attempt
	a.share = w.hold.name.engine.shareTime()
	return a
}

// readResult reads the answer to one attempt on all wants.
func readResult(wants []want, answer *send.Answer) (result, error) {
	res := result{sent: answer.Sent}
	var err error
	if len(wants) == 1 {
		var r send.Reply
		if r, err = answer.Reply(); err == nil {
			res.grant, err = wants[0].hold.verbs().granted(wants[0].attempt, r)
		}
	} else {
		var replies []send.Reply
		if replies, err = answer.Replies(); err == nil {
			err = res.readAll(wants, replies)
		}
	}
	if err != nil && answer.Err == nil && send.MayHaveRun(err) {
		answer.Unknown++
	}
	return res, err
}

// readAll reads the replies of a bundle.
func (res *result) readAll(wants []want, replies []send.Reply) (err error) {
	if len(replies) == 0 || len(replies) > len(wants) {
		return fmt.Errorf("%w: %d locks were asked for, and %d answered", send.ErrReply, len(wants), len(replies))
	}
	queued := false
	for i, r := range replies {
		w := wants[i]
		if res.grant, err = w.hold.verbs().granted(w.attempt, r); err != nil {
			return err
		}
		if res.state != held && i < len(replies)-1 {
			return fmt.Errorf("%w: of %d locks number %d is not held, and later ones answered", send.ErrReply, len(wants), i+1)
		}
		res.at = i
		res.tokens = append(res.tokens, res.token)
		queued = queued || res.queued
	}
	res.queued = queued
	if res.state == held && len(replies) < len(wants) {
		return fmt.Errorf("%w: of %d locks only %d answered", send.ErrReply, len(wants), len(replies))
	}
	return nil
}

// startLease gives the holds of o on bs the lease that the caller has asked for, counted from now. A
// fresh hold, which had an interim lease, gets exactly that lease; the other holds get at least that lease.
func (e *engine) startLease(ctx context.Context, bs []description, o owner, lease time.Duration, by time.Time) error {
	e.workers.Begin()
	defer e.workers.End()
	var holds []*hold
	var calls []send.Call
	for _, b := range bs {
		h, levels := e.levels(b, o)
		if h == nil {
			return lossError(errLapsed)
		}
		if !e.watchdog.Renews(&h.record.lease) {
			holds = append(holds, h)
			calls = append(calls, h.verbs().renew(h.field, lease, levels == 1))
		}
	}
	if len(holds) == 0 {
		return nil
	}
	p := e.waitOptionsFor(ctx)
	p.Deadline = by
	answer := e.sender.Do(&p.Wait, send.Request{Pipeline: calls}, time.Time{})
	replies, err := answer.Replies()
	if err == send.ErrTimeUp {
		return errNoAnswer
	}
	if err != nil {
		return err
	}
	for i, h := range holds {
		if replies[i][0] != 1 {
			h.lose(errGone)
			return lossError(errGone)
		}
	}
	return nil
}

// levels returns o's hold on b and its levels, as far as this process knows.
func (e *engine) levels(b description, o owner) (*hold, int) {
	n := e.use(b.id().name)
	defer n.done()
	return n.levels(b, o)
}

// trustedUntil is until when all holds of o on bs that are not renewed are trusted, or
// end if end is sooner. It is now if one of the holds is over.
func (e *engine) trustedUntil(bs []description, o owner, end time.Time) time.Time {
	for _, b := range bs {
		h, _ := e.levels(b, o)
		if h == nil {
			return time.Now()
		}
		if until := e.watchdog.End(&h.record.lease); !e.watchdog.Renews(&h.record.lease) && until.Before(end) {
			end = until
		}
	}
	return end
}

// trustUntil lets the holds of o on bs that are not renewed end at the same
// moment: a hold that outlived the others would be re-entered when they are over.
func (e *engine) trustUntil(bs []description, o owner, end time.Time) {
	for _, b := range bs {
		if h, levels := e.levels(b, o); h != nil && !e.watchdog.Renews(&h.record.lease) {
			e.watchdog.Settle(&h.record.lease, end, levels == 1)
		}
	}
}

// inUse says whether goroutines of this process hold one of bs, or wait for it.
func (e *engine) inUse(bs []description) bool {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	return slices.ContainsFunc(bs, func(b description) bool { return e.table.names[b.id().name] != nil })
}
