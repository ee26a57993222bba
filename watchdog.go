package relock

// What a renewal is: which call it sends, and in which pipeline.
//
// Rules: a renewal asks for one more watchdog timeout, or for the time until MaxHold if that is less. A record whose
// lease is not to be changed is inspected instead. One pipeline never has renewals for different servers. A record that
// was replaced by other data counts as gone. An error of Redis does not: the watchdog retries.

import (
	"context"
	"errors"
	"time"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
)

// renewScript renews a record that is a hash of its own.
var renewScript = record.Script("renew")

func (l *hashLock) Renew(field string, lease time.Duration, exact bool) call {
	return call{Script: renewScript, Keys: l.keys[:1], Args: []any{field, milliseconds(lease), exact}}
}

// askRenewals sends all renewals in one pipeline, except those of RedLocks, and stores the replies in them.
func askRenewals(ctx context.Context, sender *send.Sender, all []engine.Renewal) {
	var calls []call
	var of []int // the indexes in all of the calls
	for i, r := range all {
		switch l, red := r.Lock.(*redLock); {
		case red:
			all[i].Held, all[i].Err = l.isKept(r.Field, r.Length > 0), nil
			continue
		case r.Length > 0:
			calls = append(calls, r.Lock.Renew(r.Field, r.Length, false))
		default:
			calls = append(calls, r.Lock.Inspect(r.Field))
		}
		of = append(of, i)
	}
	if len(calls) == 0 {
		return
	}
	replies, errs := sender.All(ctx, calls)
	for n, i := range of {
		looked := all[i].Length == 0
		all[i].Held, all[i].Err = replies[n][0] == 1, errs[n]
		if looked {
			all[i].Held = replies[n][1] > 0
		}
		switch {
		case errors.Is(errs[n], ErrNotALock): // the record was replaced by something else
			all[i].Held, all[i].Err = false, nil
		case looked && errors.Is(errs[n], ErrNotSynced): // nothing was written that replicas could confirm
			all[i].Err = nil
		}
	}
}
