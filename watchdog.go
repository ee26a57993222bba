package relock

// What a renewal is: which call it sends, and in which pipeline.
//
// Rules: a renewal asks for one more watchdog timeout, or for the time until MaxHold if that is less. A record whose
// lease is not to be changed is inspected instead. One pipeline never has renewals for different servers. A record that
// was replaced by other data counts as gone. An error of Redis does not: the watchdog retries.

import (
	"context"
	"errors"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
)

// askRenewals sends all renewals, which are of one group or lock, in one pipeline, and stores the replies. RedLocks have a
// group of their own, and need none.
func askRenewals(ctx context.Context, sender *send.Sender, all []engine.Renewal) {
	if _, red := all[0].Lock.(*redLock); red {
		for i, r := range all {
			v := r.Lock.(*redLock).vote(r.Field)
			all[i].Held, all[i].Err = v != nil && v.Check() == nil, nil
			if all[i].Held && r.Length > 0 {
				v.Renew()
			}
		}
		return
	}
	calls := make([]call, len(all))
	for i, r := range all {
		if r.Length > 0 {
			calls[i] = r.Lock.Renew(r.Field, r.Length, false)
		} else {
			calls[i] = r.Lock.Inspect(r.Field)
		}
	}
	replies, errs := sender.All(ctx, calls)
	for i, reply := range replies {
		r, err := &all[i], errs[i]
		looked := r.Length == 0
		if r.Held = reply[0] == 1; looked {
			r.Held = reply[1] > 0
		}
		// It was replaced by something else; or nothing was written that replicas could confirm.
		if errors.Is(err, ErrNotALock) || looked && errors.Is(err, ErrNotSynced) {
			err = nil
		}
		r.Err = err
	}
}
