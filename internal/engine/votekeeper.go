package engine

// Votes as keepers: how the hold of a RedLock is released, extended, renewed and cleared.
//
// Rules: the vote itself goes on with what is not confirmed.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

func (k voteKeeper) setHoldCount(r releasing, wait send.Wait) (gone, err error) {
	defer func() { r.end(0, 0, err == nil) }()
	there, err := k.vote.SetHoldCount(&wait, r.count)
	if err == nil && !there {
		gone = errGone
	}
	return gone, err
}

func (k voteKeeper) extend(wait *send.Wait, length time.Duration) (sent time.Time, err error) {
	return k.vote.Extend(wait.Ctx, length)
}

func (k voteKeeper) renewal(*lease.Lease) (answer lease.Renewal, request Renewal) {
	answer.Held = k.vote.Renew()
	return answer, request
}

func (k voteKeeper) check() error { return k.vote.Check() }

func (k voteKeeper) clear(int) {
	k.vote.Lower(k.owner.In(context.Background()), 0)(UnlockTime)
	k.leaveQueue()
}

func (k voteKeeper) lost() { k.vote.Lost() }
