package engine

// What an engine does for the lock types besides acquiring and releasing locks: it sends calls, sleeps, runs goroutines
// and reports.
//
// Rules: every call of a script may run more than once, and late. Ask and AskLong may only send calls for which that is
// harmless.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/report"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
	"github.com/relock-go/relock/internal/workers"
)

// Services are the parts of an engine that know nothing about locks.
type Services struct {
	sender     *send.Sender
	workers    *workers.Pool
	reporter   *report.Reporter // of events that the Client notices by itself
	pubsub     *wake.Hub
	closed     <-chan struct{}
	noNewHolds <-chan struct{} // closed by Shutdown and Close: from then on no caller acquires a lock
}

// Ask sends c, repeats it if necessary, and returns the reply of Redis. It is for calls that do not change what this
// process knows about its holds.
//
// Ask repeats the call for a limited time. It returns an error
//
//   - after about 4s if Redis does not answer at all, or sooner if connections fail (quickTries and quickTime in
//     internal/send/retry.go);
//   - after one watchdog timeout if Redis keeps answering with errors that may pass, such as LOADING;
//   - at once after any other error, and when ctx is done or the Client is closed.
//
// If Ask returns an error, Redis may have run c, or may still run it later. Even if Ask succeeds, c may have run more
// than once, and a repetition may still run.
func (s *Services) Ask(ctx context.Context, c send.Call) (send.Reply, error) {
	answer := s.sender.Do(s.byCaller(ctx), send.Request{Call: c}, time.Time{})
	return answer.Reply()
}

// AskLong is like Ask, for a call that may keep Redis busy for long. It is not repeated while an earlier try of it may
// still run.
func (s *Services) AskLong(ctx context.Context, c send.Call) send.Answer {
	return s.sender.Do(s.byCaller(ctx), send.Request{Call: c, Long: true}, time.Time{})
}

// Spawn runs job on a goroutine that Close waits for.
func (s *Services) Spawn(job func()) { s.workers.Spawn(job) }

// Within is workers.Pool.Within.
func (s *Services) Within(ctx context.Context, d time.Duration, job func()) bool {
	return s.workers.Within(ctx, d, job)
}

// Later calls report on the goroutine that calls the Logger and the Observer. It does not block.
func (s *Services) Later(report func()) { s.reporter.Later(report) }

// Pause sleeps for d. It returns an error if ctx is done, or the Client is closed, before that.
func (s *Services) Pause(ctx context.Context, d time.Duration) error {
	return s.byCaller(ctx).Sleep(nil, nil, nil, d)
}

// UntilShutdown returns the limits of a caller that acquires locks: it waits until deadline (zero: there is none),
// until ctx is done, or until Shutdown.
func (s *Services) UntilShutdown(ctx context.Context, deadline time.Time) *send.Wait {
	return &send.Wait{Ctx: ctx, Closed: s.noNewHolds, Deadline: deadline}
}

// UntilEnd returns the limits of a caller that asks Redis: it waits until ctx is done, or until Close.
func (s *Services) UntilEnd(ctx context.Context) *send.Wait {
	return &send.Wait{Ctx: ctx, Closed: s.closed}
}

// Patience is how long a caller that does not wait for other owners waits for an answer of Redis.
func (s *Services) Patience() time.Duration { return s.sender.Patience() }

// Hub returns the hub of the channels to which the Client is subscribed.
func (s *Services) Hub() *wake.Hub { return s.pubsub }

// byCaller is UntilEnd for a caller on whose goroutine requests may be sent.
func (s *Services) byCaller(ctx context.Context) *send.Wait {
	return &send.Wait{Ctx: ctx, Closed: s.closed, OnCaller: true}
}
