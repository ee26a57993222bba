package main

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A pretendedPeer has a lock that is free when its channel is closed.
type pretendedPeer struct {
	free chan struct{}
	late time.Duration // how long a call takes to notice it
	err  error         // of all calls

	mu       sync.Mutex // guards below
	left     []time.Time
	released []time.Time
}

func (p *pretendedPeer) Acquire(ctx context.Context, _ string) (func() error, error) {
	if p.err != nil {
		return nil, p.err
	}
	select {
	case <-p.free:
		time.Sleep(p.late)
		return func() error { p.note(&p.released); return nil }, nil
	case <-ctx.Done():
		p.note(&p.left)
		return nil, ctx.Err()
	}
}

func (p *pretendedPeer) note(when *[]time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*when = append(*when, time.Now())
}

func (p *pretendedPeer) Share(ctx context.Context, name string) (func() error, error) {
	return p.Acquire(ctx, name)
}

func (p *pretendedPeer) Close() {}

const hardlyAny = 1 << 30 // calls that stay, one in so many

func TestCallThatLeavesIsRepeatedUntilTheEndOfTheSlice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := &pretendedPeer{free: make(chan struct{})}
		l := &leaving{
			quitting: quitting{oneIn: hardlyAny, within: 10 * time.Millisecond},
			end:      began.Add(time.Second),
		}
		time.AfterFunc(2*time.Second, func() { close(p.free) })
		release, err := leaver{p, l}.Acquire(t.Context(), "bench")
		require.NoError(t, err)
		require.NoError(t, release())
		assert.Equal(t, 2*time.Second, time.Since(began), "after the end it stays until it is served")
		assert.Len(t, p.left, int(l.left.Load()), "all that left were counted")
		assert.Greater(t, l.left.Load(), int64(99), "each waits for 10 ms at most")
		assert.Less(t, p.left[len(p.left)-1].Sub(began), time.Second+10*time.Millisecond)
	})
}

func TestCallsOfABurstAreCanceledAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := &pretendedPeer{free: make(chan struct{})}
		l := &leaving{
			quitting: quitting{oneIn: hardlyAny, within: 20 * time.Millisecond, together: true},
			end:      began.Add(90 * time.Millisecond),
		}
		l.begin(t.Context())
		go l.cancelTogether(t.Context())
		time.AfterFunc(time.Second, func() { close(p.free) })
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				_, err := leaver{p, l}.Acquire(t.Context(), "bench")
				assert.NoError(t, err)
			})
		}
		all.Wait()
		assert.Equal(t, time.Second, time.Since(began))
		require.Len(t, p.left, 50, "five times ten")
		for i, at := range p.left {
			assert.Equal(t, time.Duration(1+i/10)*20*time.Millisecond, at.Sub(began))
		}
		assert.Error(t, l.burst.Load().ctx.Err(), "no call can wait in a burst that nothing cancels")
	})
}

func TestOnlyItsOwnCancellationMakesACallerComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leaving{quitting: quitting{oneIn: hardlyAny, within: time.Hour}, end: time.Now().Add(time.Hour)}
		broken := errors.New("broken")
		_, err := leaver{&pretendedPeer{err: broken}, l}.Acquire(t.Context(), "bench")
		assert.ErrorIs(t, err, broken)
		ctx, giveUp := context.WithCancel(t.Context())
		giveUp()
		_, err = leaver{&pretendedPeer{}, l}.Acquire(ctx, "bench")
		assert.ErrorIs(t, err, context.Canceled)
		assert.Zero(t, l.left.Load())
	})
}

func TestWokenReadersAreMeasuredByTheLastOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := woken{trip: far, readers: 3}
		freed := make(chan struct{})
		var readers []peer
		for _, late := range []time.Duration{2 * time.Millisecond, 5 * time.Millisecond, time.Millisecond} {
			readers = append(readers, &pretendedPeer{free: freed, late: late})
		}
		began := time.Now()
		took, err := w.once(t.Context(), releases(func() { close(freed) }), readers)
		require.NoError(t, err)
		assert.Equal(t, 5*time.Millisecond, took)
		assert.GreaterOrEqual(t, time.Since(began), w.pause(), "the readers are asleep before")
		for _, p := range readers {
			assert.Equal(t, []time.Time{time.Now()}, p.(*pretendedPeer).released, "it keeps the lock until all have it")
		}
	})
}

func TestReaderThatIsNotServedEndsTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		freed := make(chan struct{})
		served, stuck := &pretendedPeer{free: freed}, &pretendedPeer{}
		_, err := woken{readers: 2}.once(t.Context(), releases(func() { close(freed) }), []peer{served, stuck})
		assert.ErrorIs(t, err, context.DeadlineExceeded, "it is counted as not served")
		assert.Len(t, served.released, 1)
	})
}

// A releases is a peer that has its lock at once.
type releases func()

func (f releases) Acquire(context.Context, string) (func() error, error) {
	return func() error { f(); return nil }, nil
}

func (releases) Close() {}

func TestWaitThatIsGivenUpIsNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		got, err := handedFor(t.Context(), 3*time.Second, func() (time.Duration, error) {
			time.Sleep(time.Second)
			if calls++; calls == 2 {
				return patience, context.DeadlineExceeded
			}
			return time.Millisecond, nil
		})
		require.NoError(t, err)
		assert.Equal(t, handed{[]time.Duration{time.Millisecond, patience, time.Millisecond}, 1}, got)
		broken := errors.New("broken")
		_, err = handedFor(t.Context(), time.Second, func() (time.Duration, error) { return 0, broken })
		assert.ErrorIs(t, err, broken)
	})
}

// A row of relock that is compared with another kind of relock has a ratio in the document, and no ratio to itself.
func TestRelockIsComparedWithItsOtherKinds(t *testing.T) {
	r := &result{workload: workload{title: "fenced lock", figure: rate}, rows: []row{
		{kindOf("relock fenced"), []sample{{rate: 50}}},
		{kindOf("relock"), []sample{{rate: 100}}},
	}}
	assert.Contains(t, markdown([]*result{r}, families, true, ""), "| 0.50×, of one round |")
	r.rows = r.rows[1:]
	assert.NotContains(t, markdown([]*result{r}, families, true, ""), "for comparison")
	r.rows = append(r.rows, row{kindOf(noneLeaves), []sample{{rate: 80}}})
	assert.Contains(t, markdown([]*result{r}, families, true, ""), "| 1.25×, of one round |")
}
