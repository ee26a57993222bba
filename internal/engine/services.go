package engine

// What an engine does for lock types beside taking locks: it sends calls, sleeps, runs goroutines and reports, until
// Close.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/report"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
	"github.com/relock-go/relock/internal/workers"
)

// Services are the parts of an engine that know no locks.
type Services struct {
	sender     *send.Sender
	workers    *workers.Pool
	reporter   *report.Reporter // of events that no call has asked about
	pubsub     *wake.Hub
	closed     <-chan struct{}
	noNewHolds <-chan struct{} // closed by Shutdown and Close: no caller comes to hold a lock any more
}

// Ask sends a call that changes nothing that this process knows, until Redis answers.
func (s *Services) Ask(ctx context.Context, c send.Call) (send.Reply, error) {
	r, _, err := s.send(s.waitOptionsFor(ctx), c, time.Time{})
	return r, err
}

// AskLong is ask for a call that may take Redis long.
func (s *Services) AskLong(ctx context.Context, c send.Call) send.Answer {
	return s.sender.Do(&s.waitOptionsFor(ctx).Wait, send.Request{Call: c, Long: true}, time.Time{})
}

// Spawn runs job on a goroutine that Close waits for.
func (s *Services) Spawn(job func()) { s.workers.Spawn(job) }

// Later has report run by the goroutine that calls the Logger and the Observer.
func (s *Services) Later(report func()) { s.reporter.Later(report) }

// Pause sleeps for d, or returns why it ended sooner: by ctx or Close.
func (s *Services) Pause(ctx context.Context, d time.Duration) error {
	return s.waitOptionsFor(ctx).sleep(nil, nil, d)
}

// UntilShutdown is the wait of a caller who wants locks: until deadline, the end of ctx, or Shutdown.
func (s *Services) UntilShutdown(ctx context.Context, deadline time.Time) *send.Wait {
	return &send.Wait{Ctx: ctx, Closed: s.noNewHolds, Deadline: deadline}
}

// UntilEnd is the wait of a caller who asks: until the end of ctx, or Close.
func (s *Services) UntilEnd(ctx context.Context) *send.Wait {
	return &send.Wait{Ctx: ctx, Closed: s.closed}
}

// Patience is how long a caller that does not wait for others stays for an answer.
func (s *Services) Patience() time.Duration { return s.sender.Patience() }

// Hub has the subscribed channels.
func (s *Services) Hub() *wake.Hub { return s.pubsub }

// waitOptionsFor returns the options of a caller that waits until ctx is done, or Close.
func (s *Services) waitOptionsFor(ctx context.Context) *waitOptions {
	return &waitOptions{Wait: send.Wait{Ctx: ctx, Closed: s.closed, OnCaller: true}}
}

// send sends a call until Redis answers. A caller that has had a reply, at lastReply, retries for one watchdog timeout.
func (s *Services) send(op *waitOptions, c send.Call, lastReply time.Time) (r send.Reply, unknown int, err error) {
	answer := s.sender.Do(&op.Wait, send.Request{Call: c}, lastReply)
	r, err = answer.Reply()
	return r, answer.Unknown, err
}
