// Package send sends calls of scripts to Redis, knows commands and not locks, and
// says for each call what is known of its outcome.
//
// Words: a request is what a caller asks for, mostly one call. A try is one sending of
// the request. The outcome of a try is unknown if Redis may have run the call and no
// answer came. A try is abandoned, and its outcome an orphan, if its caller has left.
//
// Rules:
//   - Only requests that may safely run twice, and late, are sent by Do.
//   - go-redis cannot be interrupted once a call is sent. So each try has a goroutine
//     of its own (try.go), or goes out in a pipeline with the calls of other callers
//     (batch.go), unless the read timeout of the Redis client is as short as ResendTime
//     and the caller has the time: then the caller's goroutine sends.
//   - A request without an answer is sent again over another connection (retry.go).
//   - A panic of a hook of the Redis client is an error here (panic.go).
package send

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// A Config is what a Sender needs.
type Config struct {
	Transport Transport

	// Batch allows calls of many goroutines to go out together: only without synced replicas.
	Batch bool
	// Home is the server of a key; "": it is not known. Calls of different servers do not go out together. nil: there
	// is one. Home is called once a call was answered, and does not block then.
	Home func(key string) string
	// OnCallerTime is after how long a call ends by itself, with its answer or without. 0: after more than ResendTime.
	OnCallerTime time.Duration
	// Confirm is how long an answer may take because replicas confirm it.
	Confirm time.Duration
	// Idle is how many connections there are that nobody uses; nil: it is not known. Each may have ended, and nobody
	// knows before it is used: with TLS, or where a proxy keeps it.
	Idle func() int
	// RetryBudget is how long a caller that has had a reply retries: one watchdog timeout.
	RetryBudget time.Duration
	// Spawn runs f on another goroutine, for which Close waits. Spawn does not block.
	Spawn func(f func())
	// Degraded hears, once, that the user may not use the spare keys of calls; or nil.
	Degraded func(err error)
	// Reroute finds the servers anew: Redis did not answer, or is a Cluster that is down.
	Reroute func()
	Log     *slog.Logger
}

// A Sender sends the requests of one Client.
type Sender struct {
	config  Config
	batches *batches // nil: every request goes out by itself
	homes   sync.Map // server -> *batches, where there are several servers

	limit limit // ResendTime

	slowness slowness

	unhealthy atomic.Bool  // the last call was not answered
	answered  atomic.Bool  // a call was: before, nothing may be asked of Config.Home
	degraded  atomic.Bool  // calls are sent without their spare keys: the user may not use them
	asking    atomic.Int64 // tries under way
	resent    atomic.Int64 // those of them whose request had another try under way
}

// New returns a Sender.
func New(c Config) *Sender {
	s := &Sender{config: c, limit: limit{d: ResendTime}}
	if c.Batch {
		s.batches = newBatches(s)
	}
	return s
}

// Degraded reports whether calls are sent without their spare keys.
func (s *Sender) Degraded() bool { return s.degraded.Load() }

// Mutexes are all mutexes of s. Tests look whether code of the user runs while one of them is locked.
func (s *Sender) Mutexes() map[string]*sync.Mutex {
	all := map[string]*sync.Mutex{"limit": &s.limit.mu}
	if b := s.batches; b != nil {
		all["batches"], all["limit of batches"] = &b.mu, &b.limit.mu
	}
	s.homes.Range(func(home, b any) bool {
		all["batches of "+home.(string)] = &b.(*batches).mu
		return true
	})
	return all
}

// A Request is what a caller asks for. Requests that may run twice are sent by Do, others by Once.
type Request struct {
	Call      Call
	Acquiring bool // the call takes something, which replicas may have to confirm

	// Pipeline are calls that take or renew something, instead of Call: one pipeline, and no batch.
	Pipeline []Call

	// Long is for a call that may run for longer than others, and stops Redis meanwhile. It is sent again only when it
	// has surely run: see LongTime. It goes out by itself.
	Long bool

	// OnOrphan hears the outcomes that come too late for the caller; or nil.
	OnOrphan OrphanHandler
}

// An OrphanHandler hears the outcome of each try for which the caller does not wait any more, once, on a goroutine
// that Close waits for. The handler may block.
type OrphanHandler interface {
	HandleOrphan(sent time.Time, answer any, err error)
}

// An OrphanFunc is a function that is an OrphanHandler.
type OrphanFunc func(sent time.Time, answer any, err error)

// HandleOrphan calls f.
func (f OrphanFunc) HandleOrphan(sent time.Time, answer any, err error) { f(sent, answer, err) }

// An Answer is what is known of a request.
type Answer struct {
	Value any       // of the last try that has ended: the list of a script; of a Pipeline []Reply
	Err   error     // nil: Redis has run the request
	Sent  time.Time // before that try was sent: trust in a lease begins there

	// Unknown counts the tries whose outcome is unknown: they may have run, or may run
	// later. A try that was under way when its caller left counts as Abandoned alone.
	Unknown   int
	Abandoned bool
	// Orphans counts the tries whose outcomes the OrphanHandler hears, now or later. Lost counts those that may still
	// run although nobody hears of them any more: their connections have failed.
	Orphans, Lost int
	Unanswered    bool // Redis has not answered at all, and for this reason the caller gave up
}

// Reply reads an answer of three integers. An answer of another form is an error, and the call may have run.
func (a *Answer) Reply() (Reply, error) {
	r, err := ParseReply(a.Value, a.Err)
	a.misread(err)
	return r, err
}

// Replies reads an answer of three integers for each lock, or the answers to a Pipeline.
func (a *Answer) Replies() ([]Reply, error) {
	if replies, ok := a.Value.([]Reply); ok {
		return replies, a.Err
	}
	replies, err := ParseReplies(a.Value, a.Err)
	a.misread(err)
	return replies, err
}

func (a *Answer) misread(err error) {
	if a.Err == nil && err != nil {
		a.Err = err
		a.Unknown++
	}
}

// Do sends a request until Redis answers, or until the reason why Redis does not answer will not pass: see retry.
// lastReply is when the caller has last had a reply of Redis; zero: not yet.
func (s *Sender) Do(w *Wait, r Request, lastReply time.Time) Answer {
	if why := w.ended(); why != nil {
		return Answer{Err: why}
	}
	if s.degraded.Load() {
		r.Call, _ = r.Call.degraded()
	}
	tries := retry{Sender: s, req: r, lastReply: lastReply}
	if !w.NoWait || w.Patient || !w.Deadline.IsZero() {
		return tries.run(w)
	}
	hasty := *w
	hasty.Deadline = time.Now().Add(s.Patience())
	answer := tries.run(&hasty)
	w.OnCaller = hasty.OnCaller
	return answer
}

// Once sends a request once. The caller leaves when there is no more time.
func (s *Sender) Once(w *Wait, r Request) Answer {
	if why := w.Over(); why != nil {
		return Answer{Err: why}
	}
	try := retry{Sender: s, req: r}
	return try.runOnce(w)
}

// All sends calls that renew something in pipelines, once. A panic of a hook is the error of each call.
func (s *Sender) All(ctx context.Context, calls []Call) (replies []Reply, errs []error) {
	err := CatchPanic(func() error {
		replies, errs = parseOutcomes(s.config.Transport.RunAll(ctx, calls, true))
		return nil
	})
	if err != nil {
		replies, errs = make([]Reply, len(calls)), make([]error, len(calls))
		for i := range errs {
			errs[i] = err
		}
	}
	s.recordOutcome(cmp.Or(errs...))
	return replies, errs
}

// runTransport sends a request once and waits for the outcome.
func (s *Sender) runTransport(ctx context.Context, r *Request) (value any, err error) {
	defer recovered(&err)
	if r.Pipeline != nil {
		replies, errs := parseOutcomes(s.config.Transport.RunAll(ctx, r.Pipeline, true))
		return replies, cmp.Or(errs...)
	}
	return asList(s.config.Transport.Run(ctx, r.Call, r.Acquiring))
}

// asList is the answer of a script, which is always a list.
func asList(answer any, err error) (any, error) {
	if _, err := parseList(answer, err); err != nil {
		return answer, err
	}
	return answer, nil
}

// runOnCaller sends a request on the goroutine of its caller, who stays for the answer. go-redis bounds how long an
// answer is waited for, but dials a host that cannot be reached several times: a limit bounds the dialing.
func (s *Sender) runOnCaller(w *Wait, r *Request, now time.Time) (any, error) {
	ctx := s.limit.of(w.Ctx, now)
	value, err := s.runTransport(ctx, r)
	err = orNoConnection(err, w.Ctx, ctx, ResendTime)
	s.recordAnswer(now, err)
	s.recordOutcome(err)
	return value, err
}

// orNoConnection is err; or another error, if err is the end of ctx and not the end of the caller's ctx. Only ctx
// bounds how long a connection is waited for.
func orNoConnection(err error, caller, ctx context.Context, d time.Duration) error {
	if err == nil || caller.Err() != nil || !errors.Is(err, ctx.Err()) {
		return err
	}
	return fmt.Errorf("no connection to Redis within %v", d)
}

// mayRunOnCaller reports whether the goroutine of a caller may send by itself. The answer comes in time only from a Redis
// that has answered the last call. A caller whose time ends before the call surely does, with the wait for a
// connection, has another goroutine send, and leaves in time. One whose ctx is cancelled meanwhile leaves when the call
// ends.
func (s *Sender) mayRunOnCaller(w *Wait, now time.Time) bool {
	least := s.config.OnCallerTime + ResendTime + ResendTime/4 // see limit
	if !w.OnCaller || s.config.OnCallerTime == 0 || s.unhealthy.Load() || !w.Deadline.IsZero() && w.Deadline.Sub(now) < least {
		return false
	}
	end, ends := w.Ctx.Deadline()
	return !ends || end.Sub(now) >= least
}

// mayBatch reports whether a request goes out with those of others, if so many tries are under way.
func (s *Sender) mayBatch(r *Request, underWay int64) bool {
	return s.batches != nil && underWay > s.batches.from && r.Pipeline == nil && !r.Long && !s.unhealthy.Load()
}

// batchesOf are those of the server of a call; nil: it is not known.
func (s *Sender) batchesOf(c *Call) *batches {
	if s.config.Home == nil {
		return s.batches
	}
	if !s.answered.Load() {
		return nil
	}
	home := s.config.Home(c.Keys[0])
	if home == "" {
		return nil
	}
	if b, ok := s.homes.Load(home); ok {
		return b.(*batches)
	}
	b := newBatches(s)
	b.from = s.batches.from
	one, _ := s.homes.LoadOrStore(home, b)
	return one.(*batches)
}

// recordAnswer remembers how long Redis has taken to answer a call, if err is an answer.
func (s *Sender) recordAnswer(sent time.Time, err error) {
	if err == nil || Answered(err) {
		s.slowness.observe(time.Since(sent))
	}
}

// recordOutcome remembers whether Redis has answered the last call, and logs a panic of a hook.
func (s *Sender) recordOutcome(err error) {
	s.recordHealth(err)
	LogPanic(s.config.Log, err)
}

// recordHealth is recordOutcome for a panic that is logged already.
func (s *Sender) recordHealth(err error) {
	if OfHook(err) {
		return // says nothing about Redis
	}
	ill := err != nil && !Answered(err)
	if !ill && !s.answered.Load() {
		s.answered.Store(true)
	}
	if s.unhealthy.Load() != ill { // many read the flag, and few change it
		s.unhealthy.Store(ill)
	}
	if ill || RefusedWith(err, "CLUSTERDOWN") {
		s.config.Reroute()
	}
}
