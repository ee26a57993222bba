// Package engine takes locks, gives them back, keeps the holds of a process, and passes locks on: what is the same for
// every lock type. A lock type is data: which calls its commands are, and how their replies read (contract.go).
//
// An engine takes locks (acquire.go) and gives them back (release.go). It keeps the holds of each name (name.go,
// hold.go, record.go), passes a lock on inside the process (handover.go, sharing.go) and waits in the line of a lock
// for its turn (line.go). What users see, and what is particular to Redis and to Redisson, is in package relock.
//
// Rules: the sender repeats requests, and that is always safe: every script sets a state and adds
// nothing, and names its acquisition. So a request whose answer was lost is sent again unchanged.
package engine

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/handoff"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/poller"
	"github.com/relock-go/relock/internal/report"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
	"github.com/relock-go/relock/internal/workers"
)

const (
	closeTime  = 7 * time.Second                       // how long Close waits for requests under way, which may take 1.25 times UnlockTime
	mostLogged = 16                                    // holds that Close names
	hangTime   = report.CloseTime + report.CloseTime/2 // how long Close waits for the Logger and the Observer alone
	LeastShare = 10 * time.Millisecond                 // see shareTime
)

// A Config is what an engine has to know, and the parts that are particular to Redis and to the user.
type Config struct {
	ID              string // of the Client, in every field
	WatchdogTimeout time.Duration
	PollInterval    time.Duration
	HandoffWindow   time.Duration
	Label           string // WithLabel; or ""
	FirstUse        func() // called by every caller that acquires a lock with a record; or nil
	ConfirmsGrants  bool   // of a line, by asking: replicas have to confirm every hold

	Log       *slog.Logger // of the user
	Events    Events
	Observed  bool         // somebody hears the events from Waiting to Released
	UserCalls func() int64 // calls of the Logger and the Observer that are under way

	Servers Servers
	Bundle  func([]BundledCall) send.Call                     // makes calls together
	Free    func(names []string, fields [][]string) send.Call // asks which of names are free: see freeOf
	Group   func(name string) string                          // names of one group can be asked about together
	Renewer Renewer
}

// Servers is what an engine knows of its servers: which one announces on which channel, and what it knows of its
// subscribers.
type Servers interface {
	wake.Router
	// Counts reports whether the server that runs a script knows how many subscribers its messages reach.
	Counts() bool
}

type Engine struct {
	Config

	Services
	poller   *poller.Poller
	watchdog *lease.Watchdog
	life     context.Context // until Close
	endLife  context.CancelFunc
	leaving  context.Context // until Shutdown or Close
	leave    context.CancelFunc

	isLeaving, isClosed atomic.Bool

	draining drain
	table    stateTable
	expired  expiredRing
	late     late.Tries

	rtt          handoff.RoundTrip
	acquisitions atomic.Uint64 // number of fields that were made
	waiters      atomic.Uint64 // number of the last waiter
}

// New makes the engine that sends as sending says.
func New(c Config, sending send.Config) *Engine {
	e := &Engine{Config: c}
	e.table.names = make(map[string]*lockState)
	e.life, e.endLife = context.WithCancel(context.Background())
	e.closed = e.life.Done()
	e.leaving, e.leave = context.WithCancel(context.Background())
	e.noNewHolds = e.leaving.Done()
	e.draining.done = make(chan struct{})
	e.workers = workers.New(e.closed)
	e.reporter = report.New(e.workers.Spawn)
	e.pubsub = wake.New(e.Servers, e.Log, func(channel string, err error) {
		e.reporter.Later(func() { e.Events.SubscriptionRefused(channel, err) })
	})
	e.poller = looking{e}.newPoller()
	sending.RetryBudget, sending.Spawn, sending.Reroute, sending.Log = e.WatchdogTimeout, e.workers.Spawn, e.pubsub.Reload, e.Log
	sending.Degraded = func(err error) {
		e.reporter.Later(func() { e.Events.LineRefused(err) })
	}
	e.sender = send.New(sending)
	e.watchdog = renewing{e}.newWatchdog()
	return e
}

// Inspect asks Redis for the state of kind.
func (e *Engine) Inspect(ctx context.Context, kind Record, field string) (View, error) {
	r, err := e.Ask(ctx, kind.Inspect(field))
	return View{Locked: r[0] > 0, Held: r[1] > 0, TTL: send.FromMilliseconds(r[2])}, err
}

// pace is how fast locks can change hands here, as far as e has measured.
func (e *Engine) pace() handoff.Pace { return handoff.PaceOf(e.rtt.Get(), e.HandoffWindow) }

// shareTime is how long a line may keep a lock from those that have no place in it, for example Java services.
func (e *Engine) shareTime() time.Duration { return max(e.pace().Window, LeastShare) }

// Open is ErrClosed from Shutdown or Close on: no caller comes to hold a lock any more.
func (e *Engine) Open() error {
	if e.isLeaving.Load() {
		return send.ErrClosed
	}
	return nil
}

// Alive is ErrClosed after Close.
func (e *Engine) Alive() error {
	if e.isClosed.Load() {
		return send.ErrClosed
	}
	return nil
}

// UntilClosed returns a ctx that is canceled with cause ErrClosed when the engine takes no locks any more.
func (e *Engine) UntilClosed(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	forget := context.AfterFunc(e.leaving, func() { cancel(send.ErrClosed) })
	return ctx, func() {
		forget()
		cancel(nil)
	}
}

// Close wakes all waiters and ends all guards. It returns when the goroutines have ended. For goroutines in a request
// that Redis does not answer it waits no longer than closeTime, and for those in the Logger or the Observer hangTime.
func (e *Engine) Close() error {
	e.stopAcquiring()
	if !e.isClosed.CompareAndSwap(false, true) {
		return nil
	}
	e.endLife()
	if held := e.stillHeld(); held.count > 0 {
		e.reporter.Later(func() { e.Events.ClosedWithHolds(held.count, held.some) })
	}
	e.reporter.Close()
	drained := e.workers.Close() // with the last report

	ended := make(chan struct{})
	go func() {
		e.pubsub.Close()
		e.watchdog.Close()
		<-drained
		close(ended)
	}()
	began := time.Now()
	look := time.NewTicker(hangTime / 30)
	defer look.Stop()
	for {
		select {
		case <-ended:
			return nil
		case <-look.C:
		}
		switch took, told := time.Since(began), e.UserCalls(); {
		case took >= hangTime && told > 0 && e.workers.NoMoreThan(told): // no request is under way
			return errHangs
		case took < closeTime:
		case told > 0 || e.reporter.Busy():
			return errHangs
		default:
			return errors.New("relock: close: requests are still under way that Redis does not answer; they end with the timeouts of the Redis client")
		}
	}
}

var errHangs = errors.New("relock: close: the Logger or the Observer has not returned")
