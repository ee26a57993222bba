// Package engine does what is the same for every lock type: it acquires and releases locks, keeps the holds of a
// process, and hands locks off. A lock type is data: it builds the calls of its scripts, and reads their replies. Read
// package contract first.
//
// An engine acquires locks (acquire.go) and releases them (release.go). It keeps the state of each lock that this
// process uses (lockstate.go, hold.go, record.go). It hands a lock off to the next goroutine of the process
// (handoff.go, sharing.go). In the line, which is the wait queue of a lock in Redis, it waits until the turn of the
// process comes (line.go). Package relock has what users see, and what is particular to Redis and to Redisson.
//
// Rules: a request may run more than once, and late. Every script sets a state instead of adding to one, and names the
// field of its acquire operation. So the sender repeats a request without an answer unchanged. Only a forced release is
// sent once.
package engine

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/handoff"
	"github.com/relock-go/relock/internal/hints"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/poller"
	"github.com/relock-go/relock/internal/report"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/slow"
	"github.com/relock-go/relock/internal/wake"
	"github.com/relock-go/relock/internal/workers"
)

const (
	// closeTime is how long Close waits for requests under way. A release may take 1.25 times UnlockTime.
	closeTime  = 7 * time.Second
	mostLogged = 16                                    // the number of holds that an event of Close names
	hangTime   = report.CloseTime + report.CloseTime/2 // how long Close waits if only the Logger or the Observer is busy
	LeastShare = 10 * time.Millisecond                 // see shareTime
)

// A Config has the settings of a Client, and the parts of it that are particular to Redis and to the user.
type Config struct {
	ID              string // of the Client; every field begins with it
	WatchdogTimeout time.Duration
	PollInterval    time.Duration
	HandoffWindow   time.Duration
	Label           string // set by WithLabel; or ""
	OnAcquire       func() // called whenever a lock with a record is about to be acquired; or nil
	OnSlow          func() // called whenever a call begins to wait for a lock, and when a hold has become old; or nil
	// OnDifference is called, without a mutex, with every answer that tells that Redis has stored another number of
	// permits than the semaphore was made with. It must not block.
	OnDifference   func(semaphore contract.Lock, stored int)
	ConfirmsGrants bool // a grant that arrives as a message is confirmed by a request, for replicas

	HoldWarning time.Duration // holds that are older are reported, see internal/slow; 0: they are not
	WaitWarning time.Duration // the same for waits
	// Holder asks Redis for the holder of a lock, and describes it for people; "" if it is not known. Or it is nil.
	Holder func(ctx context.Context, s Subject) string

	Log       *slog.Logger // the Logger of the user
	Events    Events
	Observed  bool         // an Observer receives the events from Waiting to Released
	UserCalls func() int64 // the number of calls of the Logger and the Observer that have not returned

	Servers Servers
	Bundle  func([]contract.BundledCall) send.Call            // joins calls into one
	Free    func(names []string, fields [][]string) send.Call // asks which of names are free: see freeOf
	Group   func(name string) string                          // names of the same group can be asked about in one call
	Renewer Renewer

	// Channel is the channel on which this Client hears hints: see internal/hints; or "".
	Channel string
	// Tell publishes a hint to other Clients; or it is nil.
	Tell func(ctx context.Context, clients []string, hint string)
}

// Servers is what an engine knows about the Redis servers: which server announces on a channel, and whether a server
// knows its subscribers.
type Servers interface {
	wake.Router
	// Counts reports whether the server that runs a script knows how many subscribers its messages reach.
	Counts() bool
}

// An Engine acquires, keeps and releases the locks of one Client.
type Engine struct {
	Config

	Services
	poller   *poller.Poller
	watchdog *lease.Watchdog
	life     context.Context // canceled by Close
	endLife  context.CancelFunc
	leaving  context.Context // canceled by Shutdown or Close
	leave    context.CancelFunc

	isLeaving, isClosed atomic.Bool

	fulfil func(*duty) // carries a duty out: it calls what depends on lock states, which do not depend on it

	draining drain
	table    stateTable
	expired  expiredRing
	slow     *slow.Watch[*hold]
	losses   lossLines
	hints    *hints.Channel
	swept    atomic.Int64 // when checkAll was last called, on the clock of the watchdog; 0: never
	late     late.Requests
	putBacks putBacks
	undoing  atomic.Int64 // attempts that are rolled back in the background: see rollbacker.undo

	rtt     handoff.RoundTrip
	fields  fieldMaker
	waiters atomic.Uint64 // the number of the last waiter
}

// New returns an engine with the given config. sending has the config of its sender, which New completes.
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
	e.fulfil = e.carryOut
	e.poller = looking{e}.newPoller()
	sending.RetryBudget, sending.Spawn, sending.Reroute, sending.Log =
		e.WatchdogTimeout, e.workers.Spawn, e.pubsub.Reload, e.Log
	sending.Degraded = func(err error) {
		e.reporter.Later(func() { e.Events.LineRefused(err) })
	}
	e.sender = send.New(sending)
	e.fields.id, e.fields.degraded = e.ID, e.sender.Degraded
	e.losses.lines = report.NewLineLimit()
	e.hints = e.newHints()
	e.watchdog = renewing{e}.newWatchdog()
	if e.Channel != "" {
		e.pubsub.Quiet(e.Channel, e.hints.Refuse)
	}
	e.slow = slowHost{e}.newWatch()
	return e
}

// Inspect asks Redis for the state of a lock, and whether the hold with this field has it.
func (e *Engine) Inspect(ctx context.Context, kind contract.Record, field string) (contract.View, error) {
	r, err := e.Ask(ctx, kind.Inspect(field))
	return contract.View{Locked: r[0] > 0, Held: r[1] > 0, TTL: send.FromMilliseconds(r[2])}, err
}

// pace returns how fast locks change hands here, as far as e has measured it.
func (e *Engine) pace() handoff.Pace { return handoff.PaceOf(e.rtt.Get(), e.HandoffWindow) }

// shareTime is how long a line may keep a lock to itself: see Release.Share.
func (e *Engine) shareTime() time.Duration { return max(e.pace().Window, LeastShare) }

// Open returns ErrClosed after Shutdown or Close, when no caller can acquire a lock any more, and otherwise nil.
func (e *Engine) Open() error {
	if e.isLeaving.Load() {
		return send.ErrClosed
	}
	return nil
}

// Alive returns ErrClosed after Close, and otherwise nil.
func (e *Engine) Alive() error {
	if e.isClosed.Load() {
		return send.ErrClosed
	}
	return nil
}

// UntilClosed returns a copy of ctx that is also canceled, with the cause ErrClosed, by Shutdown or Close. The caller
// must call stop when it does not need the copy any more.
func (e *Engine) UntilClosed(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	forget := context.AfterFunc(e.leaving, func() { cancel(send.ErrClosed) })
	return ctx, func() {
		forget()
		cancel(nil)
	}
}

// Close wakes all waiters, and cancels the contexts of all guards. It returns when the goroutines of the engine have
// ended. If a request gets no answer, Close returns an error after closeTime; if the Logger or the Observer does not
// return, after hangTime.
func (e *Engine) Close() error {
	e.stopAcquiring()
	if !e.isClosed.CompareAndSwap(false, true) {
		return nil
	}
	e.endLife()
	if held := e.stillHeld(); held.count > 0 {
		e.reporter.Later(func() { e.Events.ClosedWithHolds(held.count, held.some) })
	}
	e.reporter.Later(e.tellOmittedLosses)
	e.reporter.Close()
	drained := e.workers.Close() // ends after the last report

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
			return errors.New(
				"relock: close: Redis has not answered some requests; they end with the timeouts of the Redis client",
			)
		}
	}
}

var errHangs = errors.New("relock: close: the Logger or the Observer has not returned")
