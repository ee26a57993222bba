package relock

// How a request is sent so that its caller can leave early, and again when Redis
// does not answer.
//
// Rules:
//   - Only requests that may safely run twice, and late, are sent this way.
//   - go-redis cannot be interrupted once a request is sent. So the request has a
//     goroutine of its own, unless the read timeout of the Redis client is as short
//     as resendTime and the caller has the time.
//   - A request without an answer for resendTime is sent again while the first try
//     waits on: a connection may hang, and the pool gives another one. The first
//     answer to any of the tries counts.
//   - The tries of a caller that has left, or has its answer from another try, go
//     on by themselves. Their outcome goes to onOrphan.
//   - A hook of the Redis client that panics does so for the caller: the panic is an
//     error until everything is tidied up (see failed).

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"
)

const (
	resendTime = time.Second // a request without an answer is sent again after this time, or a quarter more
	mostTries  = 4           // tries of one request under way at a time
	mostResent = 32          // tries of one Client beside the first ones: where all of Redis hangs, more of them change nothing
)

// A try is a request that was sent once.
type try[T any] struct {
	sent  time.Time // before that
	value T
	err   error
}

// tryAtOnce sends a request by itself and on the goroutine of its caller, if that will do.
// It does what persist would do first, for less: most requests need no more.
func (e *engine) tryAtOnce(p *patience, now time.Time, request func(context.Context) error) (made bool, err error) {
	under := e.asking.Add(1)
	defer e.asking.Add(-1)
	if !p.prompt || e.goesWithOthers(p, under) {
		return false, nil
	}
	return true, e.sendOnce(p, now, request)
}

// persist sends a request until Redis answers it, or until what is in the way
// will not pass: see retry.run. The first try may have been made already.
func persist[T any](e *engine, p *patience, heard time.Time, first *try[T], request func(context.Context) (T, error), onOrphan func(T, error)) (value T, ghosts int, err error) {
	r := retry[T]{engine: e, p: p, request: request, onOrphan: onOrphan, made: first}
	return r.run(heard)
}

// A retry sends one request until it is answered. It belongs to one goroutine, but for what says otherwise.
type retry[T any] struct {
	engine   *engine
	p        *patience
	request  func(context.Context) (T, error)
	onOrphan func(T, error) // hears the outcome of a try that its caller does not wait for any more; or nil

	made   *try[T] // the first try, if run has not seen its outcome yet
	tries  int
	ghosts int  // tries without an answer that have ended
	heard  bool // Redis has answered a try: it is there, and starts, fails over or moves a slot

	underWay []*sentTry[T]
	outcomes chan *sentTry[T] // has room for all that are under way
	over     atomic.Bool      // only drain receives from outcomes now, on any goroutine

	// Most requests need one try.
	first sentTry[T]
	room  [mostTries]*sentTry[T] // of underWay
}

// A sentTry is a try that has a goroutine, and its ctx.
type sentTry[T any] struct {
	requestCtx
	try[T]
	again bool // the request was sent before
}

// run sends the request until Redis answers it, or until what is in the way will
// not pass. A caller who has nothing yet is told after a few tries; one who hears of
// Redis, now or before (at heard), rides out a failover, for up to one watchdog
// timeout. ghosts are the tries whose answer is not known: they may have run, or may
// still. A caller who leaves is told the reason; p.leftBehind says whether a try
// was under way then, and ghosts do not count that one.
func (r *retry[T]) run(heard time.Time) (value T, ghosts int, err error) {
	defer r.end()
	p, pause := r.p, firstPause
	start := r.started()
	var until time.Time // of the pause before the next try
	for {
		var why error
		t := r.made
		r.made = nil
		if t == nil {
			// The first try is made even if the time is up: it is what wait 0 asks for.
			if why = p.over(); why != nil && !(r.tries == 0 && why == errTimeUp) {
				return r.leave(value, whyAfter(why, err))
			}
			why = nil
			if until.IsZero() && r.mayTry() {
				t, why = r.send()
			}
		}
		if t == nil && why == nil {
			t, why = r.wait(until)
		}
		last := err
		switch {
		case why != nil:
			return r.leave(value, whyAfter(why, last))
		case t == nil && !until.IsZero():
			until = time.Time{} // the pause is over
			continue
		case t == nil: // silence
		case t.err == nil:
			return t.value, r.ghosts + len(r.underWay), nil
		default:
			value, err = t.value, t.err
			if mayHaveRun(err) {
				r.ghosts++
			}
			r.heard = r.heard || answered(err)
			if ended := p.ctx.Err(); ended != nil {
				if errors.Is(err, ended) { // go-redis noticed it as well
					err = last
				}
				return r.leave(value, whyAfter(ctxError(p.ctx), err))
			}
		}
		if t != nil && !transient(err) && !(p.background && ofHook(err)) || r.enough(heard, start) {
			if t == nil {
				err = silence(time.Since(start), r.tries, last)
			}
			p.unheard = heard.IsZero() && transient(err) && !answered(err)
			return value, r.ghosts + len(r.underWay), err
		}
		if t != nil {
			p.prompt = false // from here on it may have to be left behind
			until = time.Now().Add(pause/2 + rand.N(pause))
			pause = min(2*pause, longestPause)
		}
	}
}

// started is when the first try was sent, or is going to be.
func (r *retry[T]) started() time.Time {
	switch {
	case r.made != nil:
		return r.made.sent
	case len(r.underWay) > 0:
		return r.underWay[0].begun
	}
	return time.Now()
}

// enough says whether the caller is to be told that the request has failed so far.
func (r *retry[T]) enough(heard, start time.Time) bool {
	took, tried := time.Since(start), r.tries >= quickTries && len(r.underWay) == 0
	switch {
	case !heard.IsZero():
		return time.Since(heard) > r.engine.watchdogTimeout
	case r.p.once:
		return tried || took > quickTime
	case r.heard:
		return took > r.engine.watchdogTimeout
	}
	return tried && took > time.Second || took > quickTime
}

// mayTry says whether one more try may be under way. Of those beside a first one, it counts that try.
func (r *retry[T]) mayTry() bool {
	switch n := len(r.underWay); {
	case n == 0:
		return true
	case n >= mostTries || r.p.parts: // which send again by themselves
		return false
	}
	if r.engine.resent.Add(1) > mostResent {
		r.engine.resent.Add(-1)
		return false
	}
	return true
}

// send makes one try. It returns the outcome if that is known already. The error is
// the reason why the caller leaves.
func (r *retry[T]) send() (t *try[T], why error) {
	e, p := r.engine, r.p
	r.tries++
	now := time.Now()
	if len(r.underWay) > 0 {
		r.start(now)
		return nil, nil
	}
	under := e.asking.Add(1)
	defer e.asking.Add(-1)
	if e.goesWithOthers(p, under) {
		if value, err, why, ok := answerInBatch(e.batches, p, r.request, r.onOrphan); why != nil {
			return nil, why
		} else if ok {
			return &try[T]{now, value, err}, nil
		}
	}
	if !p.prompt {
		r.start(now)
		return nil, nil
	}
	t = &try[T]{sent: now}
	t.err = e.sendOnce(p, now, func(ctx context.Context) (err error) {
		t.value, err = r.request(ctx)
		return err
	})
	return t, nil
}

// start has one try made by a goroutine of its own.
func (r *retry[T]) start(now time.Time) {
	e, s := r.engine, &r.first
	if r.outcomes == nil {
		r.outcomes, r.underWay = make(chan *sentTry[T], mostTries), r.room[:0]
	} else {
		s = new(sentTry[T])
	}
	s.requestCtx = requestCtx{Context: r.p.ctx, begun: now, ended: make(chan struct{})}
	s.sent, s.err, s.again = now, errHookExited, len(r.underWay) > 0
	r.underWay = append(r.underWay, s)
	e.asking.Add(1)
	request, onOrphan := r.request, r.onOrphan // they may be others when the request ends
	parts := r.p.parts
	e.spawn(func() {
		defer r.finish(s, parts, onOrphan) // also when a hook of the Redis client ends the goroutine
		ctx := context.Context(&s.requestCtx)
		if parts {
			ctx = s.Context
		}
		s.value, s.err = catchPanic(ctx, request)
	})
}

// finish hands in the outcome of a try.
func (r *retry[T]) finish(s *sentTry[T], parts bool, onOrphan func(T, error)) {
	e := r.engine
	if !parts {
		s.err = orUnconnected(s.err, s.Context, &s.requestCtx, unlockTime)
	}
	e.asking.Add(-1)
	if s.again {
		e.resent.Add(-1)
	}
	e.noteHealth(s.err)
	e.logPanic(s.err)
	r.outcomes <- s
	if r.over.Load() {
		r.drain(onOrphan)
	}
}

// drain passes on the outcomes for which the caller does not wait any more. Each outcome is received once: by wait, by the goroutine of the
// try, or by that which end starts.
func (r *retry[T]) drain(onOrphan func(T, error)) {
	for {
		select {
		case s := <-r.outcomes:
			if onOrphan != nil {
				onOrphan(s.value, s.err)
			}
		default:
			return
		}
	}
}

// wait waits for the outcome of a try, until then (zero: until it is time to send
// another one), and returns nil when that time has come.
func (r *retry[T]) wait(until time.Time) (t *try[T], why error) {
	p, now := *r.p, time.Now()
	if len(r.underWay) > 0 {
		p = p.worthAnAnswer()
	}
	var tick <-chan struct{}
	left := time.Duration(-1) // no limit
	switch {
	case !until.IsZero():
		left = until.Sub(now)
	case !p.parts:
		tick = r.engine.soon.begin(now).Done()
	}
	timeUp := false
	// Where the tick comes long before, a timer would only cost.
	if d := p.deadline.Sub(now); !p.deadline.IsZero() && (tick == nil || d < 2*resendTime) && (left < 0 || d < left) {
		timeUp, left = true, d
	}
	var timer <-chan time.Time
	if left >= 0 || timeUp {
		t := time.NewTimer(max(left, time.Nanosecond))
		defer t.Stop()
		timer = t.C
	}
	select {
	case s := <-r.outcomes:
		s.end(context.Canceled) // for hooks of the Redis client that have bound something to it
		r.underWay = slices.DeleteFunc(r.underWay, func(other *sentTry[T]) bool { return other == s })
		return &s.try, nil
	case <-tick:
	case <-timer:
		if timeUp {
			return nil, cmp.Or(p.over(), errTimeUp)
		}
	case <-p.ctx.Done():
		return nil, ctxError(p.ctx)
	case <-p.closed:
		return nil, ErrClosed
	}
	for _, s := range r.underWay {
		if now.Sub(s.begun) > unlockTime-resendTime {
			s.end(context.DeadlineExceeded) // it should have a connection by now
		}
	}
	return nil, nil
}

// leave is the end of run for a caller who leaves because of why.
func (r *retry[T]) leave(value T, why error) (T, int, error) {
	r.p.leftBehind = r.p.leftBehind || len(r.underWay) > 0
	return value, r.ghosts, why
}

// end leaves the tries that are under way to themselves.
func (r *retry[T]) end() {
	if r.outcomes == nil || r.over.Swap(true) {
		return
	}
	for _, s := range r.underWay {
		s.end(context.Canceled)
	}
	if onOrphan := r.onOrphan; onOrphan != nil && len(r.outcomes) > 0 {
		r.engine.spawn(func() { r.drain(onOrphan) })
	}
}

// answer sends a request once and returns its outcome, or leaves it behind when
// there is no more time, and says why.
func answer[T any](e *engine, p *patience, request func(context.Context) (T, error), onOrphan func(T, error)) (value T, err, why error) {
	r := retry[T]{engine: e, p: p, request: request, onOrphan: onOrphan}
	defer r.end()
	start := time.Now()
	t, why := r.send()
	for t == nil && why == nil {
		t, why = r.wait(time.Time{})
		if t == nil && why == nil && !p.parts && time.Since(start) > 2*unlockTime {
			return value, silence(time.Since(start), 1, nil), nil
		}
	}
	if why != nil {
		_, _, why = r.leave(value, why)
		return value, nil, why
	}
	return t.value, t.err, nil
}

// whyAfter is why somebody gave up, and what the last try said before that.
func whyAfter(why, last error) error {
	if last == nil {
		return why
	}
	return fmt.Errorf("%w: the last try: %w", why, last)
}

// promptly says whether requests can be relied on to end in time by themselves,
// so that a caller who has the time may send them without another goroutine.
func (e *engine) promptly() bool { return e.prompt && !e.ailing.Load() }

// noteHealth remembers whether Redis has answered the last request.
func (e *engine) noteHealth(err error) {
	if ofHook(err) {
		return // it says nothing about Redis
	}
	ill := err != nil && !answered(err)
	if e.ailing.Load() != ill { // as a rule it is read by many
		e.ailing.Store(ill)
	}
	if ill || refusedWith(err, "CLUSTERDOWN") {
		e.wakeups.reload()
	}
}

// A requestCtx is the ctx of a request that may be left behind. Its caller ends it: with the answer, when he
// leaves, or when the request should have a connection by now. Those of package context look after
// themselves, and cost half a microsecond more.
type requestCtx struct {
	context.Context // of the caller, for its values and its deadline
	begun           time.Time
	ended           chan struct{}
	why             error // written before ended is closed
}

// Deadline is for go-redis, where it is told to bound by it how long it waits for an answer.
func (c *requestCtx) Deadline() (time.Time, bool) {
	by := c.begun.Add(unlockTime + unlockTime/4)
	if d, ok := c.Context.Deadline(); ok && d.Before(by) {
		return d, true
	}
	return by, true
}

func (c *requestCtx) Done() <-chan struct{} { return c.ended }

func (c *requestCtx) Err() error {
	select {
	case <-c.ended:
		return c.why
	default:
		return nil
	}
}

// end is for the caller alone.
func (c *requestCtx) end(why error) {
	if c.why == nil {
		c.why = why
		close(c.ended)
	}
}

// goesWithOthers says whether a request goes out with those of others, if so many are under way.
func (e *engine) goesWithOthers(p *patience, under int64) bool {
	return e.batches != nil && under > e.batches.from && !p.parts && !p.alone && !e.ailing.Load()
}

// sendOnce runs request on the goroutine of a caller who stays for the answer, and notes how it went. go-redis bounds
// how long it waits for an answer, but dials a host that cannot be reached several times: a limit bounds that.
func (e *engine) sendOnce(p *patience, now time.Time, request func(context.Context) error) error {
	ctx := p.ctx
	if !p.parts {
		ctx = e.soon.of(ctx, now)
	}
	err := withoutPanic(func() error { return request(ctx) })
	if !p.parts {
		err = orUnconnected(err, p.ctx, ctx, resendTime)
	}
	e.noteHealth(err)
	e.logPanic(err)
	return err
}

// orUnconnected is err, which says so if it is the end of ctx, which bounds how long a connection is waited for, and
// not that of the caller's ctx.
func orUnconnected(err error, caller, ctx context.Context, d time.Duration) error {
	if err == nil || caller.Err() != nil || !errors.Is(err, ctx.Err()) {
		return err
	}
	return fmt.Errorf("no connection to Redis within %v", d)
}

// errSilent is a request that was not answered for long.
var errSilent = errors.New("no answer from Redis")

// silence is errSilent with the time for which nothing came, and the last error before that.
func silence(d time.Duration, tries int, last error) error {
	return whyAfter(fmt.Errorf("%w within %v, or no connection to it (tries: %d, each over a connection of its own)",
		errSilent, d/(100*time.Millisecond)*(100*time.Millisecond), tries), last)
}

// A hookPanic is a panic of a hook of the Redis client while a request was sent. It
// is an error until all that the request may have done is undone; then failed has
// the caller panic.
type hookPanic struct {
	value any
	stack []byte
}

func (p *hookPanic) Error() string {
	return fmt.Sprintf("a hook of the Redis client panicked: %v", p.value)
}

// panicOf is the panic that err is about, or nil.
func panicOf(err error) *hookPanic {
	var p *hookPanic
	errors.As(err, &p)
	return p
}

// ofHook says whether err is a panic of a hook, or a hook has ended the goroutine.
func ofHook(err error) bool { return panicOf(err) != nil || errors.Is(err, errHookExited) }

// errHookExited is a request whose goroutine was ended by a hook of the Redis client.
var errHookExited = errors.New("a hook of the Redis client ended the goroutine of the request")

// logPanic says where a hook has panicked: the panic of the caller has another stack.
func (e *engine) logPanic(err error) {
	if p := panicOf(err); p != nil {
		e.log.Error("relock: a hook of the Redis client panicked", "panic", p.value, "stack", string(p.stack))
	}
}

// catchPanic runs request, and returns a panic in it as an error.
func catchPanic[T any](ctx context.Context, request func(context.Context) (T, error)) (value T, err error) {
	defer func() {
		if why := recover(); why != nil {
			err = &hookPanic{why, debug.Stack()}
		}
	}()
	return request(ctx)
}

// withoutPanic calls f, and returns a panic in it as an error: f calls another lock on a goroutine of ours.
func withoutPanic(f func() error) error {
	_, err := catchPanic(context.Background(), func(context.Context) (struct{}, error) { return struct{}{}, f() })
	return err
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
