package send

// How a request is repeated.
//
// Rules:
//   - The first answer to any of the tries counts.
//   - A try without an answer for ResendTime stays under way, and the request is sent again over another connection,
//     because the connection may hang and the pool has others. At most maxTries are under way for one request, and at
//     most maxResent in addition to the first ones for all requests of a Client: if all of Redis hangs, more tries do
//     not help.
//   - A long call that may still run is not sent again before LongTime has passed, because each of them would block
//     Redis for as long as the previous one.
//   - A pause follows a refusal that may go away, and a connection that fails. A connection that was closed while it
//     was idle says nothing about Redis. While there are other idle connections, the request is sent again at once,
//     and at most maxEnded such tries do not count.
//   - A caller that has received no reply so far gives up after a few tries. A caller that has received a reply,
//     before this request or to one of its tries, retries for the retry budget from the first try on: Redis is there,
//     and starts, fails over or moves a slot. So does a waiter that Redis has admitted before and does not admit now.
//     That does not apply while the Client has had no answer but refusals of a replica, which may be no failover but a
//     wrong address, and to rollbacks before the first answer.
//   - The first try is made even if the time is up, because a wait of 0 asks for one try.

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// ResendTime is how long a call may be without an answer before the request is sent again. The actual time may be
	// up to a quarter longer.
	ResendTime = time.Second
	// LongTime is how long a long call may take, including the time until Redis starts to run it.
	LongTime = 2 * time.Second
	// ConnectTime is how long a try waits for a connection, and how long a release waits for its answer.
	ConnectTime = 5 * time.Second

	maxEnded   = 64              // tries over connections that were closed while they were idle
	maxTries   = 4               // under way for one request
	maxResent  = 32              // under way for all requests of a Client, in addition to the first ones
	quickTries = 4               // the least number of tries for a caller that has received no reply,
	quickTime  = 4 * time.Second // and how long they are made
	firstPause = 10 * time.Millisecond
	longPause  = 500 * time.Millisecond
)

// A retry sends one request until it is answered. It belongs to one goroutine. The Wait of the caller is a parameter
// of the methods, because it would move to the heap as a field.
type retry struct {
	*Sender
	req       Request
	lastReply time.Time // when the caller last received a reply, before this request; zero: never

	began    time.Time // when the first try was sent
	tries    int
	ended    int       // tries whose connection was closed while it was idle
	sent     time.Time // when the last try was sent
	replied  bool      // Redis has answered a try with an error
	unknown  int       // tries of unknown outcome that have ended, or for which the caller no longer waits
	lost     int       // those of them whose outcome will stay unknown
	handed   int       // outcomes that are left to the OrphanHandler, except those of underWay
	last     outcome
	pause    time.Duration // the length of the next pause
	resume   time.Time     // when the current pause ends; zero: there is none
	underWay []*try
	detached *detached // the state that underWay shares with its goroutines; nil: there was no such try

	once      bool // the request is sent once
	abandoned bool // the caller has left, and an outcome is an orphan
}

// An outcome is the result of a try.
type outcome struct {
	sent  time.Time // before the try was sent
	value any
	err   error
}

// run sends the request until Redis answers, or the caller gives up or leaves.
func (r *retry) run(w *Wait) Answer {
	defer r.end()
	whole := r.req.Call
	for r.pause = firstPause; ; {
		o, why := r.next(w)
		switch {
		case why != nil:
			return r.leave(r.withLast(w, why))
		case o.err == nil && !o.silent():
			return r.answer(Answer{Value: o.value, Sent: o.sent, Unknown: r.unknown + len(r.underWay)})
		case o.silent() && r.enough(w):
			return r.giveUp(r.silence(r.tries))
		case o.silent():
			if why := r.awaitProbes(w); why != nil {
				return r.leave(r.withLast(w, why))
			}
			continue
		}
		if answer, ended := r.again(w, o, whole); ended {
			return answer
		}
	}
}

// again prepares to send a request again that has failed, in a pause or at once; whole is its call. If there is no use,
// ended is set.
func (r *retry) again(w *Wait, o outcome, whole Call) (answer Answer, ended bool) {
	if why := r.failed(w, o); why != nil {
		return r.leave(why), true
	}
	if r.req.Call.Alone && redis.HasErrorPrefix(o.err, "TRYAGAIN") {
		r.req.Call = Call{Script: whole.Script, Keys: whole.Keys[:1], Args: whole.Args}
		return answer, false
	}
	if r.hadEnded(o.err) {
		w.OnCaller = false
		return answer, false
	}
	r.tellFailure()
	if !r.worthRepeating(w, o.err) || r.enough(w) {
		return r.giveUp(o.err), true
	}
	if timedOut(o.err) || o.err == ErrSilent {
		if why := r.awaitProbes(w); why != nil {
			return r.leave(r.withLast(w, why)), true
		}
	}
	w.OnCaller = false
	r.req.Call = whole // its keys may be together by now
	r.resume = time.Now().Add(r.pause/2 + rand.N(r.pause))
	if may := o.sent.Add(LongTime); r.req.Long && MayHaveRun(o.err) && may.After(r.resume) {
		r.resume = may
	}
	r.pause = min(2*r.pause, longPause)
	return answer, false
}

// awaitProbes waits until the connections are probed, or those are that need not be begun first. The error is the reason
// why the caller leaves.
func (r *retry) awaitProbes(w *Wait) error {
	if ended := r.probe(&r.req); ended != nil {
		return w.Sleep(ended, nil, nil, 2*boundedTime)
	}
	return nil
}

// runOnce sends the request once.
func (r *retry) runOnce(w *Wait) Answer {
	defer r.end()
	o, why := r.send(w)
	for why == nil && o.silent() {
		if o, why = r.wait(w); why == nil && o.silent() && time.Since(r.began) > 2*ConnectTime {
			return r.answer(Answer{Err: r.silence(1), Sent: r.began, Unknown: 1})
		}
	}
	if why != nil {
		return r.leave(why)
	}
	answer := Answer{Value: o.value, Err: o.err, Sent: o.sent}
	if o.err != nil && MayHaveRun(o.err) {
		answer.Unknown = 1
	}
	r.noteLost(o.err)
	return r.answer(answer)
}

// silence returns the error of a request that this number of tries have not answered.
func (r *retry) silence(tries int) error {
	return r.Explain(Silence(time.Since(r.began), tries, r.last.err), r.req.key())
}

// withLast returns why, the reason why the caller leaves, with what is known of the tries. ErrTimeUp and ErrClosed stay
// as they are unless a try has failed.
func (r *retry) withLast(w *Wait, why error) error {
	err, ended := WithLast(why, r.last.err), w.Ctx.Err()
	if r.last.err == ErrSilent || r.last.err == nil && ended != nil && errors.Is(why, ended) {
		return r.Explain(err, r.req.key())
	}
	return err
}

// silent reports whether there is no outcome yet.
func (o outcome) silent() bool { return o.sent.IsZero() }

// next makes a try or waits, for an outcome or until there is something else to do. The outcome is silent if none is
// known yet. The error is the reason why the caller leaves.
func (r *retry) next(w *Wait) (outcome, error) {
	for {
		if r.tries > 0 { // the first try is made even if the time is up
			if why := w.Over(); why != nil {
				return outcome{}, why
			}
		}
		if r.resume.IsZero() && r.mayTry() {
			if o, why := r.send(w); why != nil || !o.silent() {
				return o, why
			}
			if len(r.underWay) == 0 { // a bounded try has ended without an answer
				if why := r.awaitProbes(w); why != nil {
					return outcome{}, why
				}
				continue
			}
		}
		o, why := r.wait(w)
		if why != nil || !o.silent() || r.resume.IsZero() {
			return o, why
		}
		r.resume = time.Time{} // the pause has ended
	}
}

// failed records a try that ended with an error. It returns the reason why the caller leaves, if its context is done.
func (r *retry) failed(w *Wait, o outcome) error {
	before := r.last.err
	r.last = o
	if MayHaveRun(o.err) {
		r.unknown++
	}
	r.noteLost(o.err)
	r.replied = r.replied || Answered(o.err)
	ended := w.Ctx.Err()
	switch {
	case ended == nil:
		return nil
	case errors.Is(o.err, ended): // go-redis noticed it as well
		return WithLast(CtxError(w.Ctx), before)
	}
	r.tellFailure()
	return WithLast(CtxError(w.Ctx), o.err)
}

// tellFailure tells the FailureHandler that a try has failed.
func (r *retry) tellFailure() {
	if r.req.OnFailure != nil {
		r.req.OnFailure.HandleFailure()
	}
}

// worthRepeating reports whether a request that failed with err may succeed soon. The credentials of a waiter that was
// admitted before are probably being rotated.
func (r *retry) worthRepeating(w *Wait, err error) bool {
	waits := r.req.Acquiring && !w.NoWait && !r.lastReply.IsZero()
	return Transient(err) || waits && NotAdmitted(err) || w.Background && OfHook(err)
}

// hadEnded reports whether a try failed with err because its connection was closed while it was idle and there are
// other idle connections, and counts such tries.
func (r *retry) hadEnded(err error) bool {
	if !ended(err) || r.req.Long || r.ended == maxEnded || r.idleConns(&r.req) == 0 {
		return false
	}
	r.ended++
	return true
}

// enough reports whether the caller gives up, after an error that may go away or after silence.
func (r *retry) enough(w *Wait) bool {
	took, tried := time.Since(r.began), r.tries-r.ended >= quickTries && len(r.underWay) == 0
	// Redis has run nothing so far: the client may be a mock, or lead to a replica.
	inVain := !r.answered.Load() && (w.Background || RefusedWith(r.last.err, "READONLY"))
	switch {
	case !inVain && !r.lastReply.IsZero(): // this may be long ago, because a waiter in the queue seldom sends a request
		return min(took, time.Since(r.lastReply)) > r.config.RetryBudget
	case w.NoWait:
		return tried || took > quickTime
	case !inVain && r.replied:
		return took > r.config.RetryBudget
	}
	return tried && took > time.Second || took > quickTime
}

// noteLost records a try that has ended with err. ErrSilent is an exception: that call is in a batch which is still
// under way, and its outcome will be an orphan.
func (r *retry) noteLost(err error) {
	if MayRunLater(err) && err != ErrSilent {
		r.lost++
	}
}

// answer returns a with the number of tries that may still run.
func (r *retry) answer(a Answer) Answer {
	a.Orphans, a.Lost = r.handed+len(r.underWay), r.lost
	return a
}

// giveUp ends the request with err.
func (r *retry) giveUp(err error) Answer {
	return r.answer(Answer{
		Value: r.last.value, Err: err, Sent: r.last.sent,
		Unknown:    r.unknown + len(r.underWay),
		Unanswered: r.lastReply.IsZero() && Transient(err) && !Answered(err),
	})
}

// leave ends the request of a caller that leaves because of why.
func (r *retry) leave(why error) Answer {
	return r.answer(Answer{
		Value: r.last.value, Err: why, Sent: r.last.sent,
		Unknown:   r.unknown,
		Abandoned: r.abandoned || len(r.underWay) > 0,
	})
}

// mayTry reports whether one more try may be under way, and counts it if others are under way.
func (r *retry) mayTry() bool {
	switch n := len(r.underWay); {
	case n == 0:
		return true
	case n >= maxTries, r.req.Long && time.Since(r.sent) < LongTime:
		return false
	}
	if r.resent.Add(1) > maxResent {
		r.resent.Add(-1)
		return false
	}
	return true
}

// send makes one try, in a batch, on this goroutine, or on another one. The outcome is silent if the try is still
// under way. The error is the reason why the caller leaves.
func (r *retry) send(w *Wait) (outcome, error) {
	r.tries++
	now := time.Now()
	r.sent = now
	if r.tries == 1 {
		r.began = now
	}
	if len(r.underWay) > 0 {
		r.start(w.Ctx, now, false)
		return outcome{}, nil
	}
	n := r.asking.Add(1)
	defer r.asking.Add(-1)
	bounded, onCaller := false, false
	if r.mayBatch(&r.req, n) {
		if o, why, sent := r.sendInBatch(w, now); sent || why != nil {
			return o, why
		}
	} else if !r.once { // if no batch goes out, Redis may not be quick any more
		bounded, onCaller = r.mayBound(w, &r.req, now)
	}
	if onCaller {
		value, err, sent := r.runBounded(w.Ctx, &r.req, now)
		if sent {
			r.recordTry(&r.req, now, err)
			if !timedOut(err) {
				return r.ranOnCaller(w, outcome{now, value, err})
			}
			r.unknown++
			r.lost++
			w.OnCaller = false
			return outcome{}, nil // as silent as a try that is still under way
		}
		now, bounded = time.Now(), false
	}
	if r.mayRunOnCaller(w, now) {
		value, err := r.runOnCaller(w, &r.req, now)
		return r.ranOnCaller(w, outcome{now, value, err})
	}
	r.start(w.Ctx, now, bounded && r.tries == 1)
	return outcome{}, nil
}

// ranOnCaller returns o, the outcome of a try on this goroutine. If the context was canceled meanwhile, the caller
// leaves, and the outcome is an orphan.
func (r *retry) ranOnCaller(w *Wait, o outcome) (outcome, error) {
	if o.err == nil && w.Ctx.Err() != nil {
		r.abandoned = true
		r.handed++
		orphan, hears := o, r.req.OnOrphan
		r.config.Spawn(func() { orphan.orphaned(hears) })
		return outcome{}, CtxError(w.Ctx)
	}
	return o, nil
}

// wait waits for the outcome of a try. The outcome is silent when the pause has ended, or when the time has come to
// send the request again.
func (r *retry) wait(caller *Wait) (outcome, error) {
	w, now := *caller, time.Now()
	if len(r.underWay) > 0 {
		w = caller.WithMinWait(now)
	}
	tick, left, timeUp := r.timers(&w, now)
	var timer <-chan time.Time
	if left > 0 {
		t := time.NewTimer(left)
		defer t.Stop()
		timer = t.C
	}
	select {
	case t := <-r.detached.ended():
		return r.received(t), nil
	case <-tick:
	case <-timer:
		if timeUp {
			select {
			case t := <-r.detached.ended(): // it ended at the same time
				return r.received(t), nil
			default:
			}
			return outcome{}, cmp.Or(w.Over(), ErrTimeUp)
		}
	case <-w.Ctx.Done():
		return outcome{}, CtxError(w.Ctx)
	case <-w.Closed:
		return outcome{}, ErrClosed
	}
	for _, t := range r.underWay {
		t.ctx.expire(now)
	}
	return outcome{}, nil
}

// timers returns what ends a wait that starts now. It is the tick at which the request is sent again, or a timer for
// the rest of the pause, or a timer for the deadline if that is earlier. A timer of 0 is none.
func (r *retry) timers(w *Wait, now time.Time) (tick <-chan struct{}, timer time.Duration, timeUp bool) {
	if r.resume.IsZero() {
		tick = r.limit.begin(now).Done()
	} else {
		timer = max(r.resume.Sub(now), time.Nanosecond)
	}
	if w.Deadline.IsZero() {
		return tick, timer, false
	}
	d := max(w.Deadline.Sub(now), time.Nanosecond)
	// Otherwise the tick comes long before the deadline, and a timer would cost something for nothing.
	if tick == nil && d < timer || tick != nil && d < 2*ResendTime {
		return tick, d, true
	}
	return tick, timer, false
}

// received removes a try that has ended from those under way.
func (r *retry) received(t *try) outcome {
	t.ctx.end(context.Canceled)
	r.underWay = slices.DeleteFunc(r.underWay, func(other *try) bool { return other == t })
	return t.outcome
}

// end abandons the tries that are under way.
func (r *retry) end() {
	if len(r.underWay) > 0 { // otherwise every outcome was received
		r.detached.abandon(r.underWay)
	}
}
