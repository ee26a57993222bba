package relock

// How a request is sent so that its sender can leave early, and again when Redis
// does not answer.
//
// Rules: go-redis cannot be interrupted once a request is sent, so where the
// caller may have to leave early the request has a goroutine of its own, which
// tidies up after it. Only requests that may safely run twice, and late, are sent
// this way.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"
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
	return true, e.sendPromptly(p, now, request)
}

// persist sends a request until Redis answers it, or until what is in the way
// will not pass. A caller who has nothing yet is told after a few tries; one who
// hears of Redis, now or before (at heard), rides out a failover, for up to one
// watchdog timeout. The first try may have been made already. ghosts are the tries
// whose answer is not known: they may have run, or may still.
func persist[T any](e *engine, p *patience, heard time.Time, first *try[T], request func(context.Context) (T, error), late func(T, error)) (value T, ghosts int, err error) {
	pause, start := firstPause, time.Now()
	for tries := 1; ; tries++ {
		last := err
		if tries == 1 && first != nil {
			start, value, err = first.sent, first.value, first.err
		} else {
			// The first try is made even if the time is up: it is what wait 0 asks for.
			if why := p.over(); why != nil && !(tries == 1 && why == errTimeUp) {
				return value, ghosts, whyAfter(why, err)
			}
			var why error
			value, err, why = answer(e, p, request, late)
			if why != nil {
				return value, ghosts, whyAfter(why, last)
			}
		}
		if err == nil {
			return value, ghosts, nil
		}
		if mayHaveRun(err) {
			ghosts++
		}
		if ended := p.ctx.Err(); ended != nil {
			if errors.Is(err, ended) { // go-redis noticed it as well
				err = last
			}
			return value, ghosts, whyAfter(ctxError(p.ctx), err)
		}
		took, enough := time.Since(start), false
		switch {
		case !heard.IsZero():
			enough = time.Since(heard) > e.watchdogTimeout
		case p.once:
			enough = tries >= quickTries || took > quickTime
		case answered(err): // it is there, and starts, fails over or moves a slot
			enough = took > e.watchdogTimeout
		default:
			enough = tries >= quickTries && took > time.Second || took > quickTime
		}
		if enough || !transient(err) {
			p.unheard = heard.IsZero() && !answered(err)
			return value, ghosts, err
		}
		p.prompt = false // from here on it may have to be left behind
		if why := p.wait(nil, nil, pause/2+rand.N(pause)); why != nil {
			return value, ghosts, whyAfter(why, err)
		}
		pause = min(2*pause, longestPause)
	}
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
	ill := err != nil && !answered(err)
	if e.ailing.Load() != ill { // as a rule it is read by many
		e.ailing.Store(ill)
	}
	if ill || refusedWith(err, "CLUSTERDOWN") {
		e.wakeups.router.stale()
	}
}

// answer runs request and returns its result, or leaves it behind when there is
// no more time, and says why. The result of a request that was left behind goes
// to late, if there is one.
//
// go-redis cannot be interrupted once a request is sent, so where the caller may
// have to leave early the request has a goroutine of its own.
func answer[T any](e *engine, p *patience, request func(context.Context) (T, error), late func(T, error)) (value T, err, why error) {
	under := e.asking.Add(1)
	defer e.asking.Add(-1)
	if e.goesWithOthers(p, under) {
		if value, err, why, ok := answerInBatch(e.batches, p, request, late); ok {
			return value, err, why
		}
	}
	if p.prompt {
		err = e.sendPromptly(p, time.Now(), func(ctx context.Context) (err error) {
			value, err = request(ctx)
			return err
		})
		return value, err, nil
	}
	flight := &struct {
		leash
		settled atomic.Int32 // who sets it decides what has become of the request
		done    chan struct{}
		value   T // written before done is closed
		err     error
	}{done: make(chan struct{})}
	now := time.Now()
	flight.leash = leash{Context: p.ctx, by: now.Add(unlockTime + unlockTime/4), ended: make(chan struct{})}
	ctx := context.Context(&flight.leash)
	if p.parts {
		ctx = p.ctx
	}
	e.spawn(func() {
		value, err := request(ctx)
		err = p.orUnconnected(err, ctx, unlockTime)
		e.noteHealth(err)
		if flight.settled.CompareAndSwap(underWay, wasAnswered) {
			flight.value, flight.err = value, err
			close(flight.done)
		} else if late != nil && flight.settled.Load() == leftBehind {
			late(value, err)
		}
	})
	patient := p.worthAnAnswer()
	if p.parts {
		why = patient.wait(flight.done, nil, 0)
	} else {
		why = patient.wait(flight.done, e.patient.begin(now).Done(), 0)
		if why == nil && flight.settled.Load() == underWay {
			flight.end(context.DeadlineExceeded)
			// A Redis client without a read timeout would wait for ever.
			why = patient.wait(flight.done, e.patient.begin(time.Now()).Done(), 0)
		}
	}
	if why == nil && flight.settled.CompareAndSwap(underWay, sentAgain) {
		return value, errSilent, nil
	}
	if why != nil && flight.settled.CompareAndSwap(underWay, leftBehind) {
		flight.end(context.Canceled)
		return value, nil, why
	}
	<-flight.done
	flight.end(context.Canceled) // for hooks of the Redis client that have bound something to it
	return flight.value, flight.err, nil
}

// A leash is the ctx of a request that may be left behind. Its caller ends it: with the answer, when he
// leaves, or when the request should have a connection by now. Those of package context look after
// themselves, and cost half a microsecond more.
type leash struct {
	context.Context // of the caller, for its values and its deadline
	by              time.Time
	ended           chan struct{}
	why             error // written before ended is closed
}

// Deadline is for go-redis, where it is told to bound by it how long it waits for an answer.
func (l *leash) Deadline() (time.Time, bool) {
	if d, ok := l.Context.Deadline(); ok && d.Before(l.by) {
		return d, true
	}
	return l.by, true
}

func (l *leash) Done() <-chan struct{} { return l.ended }

func (l *leash) Err() error {
	select {
	case <-l.ended:
		return l.why
	default:
		return nil
	}
}

// end is for the caller alone.
func (l *leash) end(why error) {
	if l.why == nil {
		l.why = why
		close(l.ended)
	}
}

// goesWithOthers says whether a request goes out with those of others, if so many are under way.
func (e *engine) goesWithOthers(p *patience, under int64) bool {
	return e.batches != nil && under > e.batches.from && !p.parts && !p.alone && !e.ailing.Load()
}

// sendPromptly is sendOnce for a caller who stays for the answer.
func (e *engine) sendPromptly(p *patience, now time.Time, request func(context.Context) error) error {
	limit := &e.connecting
	if !p.deadline.IsZero() {
		limit = &e.brief
	}
	return e.sendOnce(p, limit, now, request)
}

// sendOnce runs request for a caller whose ctx does not end, and notes how it went. go-redis bounds how long
// it waits for an answer, but dials a host that cannot be reached several times: l bounds that.
func (e *engine) sendOnce(p *patience, l *limit, now time.Time, request func(context.Context) error) error {
	ctx := p.ctx
	if !p.parts {
		ctx = l.of(ctx, now)
	}
	err := p.orUnconnected(request(ctx), ctx, l.d)
	e.noteHealth(err)
	return err
}

// orUnconnected is err, which says so if it is the end of ctx that bounds how long a connection is waited for.
func (p *patience) orUnconnected(err error, ctx context.Context, d time.Duration) error {
	if err == nil || p.parts || p.ctx.Err() != nil || !errors.Is(err, ctx.Err()) {
		return err
	}
	return fmt.Errorf("no connection to Redis within %v", d)
}

// What can become of a request.
const (
	underWay int32 = iota
	wasAnswered
	leftBehind // its result goes to late
	sentAgain  // to nobody: to undo it would undo the next try
)

// errSilent is a request that was not answered for long.
var errSilent = fmt.Errorf("no answer from Redis within %v", 2*unlockTime)

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
