// Package send sends calls of scripts to Redis, and returns for each call what is known about its outcome. It knows
// commands, but not locks.
//
// Words: a request is what a caller asks for, usually one call. A try is one sending of the request. The outcome of a
// try is unknown if Redis may have run the call and no answer has arrived. If the caller has left, the try is
// abandoned, and its outcome is an orphan.
//
// Rules:
//   - Do sends only requests that may safely run twice, and late.
//   - go-redis cannot be interrupted once a call is sent. Each try therefore has a goroutine of its own (try.go), or
//     is sent in a pipeline with the calls of other callers (batch.go). Only a call that ends soon by itself is sent on
//     the goroutine of its caller, if the caller has the time, because that is faster. While Redis is quick, this is
//     every first try (timed.go).
//   - A request without an answer is sent again over another connection (retry.go).
//   - The panic of a hook of the Redis client is treated as an error (panic.go).
package send

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Config holds the parameters of a Sender.
type Config struct {
	Transport Transport

	// Batch allows calls of several goroutines to be sent together. It must not be set together with synced replicas.
	Batch bool
	// Home returns the server of a key, or "" if it is not known. Calls for different servers are not sent together.
	// If Home is nil, there is only one server. Home is not called before a call was answered without an error, and
	// does not block after that.
	Home func(key string) string
	// Bounded, if not nil, sends the calls that callers send on their own goroutines while Redis is quick.
	Bounded Bounder
	// Confirm is the additional time that an answer may take because replicas confirm it.
	Confirm time.Duration
	// Idle returns the number of idle connections to the server of a key. If Idle is nil, it is not known. With TLS, or
	// behind a proxy, a connection may have been closed, which is noticed only when it is used. Like Home it is not
	// called before a call was answered if there are several servers.
	Idle func(key string) int
	// Probe has all idle connections to the server of a key used at the same time, and waits for the answers: one that does
	// not answer within that time, or that of other commands, is closed. If Probe is nil, connections are not probed.
	Probe func(key string, within time.Duration)
	// Exhausted reports whether all connections of the pool are in use that requests for a key need. Like Home it is
	// not called before a call was answered if there are several servers. If Exhausted is nil, it is not known.
	Exhausted func(key string) bool
	// RetryBudget is how long a caller that has received a reply continues to retry. It is one watchdog timeout, and
	// ConnectTime at least, because a caller that has received none does so for nearly as long.
	RetryBudget time.Duration
	// Spawn runs f on another goroutine, for which Close waits. Spawn does not block.
	Spawn func(f func())
	// Reroute finds the servers again, because Redis did not answer, or is a Cluster that is down.
	Reroute func()
	Log     *slog.Logger
}

const (
	heardTime   = time.Second   // after the last answer of a server, callers may send bounded calls to it
	maxLate     = 2 * batchFrom // bounded calls, one after the other, that end much too late
	unboundTime = time.Minute   // without bounded calls after that
	never       = -heardTime    // for batches.heard
)

// A Sender sends the requests of one Client.
type Sender struct {
	config  Config
	batches *batches // of the only server
	homes   sync.Map // server -> *batches, if there are several servers

	began   time.Time
	limit   limit // of ResendTime
	connect limit // of ConnectTime

	slowness slowness // limits the patience of callers, and decides whether calls may be bounded

	unhealthy atomic.Bool  // the last call was not answered
	answered  atomic.Bool  // a call was answered without an error; before that, Config.Home must not be called
	asking    atomic.Int64 // tries under way
	resent    atomic.Int64 // those of them that were sent by themselves while another try of their request was under way

	late       atomic.Int32 // bounded calls that ended much later than they should, one after the other
	unboundFor atomic.Int64 // until when no call is bounded, because there were too many, in ns since began
}

// New returns a Sender.
func New(c Config) *Sender {
	s := &Sender{config: c, began: time.Now(), limit: limit{d: ResendTime}, connect: limit{d: ConnectTime}}
	s.batches = newBatches(s)
	return s
}

// A Request is what a caller asks for. Do sends requests that may run twice, and Once sends the others.
type Request struct {
	Call      Call
	Acquiring bool // the call acquires or extends something, which replicas may have to confirm

	// Long marks a call that may run for longer than others, and blocks Redis while it runs. It is sent by itself,
	// and sent again only when it has certainly run. See LongTime.
	Long bool

	// OnOrphan, if not nil, receives the outcomes that arrive too late for the caller.
	OnOrphan OrphanHandler

	// OnFailure, if not nil, is told of each try that fails for a reason other than the caller, while the caller waits.
	OnFailure FailureHandler
}

// A FailureHandler is told on the goroutine of the caller that a try has failed.
type FailureHandler interface{ HandleFailure() }

// key returns the first key of the call.
func (c *Call) key() string { return c.Keys[0] }

// An OrphanHandler receives the outcome of each try for which the caller no longer waits. It is called once for each,
// on a goroutine that Close waits for, and may block.
type OrphanHandler interface {
	HandleOrphan(sent time.Time, answer any, err error)
}

// An Answer is what is known about a request.
type Answer struct {
	Value any       // of the last try that has ended: the answer of a script
	Err   error     // nil: Redis has run the request
	Sent  time.Time // before that try was sent: the validity of a lease starts then

	// Unknown is the number of tries whose outcome is unknown: they may have run, or may run later. Tries that were
	// under way when the caller left are not included, but reported by Abandoned.
	Unknown   int
	Abandoned bool
	// Orphans is the number of tries whose outcomes are passed to the OrphanHandler, now or later. Lost is the number
	// of tries that may still run although their outcomes will stay unknown, because their connections have failed.
	Orphans, Lost int
	Unanswered    bool // Redis has not answered at all, and the caller gave up for this reason
}

// Reply reads an answer of three integers. An answer in any other form is an error, and the call may have run.
func (a *Answer) Reply() (Reply, error) {
	r, err := ParseReply(a.Value, a.Err)
	a.misread(err)
	return r, err
}

// Replies reads an answer of three integers for each lock.
func (a *Answer) Replies() ([]Reply, error) {
	replies, err := ParseReplies(a.Value, a.Err)
	a.misread(err)
	return replies, err
}

// Forced reads the answer of a script that releases a lock by force: see ParseForced.
func (a *Answer) Forced() (r Reply, clients []string, err error) {
	r, clients, err = ParseForced(a.Value, a.Err)
	a.misread(err)
	return r, clients, err
}

func (a *Answer) misread(err error) {
	if a.Err == nil && err != nil {
		a.Err = err
		a.Unknown++
	}
}

// Do sends a request until Redis answers, or until it fails for a reason that will not go away. See retry. lastReply
// is when the caller last received a reply from Redis, or zero if it has received none.
func (s *Sender) Do(w *Wait, r Request, lastReply time.Time) Answer {
	if why := w.ended(); why != nil {
		return Answer{Err: why}
	}
	if r.Call.Run != nil {
		sent, wait := time.Now(), *w // a copy: w is not to escape to the heap for other calls
		value, err := r.Call.Run(&wait)
		return Answer{Value: value, Err: err, Sent: sent}
	}
	if w.NoWait && !w.Patient && w.Deadline.IsZero() {
		w.Deadline = time.Now().Add(s.Patience())
		defer func() { w.Deadline = time.Time{} }()
	}
	tries := retry{Sender: s, req: r, lastReply: lastReply}
	return tries.run(w)
}

// Once sends a request once. The caller leaves when its time is up.
func (s *Sender) Once(w *Wait, r Request) Answer {
	if why := w.Over(); why != nil {
		return Answer{Err: why}
	}
	try := retry{Sender: s, req: r, once: true}
	return try.run(w)
}

// All sends calls that renew something in pipelines, once. The panic of a hook becomes the error of each call. Without an
// answer it has the idle connections probed before the next renewal is sent, also if the lease is short: they may all be
// dead, or closed, which go-redis does not notice with TLS.
func (s *Sender) All(ctx context.Context, calls []Call) (replies []Reply, errs []error) {
	probe := func() {
		_ = CatchPanic(func() error { s.probe(&calls[0]); return nil }) // the client of the user is asked for the server
	}
	defer time.AfterFunc(s.slowness.patience()-MinWait, probe).Stop()
	err := CatchPanic(func() error {
		replies, errs = parseOutcomes(s.config.Transport.RunAll(ctx, calls, true))
		return nil
	})
	if err != nil {
		replies, errs = make([]Reply, len(calls)), slices.Repeat([]error{err}, len(calls))
	}
	if err = cmp.Or(errs...); err != nil && !Answered(err) {
		probe()
	}
	s.recordHealth(err)
	LogPanic(s.config.Log, err)
	return replies, errs
}

// checkAnswer returns the answer of a script, or an error if it has a form that no script of a lock answers in.
func checkAnswer(answer any, err error) (any, error) {
	if _, list := answer.([]any); !list && answer != "" { // the list of Inspect, or no lock at all
		_, err = new(Reply).parse(answer, err)
	}
	return answer, err
}

// runOnce makes a try without a bound. The try waits for a connection until ctx is done, after about ConnectTime.
func (s *Sender) runOnce(ctx context.Context, r *Request, sent time.Time) outcome {
	o := outcome{sent: sent}
	o.err = CatchPanic(func() (err error) {
		o.value, err = checkAnswer(s.config.Transport.Run(ctx, r.Call, r.Acquiring))
		return err
	})
	o.err = s.orNoConnection(o.err, &r.Call, ctx, ConnectTime)
	return s.recorded(r, o)
}

// orNoConnection returns err, or another error if err reports the end of ctx, and the context of the caller is not done.
// Only the wait for a connection is bounded by ctx, and that for replicas, after the call.
func (s *Sender) orNoConnection(err error, c *Call, ctx context.Context, d time.Duration) error {
	t, ofTry := ctx.(tryCtx)
	if err == nil || !errors.Is(err, ctx.Err()) || errors.Is(err, ErrNotSynced) || ofTry && t.of.done.Load() {
		return err
	}
	return s.Explain(fmt.Errorf("%w within %v", ErrNoConnection, d), c.key())
}

// Explain returns err, the error of a request for key that was not answered. If all connections of its pool are in use,
// by other code or because Redis does not answer, err also says so: the request may not have been sent at all.
func (s *Sender) Explain(err error, key string) error {
	if s.config.Exhausted == nil || errors.Is(err, ErrPoolExhausted) || !s.knowsServers() || !s.config.Exhausted(key) {
		return err
	}
	return fmt.Errorf("%w: %w", err, ErrPoolExhausted)
}

// runBounded makes a try for a limited time. If sent is false, the request has to go out in another way.
func (s *Sender) runBounded(ctx context.Context, r *Request, now time.Time) (o outcome, sent bool) {
	o.sent = now
	o.err = CatchPanic(func() (err error) {
		sent = true // if a hook panics
		o.value, err, sent = s.config.Bounded.RunBounded(ctx, now, r.Call)
		o.value, err = checkAnswer(o.value, err)
		return err
	})
	if sent {
		s.noteLate(now, o.err)
		s.recorded(r, o)
	}
	return o, sent
}

// recorded records the outcome of a try, which is in no batch, and logs the panic of a hook.
func (s *Sender) recorded(r *Request, o outcome) outcome {
	s.record(s.batchesOf(&r.Call), o)
	LogPanic(s.config.Log, o.err)
	return o
}

// probe has all idle connections to the server of c probed, so that go-redis closes those that are dead: those of a process
// that was paused for long, or of a host that has vanished. Otherwise each try would be given the next one of them. The
// others are closed only if the server takes much longer than for the slowest of the recent answers. It does so once in
// ResendTime at most, and not while others have not ended: a connection that go-redis has not begun may take longer. The
// channel is closed when they have ended; it is nil if there are none.
func (s *Sender) probe(c *Call) <-chan struct{} {
	b := s.batchesOf(c)
	if b == nil || s.config.Probe == nil {
		return nil
	}
	now, key, within := time.Now(), c.key(), min(max(boundedTime, boundShare*s.slowness.get()), LongTime)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.probes != nil || now.Sub(b.probed) < ResendTime {
		return b.probes
	}
	ended := make(chan struct{})
	b.probed, b.probes = now, ended
	s.config.Spawn(func() {
		s.config.Probe(key, within)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.probes = nil
		close(ended)
	})
	return ended
}

// noteLate records whether a bounded call that has ended with err was ended in time. If go-redis bounds calls in another
// way than relock expects, each of them is late. If the process was paused, so are those that were under way.
func (s *Sender) noteLate(began time.Time, err error) {
	switch took := time.Since(began); {
	case !timedOut(err):
	case took <= 2*s.config.Bounded.Bound():
		s.late.Store(0)
	case s.late.Add(1) == maxLate:
		s.late.Store(0)
		s.unboundFor.Store(int64(time.Since(s.began) + unboundTime))
		s.config.Log.Warn("relock: requests to Redis end too late: for a while they get goroutines of their own",
			"took", took, "bound", s.config.Bounded.Bound())
	}
}

// mayBound reports whether a call may be bounded, and whether the goroutine of its caller may send it then. If the call
// has no answer in time, its connection is closed. So the server must have answered the last call, and the recent ones much
// faster, and there must be a connection. If that turns out to be too old to be used, the beginning of another one is not
// bounded: so for the goroutine of its caller the server must have answered just now. And the caller must have the time: a
// caller whose context is canceled during the call leaves when the call ends.
func (s *Sender) mayBound(w *Wait, r *Request, now time.Time) (bounded, onCaller bool) {
	if s.config.Bounded == nil || r.Long || s.unhealthy.Load() {
		return false, false
	}
	bound, at, b := s.config.Bounded.Bound(), now.Sub(s.began), s.batchesOf(&r.Call)
	if bound == 0 || b == nil || s.slowness.get() > bound/boundShare || int64(at) < s.unboundFor.Load() {
		return false, false
	}
	heard := time.Duration(b.heard.Load())
	bounded = heard >= 0 && s.idleConns(&r.Call) > 0
	return bounded, bounded && w.OnCaller && at-heard < heardTime && w.hasUntil(now.Add(bound))
}

// idleConns returns how many connections for a call are known to be idle.
func (s *Sender) idleConns(c *Call) int {
	if s.config.Idle == nil || !s.knowsServers() {
		return 0
	}
	return s.config.Idle(c.key())
}

// knowsServers reports whether there is only one server, or the servers of keys are known.
func (s *Sender) knowsServers() bool { return s.config.Home == nil || s.answered.Load() }

// mayBatch reports whether a request is sent together with those of others, while this number of tries is under way.
func (s *Sender) mayBatch(r *Request, underWay int64) bool {
	return s.config.Batch && underWay > s.batches.from && !r.Long
}

// batchesOf returns the batches for the server of a call, or nil if the server is not known.
func (s *Sender) batchesOf(c *Call) *batches {
	if s.config.Home == nil {
		return s.batches
	}
	if !s.knowsServers() {
		return nil
	}
	home := s.config.Home(c.key())
	if home == "" {
		return nil
	}
	if b, ok := s.homes.Load(home); ok {
		return b.(*batches)
	}
	one, _ := s.homes.LoadOrStore(home, newBatches(s))
	return one.(*batches)
}

// record records what o, the outcome of a try, says about Redis, and about the server whose batches are b. b is nil if
// the server is not known.
func (s *Sender) record(b *batches, o outcome) {
	heard := never
	if o.err == nil || Answered(o.err) {
		took := time.Since(o.sent)
		s.slowness.observe(took)
		heard = o.sent.Sub(s.began) + took
	}
	if b != nil {
		b.heard.Store(int64(heard))
	}
	s.recordHealth(o.err)
}

// recordHealth records whether Redis has answered the last call.
func (s *Sender) recordHealth(err error) {
	if OfHook(err) {
		return // it says nothing about Redis
	}
	ill := err != nil && !Answered(err)
	if err == nil && !s.answered.Load() { // an error may be the answer to the question for the servers
		s.answered.Store(true)
	}
	if s.unhealthy.Load() != ill { // many goroutines read the flag, and few change it
		s.unhealthy.Store(ill)
	}
	if ill || RefusedWith(err, "CLUSTERDOWN") {
		s.config.Reroute()
	}
}
