package engine

// Records as keepers: how a hold that has a record in Redis is released, extended, renewed and cleared.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

func (k recordKeeper) setHoldCount(r releasing, wait send.Wait) (gone, err error) {
	e := k.lockState.engine
	answered, clears, heard, passed := false, true, 0, int64(0)
	defer func() { // runs also when a hook of the Redis client ends the goroutine
		r.end(r.others(heard), passed, answered)
		if clears && r.count == 0 {
			e.workers.Spawn(k.hold.clear)
		}
	}()
	answer, keeps, expires, buries := r.send(&wait)
	reply, err := answer.Reply()
	there, unknown := reply[0] == 1, answer.Unknown
	if buries && err == nil {
		rollbacker{e}.buried(k.commands(), k.Field().ID)
	}
	answered, heard, passed = err == nil, int(reply[1]), reply[2]
	if keeps {
		passed = 1 // as after a hand-off to another process: the lock is busy until MinHold has passed
		if minHold(k).rest() > 0 {
			unknown = 0 // no try of this release has deleted the record: if it is missing, it was gone before
		}
	}
	clears = err != nil || keeps && !expires && (there || e.late.MayAcquire(k.Field().ID))
	if gone = r.whyNothing(there, unknown, err); gone != nil {
		return gone, nil
	}
	return nil, err
}

// whyNothing returns why there was nothing to release, or nil. there reports whether the release has found the record,
// unknown is the number of its tries whose outcome is unknown, and err is the error of the answer.
func (r releasing) whyNothing(there bool, unknown int, err error) error {
	switch {
	case errors.Is(err, send.ErrNotALock): // the record was replaced by something else
		return err
	case err == nil && !there && (r.count > 0 || unknown == 0): // no earlier try has released the record either
		return errGone
	}
	return nil
}

func (k recordKeeper) extend(wait *send.Wait, length time.Duration) (sent time.Time, err error) {
	answer := k.renew(wait, length, toExtend, time.Time{})
	r, err := answer.Reply()
	switch {
	case errors.Is(err, send.ErrNotALock): // the record was replaced by something else
		k.lose(fmt.Errorf("%w: %w", errGone, err))
		err = nil
	case err == nil && r[0] != 1:
		k.lose(errGone)
	}
	return answer.Sent, err
}

func (k recordKeeper) renewal(l *lease.Lease) (answer lease.Renewal, request Renewal) {
	if answer.Looked = !l.IsRenewable(); !answer.Looked {
		e := k.lockState.engine
		answer.Length = e.watchdog.RestOf(l, e.WatchdogTimeout)
	}
	return answer, Renewal{
		Lock: k.commands(), Field: k.Field().ID, Length: answer.Length,
		Err: send.ErrHookExited, // unless the Renewer returns
	}
}

func (recordKeeper) check() error { return nil }

// clear deletes the record, and keeps it until MinHold has passed before that. It retries for as long as the record may
// exist: until its lease has expired, and while the owner holds the counterpart of the lock, whose renewals extend the
// same lease.
func (k recordKeeper) clear(unknown int) {
	e := k.lockState.engine
	ctx := k.owner.In(context.Background())
	defer k.beginClear()()
	if minHold(k).keep(ctx) {
		return
	}
	minHold(k).end()
	isOver := k.untilOver()
	for (rollbacker{e}).rollBackOne(ctx, k.commands(), contract.Attempt{Field: k.Field().ID, HoldCount: 1}, unknown) != nil &&
		(!isOver() || k.keptByCounterpart()) {
		if e.Pause(ctx, clearPause) != nil {
			break // the engine is closed: no lease is renewed any more
		}
	}
	k.leaveQueue()
}

func (recordKeeper) lost() {}
