package engine

// Bundles: several locks on one Redis that one script acquires together, all of them or none.
//
// Rules: each hold is released, renewed and lost by itself, as if it had been acquired by itself. If a MultiLock
// acquires its locks in several steps, KeepLease extends an explicit lease of the first steps until it has the last one.

import (
	"fmt"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

// attemptCall returns the call that makes one attempt on all targets.
func attemptCall(targets []target) send.Call {
	if len(targets) == 1 {
		return targets[0].hold.commands().Acquire(targets[0].Attempt)
	}
	calls := make([]contract.BundledCall, len(targets))
	for i, t := range targets {
		l := t.hold.commands()
		calls[i] = contract.BundledCall{
			Script: l.Traits().Bundled, Acquire: l.Acquire(t.Attempt), RollBack: l.RollBack(t.rollbackOf()),
		}
	}
	return targets[0].hold.lockState.engine.Bundle(calls)
}

// readResult reads the answer to one attempt on all targets.
func readResult(targets []target, answer *send.Answer) (Answer, error) {
	res := Answer{Sent: answer.Sent}
	var err error
	if len(targets) == 1 {
		var r send.Reply
		if r, err = answer.Reply(); err == nil {
			res.Outcome, err = targets[0].read(r)
		}
	} else {
		var replies []send.Reply
		if replies, err = answer.Replies(); err == nil {
			err = res.readAll(targets, replies)
		}
	}
	if err != nil && answer.Err == nil && send.MayHaveRun(err) {
		answer.Unknown++
	}
	return res, err
}

// read reads the reply to the attempt of t.
func (t *target) read(r send.Reply) (contract.Outcome, error) {
	o, err := t.hold.commands().ReadReply(t.Attempt, r)
	if o.Differs {
		t.hold.lockState.engine.OnDifference(t.hold.lock, o.Stored)
	}
	return o, err
}

// heldBefore is the third number of the reply for a target that a bundle has neither acquired nor rolled back: see
// internal/lua/bundle.lua.
const heldBefore = -1

// readAll reads the replies of a bundle.
func (res *Answer) readAll(targets []target, replies []send.Reply) (err error) {
	if len(replies) == 0 || len(replies) > len(targets) {
		return fmt.Errorf("%w: %d locks were requested, but %d were answered", send.ErrReply, len(targets), len(replies))
	}
	queued, stays := false, false
	for i, r := range replies {
		t := targets[i]
		if res.Outcome, err = t.read(r); err != nil {
			return err
		}
		if res.Status != contract.Held && i < len(replies)-1 {
			return fmt.Errorf(
				"%w: of %d locks, number %d was not acquired, but later ones were answered",
				send.ErrReply,
				len(targets),
				i+1,
			)
		}
		res.at = i
		res.tokens = append(res.tokens, res.Token)
		queued = queued || res.LeavesEntry
		stays = stays || i < len(replies)-1 && r[2] == heldBefore
	}
	res.LeavesEntry, res.stays = queued, stays && res.Status != contract.Held
	if res.Status == contract.Held && len(replies) < len(targets) {
		return fmt.Errorf("%w: of %d locks, only %d were answered", send.ErrReply, len(targets), len(replies))
	}
	return nil
}
