package locktest

import (
	"context"
	"time"

	"github.com/relock-go/relock"
)

// AskingMethods are the methods that ask Redis about a lock that the caller does not hold.
var AskingMethods = map[string]func(ctx context.Context, c *relock.Client, l relock.Locker, name string) error{
	"Lock": func(ctx context.Context, _ *relock.Client, l relock.Locker, _ string) error { return l.Lock(ctx) },
	"LockLease": func(ctx context.Context, _ *relock.Client, l relock.Locker, _ string) error {
		return l.LockLease(ctx, time.Minute)
	},
	"TryLock(0)": func(ctx context.Context, _ *relock.Client, l relock.Locker, _ string) error {
		return Second(l.TryLock(ctx, 0, 0))
	},
	"TryLock": func(ctx context.Context, _ *relock.Client, l relock.Locker, _ string) error {
		return Second(l.TryLock(ctx, time.Hour, time.Minute))
	},
	"Do": func(ctx context.Context, _ *relock.Client, l relock.Locker, _ string) error {
		return l.Do(ctx, func(context.Context) error { return nil })
	},
	"TryDo": func(ctx context.Context, _ *relock.Client, l relock.Locker, _ string) error {
		return Second(l.TryDo(ctx, time.Hour, func(context.Context) error { return nil }))
	},
	"IsLocked": func(ctx context.Context, _ *relock.Client, l relock.Locker, _ string) error {
		return Second(l.IsLocked(ctx))
	},
	"TTL": func(ctx context.Context, _ *relock.Client, l relock.Locker, _ string) error {
		return Second(l.TTL(ctx))
	},
	"ForceUnlock": func(ctx context.Context, _ *relock.Client, l relock.Locker, _ string) error {
		return Second(l.ForceUnlock(ctx))
	},
	"Inspect": func(ctx context.Context, c *relock.Client, _ relock.Locker, name string) error {
		return Second(c.Inspect(ctx, name))
	},
}
