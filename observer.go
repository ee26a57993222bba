package relock

// The Observer of a Client, and the events that it receives about the locks of the Client.
//
// Rules: every call of Lock, TryLock or Attach that has sent a request ends in one Acquired or one GaveUp, and reports
// Waiting before that if it has to wait. Every hold ends in one Released (with a hold count of 0), Expired or Lost,
// whichever part notices the end. Nothing is reported with a mutex held, and only the call that an event is about
// waits for an Observer (report.go).

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

// An Observer receives the events of the locks of a Client: see [WithObserver]. An implementation embeds [NopObserver],
// so that new events and new fields do not break it.
//
// A call reports its events in its own goroutine, before it returns. So a slow Observer delays that caller, and all
// callers that wait for a lock that it has just acquired. During Waiting it also delays the callers in this process
// that wait behind it for the same lock. Renewals, and losses that no call has noticed, are reported by one goroutine
// of the Client, one event after the other, losses first. There a slow Observer delays no renewal, no context of Guard
// and no other caller. At most 131,072 renewals wait to be reported, and further ones are dropped. Losses are not
// dropped, unless Close cannot report them within a second.
//
// An Observer must not call the lock that an event is about, and must not close the Client. A panic in an Observer is
// recovered, and the first one is logged with its stack.
//
// The context of an event is that of the call, or a background context if the Client acts by itself. The events of one
// goroutine are reported in the order in which they happened. Events of different goroutines have no order: the
// Acquired of the next owner may be reported shortly before the Released of the previous one.
//
// A MultiLock has no events of its own; each of its locks has. The events of a RedLock are reported to the Observer of
// its Client. Those of its locks are reported, with their own types, to the Observers of the Clients that created them.
// After Close only Released is reported.
type Observer interface {
	// Waiting is called when a caller starts to wait because another owner holds the lock, at most once for each call.
	Waiting(ctx context.Context, e WaitingEvent)

	// Acquired is called when a lock has been acquired, before Lock returns.
	Acquired(ctx context.Context, e AcquiredEvent)

	// GaveUp is called when a call returns without the lock: its time is up, its context is done, or Redis did not
	// answer or returned an error. It is not called for a lock, or an argument, that is ErrInvalid, nor for calls
	// whose context was done, or whose Client was closed, when they were made.
	GaveUp(ctx context.Context, e GaveUpEvent)

	// Renewed is called when Redis has confirmed the renewal of a hold, every third of the watchdog timeout.
	Renewed(ctx context.Context, e RenewedEvent)

	// RenewalFailed is called when Redis has not answered a renewal, or has refused it. The renewal is retried as long
	// as the hold is valid.
	RenewalFailed(ctx context.Context, e RenewalFailedEvent)

	// Released is called when Unlock has decremented the hold count, released the lock, or handed it off to the next
	// waiter of this process, before Unlock returns; and when a hold was detached, before Detach returns. It is not
	// called if the hold has already ended: then Expired or Lost was called.
	Released(ctx context.Context, e ReleasedEvent)

	// Expired is called when an explicit lease has expired.
	Expired(ctx context.Context, e ExpiredEvent)

	// Lost is called once for each hold that is lost. The contexts of Guard are canceled by then.
	Lost(ctx context.Context, e LostEvent)

	embedsNopObserver()
}

// A NopObserver ignores all events. Every implementation of Observer embeds it, and defines methods for the events that
// it uses.
type NopObserver struct{}

// Waiting does nothing.
func (NopObserver) Waiting(context.Context, WaitingEvent) {}

// Acquired does nothing.
func (NopObserver) Acquired(context.Context, AcquiredEvent) {}

// GaveUp does nothing.
func (NopObserver) GaveUp(context.Context, GaveUpEvent) {}

// Renewed does nothing.
func (NopObserver) Renewed(context.Context, RenewedEvent) {}

// RenewalFailed does nothing.
func (NopObserver) RenewalFailed(context.Context, RenewalFailedEvent) {}

// Released does nothing.
func (NopObserver) Released(context.Context, ReleasedEvent) {}

// Expired does nothing.
func (NopObserver) Expired(context.Context, ExpiredEvent) {}

// Lost does nothing.
func (NopObserver) Lost(context.Context, LostEvent) {}

func (NopObserver) embedsNopObserver() {}

// A LockInfo identifies the lock of an event, and the owner that the event is about.
type LockInfo struct {
	Name  string   // the name of the lock, without the prefix of WithKeyPrefix
	Type  LockType // the type of the lock; never TypeReadWrite or TypeNone
	Owner Owner    // the owner that calls, or that holds the lock
}

// A LockType is the type of a lock, as it appears in events, in metrics and in an [Inspection]. In events the read lock
// and the write lock of a RWLock have different types. In an Inspection the RWLock is one lock.
type LockType string

// The types of locks. A MultiLock has no type of its own, because its locks are reported instead.
const (
	TypeLock      LockType = "lock"       // a Lock, or an Election
	TypeFair      LockType = "fair"       // a FairLock
	TypeRead      LockType = "read"       // a ReadLock, in events
	TypeWrite     LockType = "write"      // a WriteLock, in events
	TypeReadWrite LockType = "read-write" // a RWLock, in an Inspection
	TypeRed       LockType = "redlock"    // a RedLock, in events
	TypeSemaphore LockType = "semaphore"  // a Semaphore
	TypeNone      LockType = ""           // in an Inspection: there is no lock of that name
)

// An AcquirePath describes how a caller acquired a lock, as it appears in metrics.
type AcquirePath string

const (
	// PathImmediate means that the first attempt succeeded, and the caller did not wait for another one.
	PathImmediate AcquirePath = "immediate"
	// PathQueue means that the caller waited behind other callers of its process, and then its first attempt succeeded.
	PathQueue AcquirePath = "queue"
	// PathHandoff means that the previous holder in this process handed the lock off to the caller, or that a reader
	// shared it.
	PathHandoff AcquirePath = "handoff"
	// PathNotified means that a notification ended the wait: it granted the lock to the caller, or it announced a
	// release, and the next attempt succeeded. The attempt that follows the start of a subscription counts as notified,
	// too, also when it starts again on another connection.
	PathNotified AcquirePath = "notified"
	// PathPolled means that the caller acquired the lock when it asked without a notification: the lease of the holder
	// had expired, its key was deleted, a notification was lost, or the caller sent a heartbeat, as waiters of fair and
	// write locks do.
	PathPolled AcquirePath = "polled"
	// PathAttached means that the caller has attached a hold that was detached before: see [Client.Attach].
	PathAttached AcquirePath = "attached"
)

// A WaitingEvent describes a caller that starts to wait.
type WaitingEvent struct {
	Lock LockInfo
}

// An AcquiredEvent describes a lock that was acquired.
type AcquiredEvent struct {
	Lock      LockInfo
	Path      AcquirePath   // how the lock was acquired: PathImmediate or PathAttached, unless Waiting was called before
	Waited    time.Duration // the time since the call, including the time that Redis took
	HoldCount int           // the hold count: at least 1, and more if the owner already held the lock
	Token     int64         // the fencing token; 0 for a lock without Fenced
}

// A GaveUpEvent describes a call that returned without the lock.
type GaveUpEvent struct {
	Lock      LockInfo
	Contended bool          // whether Waiting was called before
	Waited    time.Duration // the time since the call, including the time that Redis took
	Err       error         // the error of the call, without the operation and the name; nil if TryLock returns false
}

// A RenewedEvent describes a hold whose lease was renewed.
type RenewedEvent struct {
	Lock LockInfo
}

// A RenewalFailedEvent describes a renewal that was not confirmed.
type RenewalFailedEvent struct {
	Lock     LockInfo
	Err      error         // the error of the request; never nil
	ValidFor time.Duration // how long the hold is still valid; negative if it is no longer valid
}

// A ReleasedEvent describes a call of Unlock, or of [Hold.Detach].
type ReleasedEvent struct {
	Lock      LockInfo
	Held      time.Duration // the time since the request that acquired the lock was sent
	HoldCount int           // the remaining hold count; 0 if the lock was released
	Err       error         // not nil if Redis has not confirmed the release, which is then retried in the background
	Detached  bool          // the hold was detached: the lock is still held in Redis, for a process that attaches it
}

// An ExpiredEvent describes a hold whose explicit lease has expired.
type ExpiredEvent struct {
	Lock LockInfo
	Held time.Duration // the time since the request that acquired the lock was sent
}

// A LostEvent describes a hold that was lost.
type LostEvent struct {
	Lock  LockInfo
	Held  time.Duration // the time since the request that acquired the lock was sent
	Cause error         // why the hold was lost; matches ErrLockLost
}

// userEvents passes the events of the engine to the Logger and the Observer of the user.
type userEvents struct {
	log      *slog.Logger
	observer Observer  // nil if the Client has none
	told     sync.Once // a subscription was refused, which was logged
	userCode           // the Observer
}

// Report implements engine.Events.
func (e *userEvents) Report(ctx context.Context, v engine.Event) {
	if v.Logged {
		e.log.Warn("relock: a lock was lost",
			"lock", cutName(v.Name), "type", v.Type, "owner", v.Owner.String(), "cause", v.Cause)
	}
	o, lock := e.observer, LockInfo{v.Name, LockType(v.Type), Owner(v.Owner)}
	if o == nil {
		return
	}
	defer e.begin().recovered()
	switch v.What {
	case engine.Waiting:
		o.Waiting(ctx, WaitingEvent{lock})
	case engine.Acquired:
		o.Acquired(ctx, AcquiredEvent{lock, AcquirePath(v.Path), v.Time, v.HoldCount, v.Token})
	case engine.GaveUp:
		o.GaveUp(ctx, GaveUpEvent{lock, v.Contended, v.Time, v.Err})
	case engine.Renewed:
		o.Renewed(ctx, RenewedEvent{lock})
	case engine.RenewalFailed:
		o.RenewalFailed(ctx, RenewalFailedEvent{lock, v.Err, v.Time})
	case engine.Released:
		o.Released(ctx, ReleasedEvent{lock, v.Time, v.HoldCount, v.Err, v.Detached})
	case engine.Expired:
		o.Expired(ctx, ExpiredEvent{lock, v.Time})
	case engine.Lost:
		o.Lost(ctx, LostEvent{lock, v.Time, v.Err})
	}
}

func (e *userEvents) LossesOmitted(n int) {
	e.log.Warn("relock: more locks were lost", "more", n)
}

func (e *userEvents) SubscriptionRefused(channel string, err error) {
	e.told.Do(func() {
		text := "relock: Redis refuses the subscription to lock releases: waiters poll at the poll interval instead"
		switch {
		case errors.Is(err, wake.ErrUnanswered):
			text = "relock: Redis, or a proxy before it, does not answer subscriptions to lock releases: " +
				"waiters poll at the poll interval instead"
		case strings.Contains(err.Error(), "unsubscribe'"):
			text = "relock: Redis refuses to end subscriptions: channels stay subscribed while the connection is open"
		case send.Forbidden(err):
			text += "; grant this user access to the channels redisson_*, and the command subscribe"
		}
		e.log.Warn(text, "channel", cutName(channel), "error", err)
	})
}

func (e *userEvents) SlowHold(s engine.Subject, held time.Duration, stack []uintptr) {
	e.log.Warn("relock: a lock has been held for a long time", "lock", cutName(s.Name), "type", s.Type,
		"owner", s.Owner.String(), "held", contract.Rounded(held), "stack", stackText(stack))
}

func (e *userEvents) SlowWait(w engine.SlowWait) {
	e.log.Warn("relock: callers have waited for a lock for a long time", "lock", cutName(w.Name), "type", w.Type,
		"waiters", w.Waiters, "waited", contract.Rounded(w.Waited), "holder", cmp.Or(w.Holder, "unknown"))
}

func (e *userEvents) SlowOmitted(n int) {
	e.log.Warn("relock: more locks have been held or waited for for a long time", "more", n)
}

// stackText returns the frames of a stack, as a panic shows them, without those of the engine.
func stackText(stack []uintptr) string {
	if len(stack) == 0 {
		return "unknown"
	}
	var text strings.Builder
	for frames, more := runtime.CallersFrames(stack), true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if strings.Contains(f.Function, "relock/internal/engine.") || strings.HasPrefix(f.Function, "runtime.") {
			continue
		}
		fmt.Fprintf(&text, "%s\n\t%s:%d\n", f.Function, f.File, f.Line)
	}
	return text.String()
}
