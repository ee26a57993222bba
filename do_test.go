package relock

// Do and TryDo of a lock that is lost before its function is called, and the errors that they make of a loss.

import (
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/testredis"
)

// A losing lock loses its hold before Guard, some times.
type losing struct {
	acquirable
	times int
	waits []time.Duration // of its acquires
}

func (l *losing) acquire(ctx context.Context, op string, r engine.Request) (bool, error) {
	l.waits = append(l.waits, r.Wait)
	return l.acquirable.acquire(ctx, op, r)
}

func (l *losing) Guard(ctx context.Context) (context.Context, error) {
	if l.times--; l.times >= 0 {
		time.Sleep(time.Millisecond)
		if _, err := l.ForceUnlock(ctx); err != nil {
			return nil, err
		}
	}
	return l.acquirable.Guard(ctx)
}

// A lock that was lost before the function was called has protected nothing, so that it is acquired again: the loss is
// not returned. TryDo does not wait longer for that.
func TestDoAcquiresAgainWhatWasLostBeforeItsFunction(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	called := 0
	fn := func(guarded context.Context) error {
		called++
		return guarded.Err()
	}
	l := &losing{acquirable: b.client().NewLock(b.name), times: 2}
	b.must(do(ctx, l, fn))
	assert.Equal(t, 1, called)
	assert.Equal(t, []time.Duration{-1, -1, -1}, l.waits)

	l.times, l.waits = 2, nil
	ran, err := tryDo(ctx, l, soon, fn)
	b.must(err)
	assert.True(t, ran)
	assert.Equal(t, 2, called)
	if assert.Len(t, l.waits, 3) {
		assert.Less(t, l.waits[1], soon)
		assert.Less(t, l.waits[2], l.waits[1])
		assert.Positive(t, l.waits[2])
	}

	l.times = engine.MostAsked
	ran, err = tryDo(ctx, l, soon, fn)
	assert.False(t, ran)
	b.mustBe(err, ErrLockLost)
	assert.Equal(t, 2, called)
	b.isLocked(l, false)
}

// An owner that holds the lock in an outer section, and has lost it, is told so by an inner Do, whose function is not
// called. TryDo reports that.
func TestTryDoReportsThatAnOuterLossKeptItFromItsFunction(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	l := b.client().NewLock(b.name)
	err := l.Do(context.Background(), func(outer context.Context) error {
		b.must(second(l.ForceUnlock(outer)))
		owner := context.WithoutCancel(outer)
		ran, err := l.TryDo(owner, soon, func(context.Context) error { assert.Fail(t, "called"); return nil })
		assert.False(t, ran)
		assert.ErrorIs(t, err, ErrLockLost)
		return nil
	})
	b.mustBe(err, ErrLockLost)
	b.isLocked(l, false)
}

// The error of a function that waits for another lock may match ErrBusy.
func TestErrorOfAnInnerLockIsNotThatOfDo(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	l, inner := b.client().NewLock(b.name), b.client().NewLock(b.name+"-inner")
	held := b.client().NewLock(b.name + "-inner")
	b.must(held.Lock(ctx))
	fn := func(ctx context.Context) error {
		for { // the machine may be very busy
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			err := inner.Lock(short)
			cancel()
			if errors.Is(err, ErrBusy) {
				return err
			}
		}
	}
	ran, err := l.TryDo(ctx, soon, fn)
	assert.True(t, ran)
	b.mustBe(err, ErrBusy)
	b.must(held.Unlock(ctx))
}

// checkOutcome checks what an outcome matches, what it does not match, and its text, which is "" for nil.
func checkOutcome(t *testing.T, name string, err error, matches, not []error, text string) {
	t.Helper()
	for _, target := range matches {
		assert.ErrorIs(t, err, target, name)
	}
	for _, target := range not {
		assert.NotErrorIs(t, err, target, name)
	}
	if text == "" {
		assert.NoError(t, err, name)
	} else {
		assert.EqualError(t, err, text, name)
	}
}

// The outcome of a call whose context a Shutdown has canceled matches ErrClosed, and not context.Canceled, if the
// function has returned the error of its context. A loss is told as a loss, also one that matches ErrClosed.
func TestOutcomeOfAShutdown(t *testing.T) {
	lost := engine.LossError(ErrClosed)
	unlocked := failed("unlock", "x", lost)
	for _, test := range []struct {
		name                string
		err, cause, release error
		matches, not        []error
		text                string
	}{
		{"the work is done", nil, ErrClosed, nil, nil, nil, ""},
		{"canceled", context.Canceled, ErrClosed, nil, []error{ErrClosed}, []error{context.Canceled}, ErrClosed.Error()},
		{"returns why", ErrClosed, ErrClosed, nil, []error{ErrClosed}, nil, ErrClosed.Error()},
		{"wraps it", errors.Join(context.Canceled, io.EOF), ErrClosed, nil,
			[]error{ErrClosed, io.EOF}, []error{context.Canceled}, "context canceled\nEOF\n" + ErrClosed.Error()},
		{"its own error", io.EOF, ErrClosed, nil, []error{io.EOF}, []error{ErrClosed}, "EOF"},
		{"the deadline of the caller", context.DeadlineExceeded, ErrClosed, nil,
			[]error{context.DeadlineExceeded}, []error{ErrClosed}, context.DeadlineExceeded.Error()},
		{"not confirmed", context.Canceled, ErrClosed, io.ErrNoProgress,
			[]error{ErrClosed, io.ErrNoProgress}, []error{context.Canceled},
			ErrClosed.Error() + "\n" + io.ErrNoProgress.Error()},
		{"lost after that", context.Canceled, ErrClosed, unlocked,
			[]error{ErrClosed, ErrLockLost}, []error{context.Canceled}, ErrClosed.Error() + "\n" + unlocked.Error()},
		{"another lock was lost", context.Canceled, lost, nil, []error{context.Canceled}, []error{ErrClosed, ErrLockLost},
			"context canceled"},
	} {
		err := outcome(test.err, test.cause, test.release, false)
		checkOutcome(t, test.name, err, test.matches, test.not, test.text)
	}
}

// The outcome of a call that has lost its lock does not match context.Canceled, and tells of the loss once. It keeps all
// that the function has returned, and everything that the release tells of other locks.
func TestOutcomeOfALoss(t *testing.T) {
	lost := engine.LossError(errors.New("gone"))
	unlocked := failed("unlock", "x", lost)
	ended := errors.New("ended by the caller")
	for _, test := range []struct {
		name                string
		err, cause, release error
		several             bool
		matches, not        []error
		text                string
	}{
		{"nothing", nil, nil, nil, false, nil, nil, ""},
		{"canceled by the caller", context.Canceled, ended, nil, false, []error{context.Canceled}, nil, "context canceled"},
		{"lost after that", context.Canceled, ended, unlocked, false, []error{context.Canceled, ErrLockLost}, nil,
			"context canceled\n" + unlocked.Error()},
		{"lost", context.Canceled, lost, unlocked, false, []error{ErrLockLost}, []error{context.Canceled}, unlocked.Error()},
		{"lost, and returns why", lost, lost, unlocked, false, []error{ErrLockLost}, nil, lost.Error()},
		{"lost, of several", lost, lost, unlocked, true, []error{ErrLockLost}, nil, lost.Error() + "\n" + unlocked.Error()},
		{"lost, and wraps it", errors.Join(context.Canceled, io.EOF), lost, unlocked, false,
			[]error{ErrLockLost, io.EOF}, []error{context.Canceled}, "context canceled\nEOF\n" + unlocked.Error()},
		{"another lock was lost", context.Canceled, lost, nil, false, []error{context.Canceled}, []error{ErrLockLost},
			"context canceled"},
		{"lost, and its own error", io.EOF, lost, unlocked, false, []error{io.EOF, ErrLockLost}, nil,
			"EOF\n" + unlocked.Error()},
		{"not confirmed", io.EOF, nil, io.ErrNoProgress, false, []error{io.EOF, io.ErrNoProgress}, nil,
			"EOF\n" + io.ErrNoProgress.Error()},
	} {
		err := outcome(test.err, test.cause, test.release, test.several)
		checkOutcome(t, test.name, err, test.matches, test.not, test.text)
	}
	quorum := &QuorumError{}
	assert.ErrorAs(t, outcome(errors.Join(context.Canceled, quorum), lost, unlocked, false), new(*QuorumError))
}

// A contextThatEnds ends the goroutine that calls Done, as soon as the lock is held.
type contextThatEnds struct {
	context.Context
	held func() bool
}

func (c contextThatEnds) Done() <-chan struct{} {
	if c.held() {
		runtime.Goexit()
	}
	return c.Context.Done()
}

// A context that ends the goroutine when the lock was just acquired leaves no hold that is renewed for no owner.
func TestContextThatEndsTheGoroutineLeavesNoHold(t *testing.T) {
	nothing := func(context.Context) error { return nil }
	for name, call := range map[string]func(b *bench, other *Client, ctx context.Context) error{
		"Do": func(b *bench, _ *Client, ctx context.Context) error {
			return b.client().NewLock(b.name).Do(ctx, nothing)
		},
		"TryDo": func(b *bench, _ *Client, ctx context.Context) error {
			_, err := b.client().NewLock(b.name).TryDo(ctx, soon, nothing)
			return err
		},
		"Lead": func(b *bench, _ *Client, ctx context.Context) error {
			return b.client().NewElection(b.name).Lead(ctx, nothing)
		},
		"MultiLock": func(b *bench, other *Client, ctx context.Context) error {
			c := b.client()
			return c.NewMultiLock(c.NewLock(b.name), other.NewLock(b.name)).Lock(ctx)
		},
		"TryLock of a MultiLock": func(b *bench, other *Client, ctx context.Context) error {
			c := b.client()
			_, err := c.NewMultiLock(c.NewLock(b.name), other.NewLock(b.name)).TryLock(ctx, soon, 0)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, second := newBench(t, testredis.Mini(t).Addr()), newBench(t, testredis.Mini(t).Addr())
			other, name := second.client(), b.name+"*"
			keys := func() int {
				ctx := context.Background()
				return len(b.rdb.Keys(ctx, name).Val()) + len(second.rdb.Keys(ctx, name).Val())
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			ended := make(chan struct{})
			returned := false
			go func() {
				defer close(ended)
				_ = call(b, other, contextThatEnds{ctx, func() bool { return keys() > 0 }})
				returned = true
			}()
			await(b, "the goroutine ends", ended)
			assert.False(t, returned, "the context has not ended the goroutine")
			testredis.Await(t, "the locks are free", soon, func() bool { return keys() == 0 })
		})
	}
}
