package send

// How a request is repeated.
//
// Rules:
//   - The first answer to any of the tries counts.
//   - A try without an answer for ResendTime stays under way, and the request is sent again over another connection,
//     because the connection may hang and the pool has others. At most maxTries are under way for one request. At most
//     maxResent of them have a connection each, in addition to the first ones, for all requests of a Client: if all of
//     Redis hangs, more do not help.
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
	maxResent  = 32              // under way by themselves for all requests of a Client, in addition to the first ones
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
	once      bool      // the request is sent once
	lastReply time.Time // when the caller last received a reply, before this request; zero: never

	began    time.Time
	tries    int
	ended    int           // tries whose connection was closed while it was idle
	sent     time.Time     // when the last try was sent
	replied  bool          // Redis has answered a try with an error
	last     outcome       // of the last try that has ended
	known    Answer        // counts tries that have ended, or for which the caller no longer waits
	pause    time.Duration // the length of the next pause
	resume   time.Time     // when the current pause ends; zero: there is none
	underWay []*try
	detached *detached // the state that underWay shares with its goroutines; nil: there was no such try
}

// An outcome is the result of a try.
type outcome struct {
	sent  time.Time // before the try was sent
	value any
	err   error
}

// silent reports whether there is no outcome yet.
func (o outcome) silent() bool { return o.sent.IsZero() }

// run sends the request until Redis answers, or the caller gives up or leaves.
func (r *retry) run(w *Wait) Answer {
	defer r.end()
	r.began, r.pause = time.Now(), firstPause
	for whole := r.req.Call; ; {
		o, why := r.next(w)
		switch {
		case why != nil:
			return r.leave(w, why)
		case o.silent() && r.enough(w):
			return r.answer(r.Explain(Silence(time.Since(r.began), r.tries, r.last.err), r.req.Call.key()), false)
		case o.silent():
		case o.err == nil:
			r.last = o
			return r.answer(nil, false)
		case !r.failed(w, o, whole):
			return r.answer(o.err, false)
		}
	}
}

// noteError records a try that ended with an error. over is the error of the caller's context.
func (r *retry) noteError(o outcome, over error) {
	if MayHaveRun(o.err) {
		r.known.Unknown++
	}
	if MayRunLater(o.err) {
		r.known.Lost++
	}
	r.replied = r.replied || Answered(o.err)
	if over == nil || !errors.Is(o.err, over) { // otherwise go-redis has noticed it as well
		r.last = o
	}
}

// failed records a try that ended with an error, and prepares to send the request again, in a pause or at once; whole is
// its call. It returns false if there is no use.
func (r *retry) failed(w *Wait, o outcome, whole Call) bool {
	over := w.Ctx.Err()
	r.noteError(o, over)
	switch {
	case over != nil:
		return true // the caller leaves
	case r.once:
		r.probe(&r.req.Call) // for the next request of the caller: it may have had no answer
		return false
	case r.req.Call.Alone && redis.HasErrorPrefix(o.err, "TRYAGAIN"):
		r.req.Call = Call{Script: whole.Script, Keys: whole.Keys[:1], Args: whole.Args}
		return true
	}
	w.OnCaller = false
	if ended(o.err) && !r.req.Long && r.ended < maxEnded && r.idleConns(&r.req.Call) > 0 { // it was closed while it was idle
		r.ended++
		return true
	}
	if r.req.OnFailure != nil {
		r.req.OnFailure.HandleFailure()
	}
	if !r.worthRepeating(w, o.err) || r.enough(w) {
		return false
	}
	r.req.Call = whole // its keys may be together by now
	r.resume = time.Now().Add(r.pause/2 + rand.N(r.pause))
	if may := o.sent.Add(LongTime); r.req.Long && MayHaveRun(o.err) && may.After(r.resume) {
		r.resume = may
	}
	r.pause = min(2*r.pause, longPause)
	return true
}

// next makes a try or waits, for an outcome or until there is something else to do. The outcome is silent if none is
// known yet. The error is the reason why the caller leaves.
func (r *retry) next(w *Wait) (outcome, error) {
	for {
		if r.tries > 0 { // the first try is made even if the time is up
			if why := w.Over(); why != nil {
				return outcome{}, why
			}
			if o, why := r.awaitProbes(w); why != nil || !o.silent() {
				return o, why
			}
		}
		if may, again := r.mayTry(); may {
			o, why := r.send(w, again)
			if why != nil || !o.silent() || len(r.underWay) == 0 {
				return o, why
			}
		}
		o, why := r.wait(w)
		if why != nil || !o.silent() || r.resume.IsZero() {
			return o, why
		}
		r.resume = time.Time{} // the pause has ended
	}
}

// awaitProbes has the idle connections probed if a try has no answer, before the request is sent again. It waits
// for them, or for the outcome of a try, for as long as probes take while Redis is quick. The error is the reason why the
// caller leaves.
func (r *retry) awaitProbes(w *Wait) (outcome, error) {
	if r.resume.IsZero() && (len(r.underWay) > 0 || !Answered(r.last.err)) {
		if ended := r.probe(&r.req.Call); ended != nil {
			return r.take(w.sleep(r.detached.wakes(), ended, nil, 2*boundedTime))
		}
	}
	return outcome{}, nil
}

// worthRepeating reports whether a request that failed with err may succeed soon. The credentials of a waiter that was
// admitted before are probably being rotated.
func (r *retry) worthRepeating(w *Wait, err error) bool {
	waits := r.req.Acquiring && !w.NoWait && !r.lastReply.IsZero()
	return Transient(err) || waits && NotAdmitted(err) || w.Background && OfHook(err)
}

// enough reports whether the caller gives up, after an error that may go away or after silence.
func (r *retry) enough(w *Wait) bool {
	took, tried := time.Since(r.began), r.tries-r.ended >= quickTries && len(r.underWay) == 0
	// Redis has run nothing so far: the client may be a mock, or lead to a replica.
	inVain := !r.answered.Load() && (w.Background || RefusedWith(r.last.err, "READONLY"))
	switch {
	case r.once:
		return took > 2*ConnectTime
	case !inVain && !r.lastReply.IsZero(): // this may be long ago, because a waiter in the queue seldom sends a request
		return min(took, time.Since(r.lastReply)) > r.config.RetryBudget
	case w.NoWait:
		return tried || took > quickTime
	case !inVain && r.replied:
		return took > r.config.RetryBudget
	}
	return tried && took > time.Second || took > quickTime
}

// leave ends the request of a caller that leaves because of why. ErrTimeUp and ErrClosed stay as they are unless a try
// has failed.
func (r *retry) leave(w *Wait, why error) Answer {
	err, ended := WithLast(why, r.last.err), w.Ctx.Err()
	if r.last.err == nil && ended != nil && errors.Is(why, ended) {
		err = r.Explain(err, r.req.Call.key())
	}
	if r.detached != nil {
		r.detached.done.Store(ended != nil)
	}
	return r.answer(err, true)
}

// answer ends the request with err. The caller leaves, or else what is still under way has an unknown outcome.
func (r *retry) answer(err error, leaves bool) Answer {
	a, n := r.known, len(r.underWay)
	a.Value, a.Err, a.Sent = r.last.value, err, r.last.sent
	a.Orphans += n
	if leaves {
		a.Abandoned = a.Abandoned || n > 0
		return a
	}
	a.Unknown += n
	a.Unanswered = err != nil && r.lastReply.IsZero() && Transient(err) && !Answered(err)
	return a
}

// mayTry reports whether one more try may be under way now. again is set if others are, and it is sent by itself: then it
// is counted.
func (r *retry) mayTry() (may, again bool) {
	switch n := len(r.underWay); {
	case !r.resume.IsZero():
		return false, false
	case n == 0:
		return true, false
	case n >= maxTries, r.once, r.req.Long && time.Since(r.sent) < LongTime:
		return false, false
	case r.mayBatch(&r.req, r.asking.Load()) && r.batchesOf(&r.req.Call) != nil:
		return true, false
	}
	if r.resent.Add(1) > maxResent {
		r.resent.Add(-1)
		return false, false
	}
	return true, true
}

// send makes one try, in a batch, on this goroutine, or on another one. The outcome is silent if the try is still
// under way. The error is the reason why the caller leaves. again is that of mayTry.
func (r *retry) send(w *Wait, again bool) (outcome, error) {
	r.tries++
	r.sent = time.Now()
	if again {
		r.start(w.Ctx, false, true)
		return outcome{}, nil
	}
	n := r.asking.Add(1)
	defer r.asking.Add(-1)
	bounded, onCaller := false, false
	if r.mayBatch(&r.req, n) {
		if o, why, sent := r.sendInBatch(w); sent || why != nil {
			return o, why
		}
	} else if !r.once && len(r.underWay) == 0 { // if no batch goes out, Redis may not be quick any more
		bounded, onCaller = r.mayBound(w, &r.req, r.sent)
	}
	if onCaller {
		switch o, sent := r.runBounded(w.Ctx, &r.req, r.sent); {
		case sent && timedOut(o.err): // as silent as a try that is still under way
			r.known.Unknown++
			r.known.Lost++
			w.OnCaller = false
			return outcome{}, nil
		case sent:
			return r.ranOnCaller(w, o)
		}
		r.sent, bounded = time.Now(), false
	}
	r.start(w.Ctx, bounded && r.tries == 1, false)
	return outcome{}, nil
}

// ranOnCaller returns o, the outcome of a try on this goroutine. If the context was canceled meanwhile, the caller
// leaves, and the outcome is an orphan.
func (r *retry) ranOnCaller(w *Wait, o outcome) (outcome, error) {
	if o.err == nil && w.Ctx.Err() != nil {
		r.known.Abandoned = true
		r.known.Orphans++
		orphan, hears := o, r.req.OnOrphan
		r.config.Spawn(func() { orphan.orphaned(hears) })
		return outcome{}, CtxError(w.Ctx)
	}
	return o, nil
}

// wait waits for the outcome of a try. The outcome is silent when the pause has ended, or when the time has come to
// send the request again.
func (r *retry) wait(caller *Wait) (outcome, error) {
	w := *caller
	if len(r.underWay) > 0 {
		w = caller.WithMinWait(r.sent)
	}
	if r.resume.IsZero() {
		return r.take(w.sleepFor(r.detached.wakes(), &r.limit))
	}
	return r.take(w.sleep(r.detached.wakes(), nil, nil, max(time.Until(r.resume), time.Nanosecond)))
}

// take returns the outcome of a try that has woken the caller, or else why.
func (r *retry) take(woken bool, why error) (outcome, error) {
	if !woken {
		return outcome{}, why
	}
	t := r.detached.take(r.underWay)
	t.cancel()
	r.underWay = slices.DeleteFunc(r.underWay, func(other *try) bool { return other == t })
	return t.outcome, nil
}

// end abandons the tries that are under way.
func (r *retry) end() {
	if len(r.underWay) > 0 { // otherwise every outcome was received
		r.detached.abandon(r.underWay)
	}
}
