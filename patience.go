package relock

// How long a caller is willing to wait, and the one place where callers wait.
//
// Rules: every wait ends by a wake-up, its time, the ctx, or Close; a request
// that cannot be interrupted is left behind, and whoever sent it tidies up.

import (
	"context"
	"sync/atomic"
	"time"
)

// answerTime is what a request is given at least.
const answerTime = 200 * time.Millisecond

type patience struct {
	ctx      context.Context
	closed   <-chan struct{} // of the client; nil: goes on after Close
	deadline time.Time       // zero: none
	once     bool            // one try, no waiting for others
	prompt   bool            // requests end soon by themselves, and need not be left behind
}

// over says why there is no more time, or nil.
func (p *patience) over() error {
	if p.ctx.Err() != nil {
		return ctxError(p.ctx)
	}
	select {
	case <-p.closed:
		return ErrClosed
	default:
	}
	if !p.deadline.IsZero() && !time.Now().Before(p.deadline) {
		return errTimeUp
	}
	return nil
}

// wait sleeps until one of the channels wakes it or d has passed (0: no limit),
// and returns nil; or until there is no more time, and says why.
func (p *patience) wait(wake, ready <-chan struct{}, d time.Duration) error {
	if !p.deadline.IsZero() {
		left := time.Until(p.deadline)
		if left <= 0 {
			return errTimeUp
		}
		if d == 0 || left < d {
			d = left
		}
	}
	var timeUp <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		timeUp = timer.C
	}
	select {
	case <-wake:
	case <-ready:
	case <-timeUp:
		return p.over()
	case <-p.ctx.Done():
		return ctxError(p.ctx)
	case <-p.closed:
		return ErrClosed
	}
	return nil
}

// answer runs request and returns its result, or leaves it behind when there is
// no more time, and says why. The result of a request that was left behind goes
// to late, if there is one.
//
// go-redis cannot be interrupted once a request is sent, so where the caller may
// have to leave early the request has a goroutine of its own.
func answer[T any](e *engine, p *patience, request func(context.Context) (T, error), late func(T, error)) (value T, err, why error) {
	if p.prompt {
		value, err = request(p.ctx)
		e.ailing.Store(err != nil && !answered(err))
		return value, err, nil
	}
	type result struct {
		value T
		err   error
	}
	var settled atomic.Bool // who sets it decides: the request has been answered, or left behind
	results := make(chan result, 1)
	done := make(chan struct{})
	e.spawn(func() {
		value, err := request(p.ctx)
		e.ailing.Store(err != nil && !answered(err))
		if settled.CompareAndSwap(false, true) {
			results <- result{value, err}
			close(done)
		} else if late != nil {
			late(value, err)
		}
	})
	patient := *p
	if !p.deadline.IsZero() {
		// However short the wait, a request that was sent is worth its answer.
		patient.deadline = later(p.deadline, time.Now().Add(answerTime))
	}
	if why = patient.wait(done, nil, 0); why != nil && settled.CompareAndSwap(false, true) {
		return value, nil, why
	}
	r := <-results
	return r.value, r.err, nil
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
