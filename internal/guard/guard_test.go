package guard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errLost = errors.New("lost")

// A fakeHold is a hold without a lock.
type fakeHold struct {
	mu   sync.Mutex // guards below
	lost error
	over error // why there can be no guards
	ends Ends
}

func (h *fakeHold) locked(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

func (h *fakeHold) Lost() (err error) {
	h.locked(func() { err = h.lost })
	return err
}

func (h *fakeHold) EndOf(done <-chan struct{}) (end *End, err error) {
	h.locked(func() { end, err = h.ends[done], h.over })
	return end, err
}

func (h *fakeHold) KeepEnd(done <-chan struct{}, end *End) (kept *End, err error) {
	h.locked(func() {
		if err = h.over; err == nil {
			kept = h.ends.Keep(done, end)
		}
	})
	return kept, err
}

func (h *fakeHold) ForgetEnd(done <-chan struct{}, end *End) {
	h.locked(func() { h.ends.Forget(done, end) })
}

func (h *fakeHold) lose() {
	var ends Ends
	h.locked(func() { h.lost, h.over, ends = errLost, errLost, h.ends.Take() })
	ends.EndAll(errLost)
}

func (h *fakeHold) count() (n int) {
	h.locked(func() { n = len(h.ends) })
	return n
}

func guardOf(t *testing.T, ctx context.Context, h Hold) context.Context {
	t.Helper()
	g, err := New(ctx, h)
	require.NoError(t, err)
	return g
}

// A guard is canceled with its hold and with its parent, and its cause tells which of them it was.
func TestGuardEndsWithItsHoldAndItsParent(t *testing.T) {
	h := new(fakeHold)
	parent, cancel := context.WithCancelCause(context.Background())
	g := guardOf(t, parent, h)
	child, stop := context.WithCancel(g)
	defer stop()
	assert.NoError(t, g.Err())
	h.lose()
	<-g.Done()
	<-child.Done()
	assert.Equal(t, errLost, context.Cause(g))
	assert.Equal(t, errLost, context.Cause(child))
	assert.NoError(t, parent.Err())
	_, err := New(parent, h)
	assert.Equal(t, errLost, err, "a guard of a hold that was lost")

	other := errors.New("the parent")
	g = guardOf(t, parent, new(fakeHold))
	cancel(other)
	<-g.Done()
	assert.Equal(t, other, context.Cause(g))
}

// Err reports a loss before any goroutine has canceled the guard.
// Mocks print the contexts that they are given.
func TestGuardsPrintWithoutAddresses(t *testing.T) {
	g, err := New(context.Background(), &fakeHold{})
	require.NoError(t, err)
	c, end := NewCall(g)
	defer end()
	child, cancel := context.WithCancel(c)
	defer cancel()
	for _, verb := range []string{"%v", "%+v", "%s"} {
		assert.Equal(t, "relock.Guard", fmt.Sprintf(verb, g))
		assert.Equal(t, "relock.Guard", fmt.Sprintf(verb, c))
		assert.Equal(t, "relock.Guard.WithCancel", fmt.Sprintf(verb, child))
	}
}

func TestErrAsksTheHold(t *testing.T) {
	h := new(fakeHold)
	g := guardOf(t, context.Background(), h)
	nested := guardOf(t, g, new(fakeHold))
	call, end := NewCall(nested)
	defer end()
	h.locked(func() { h.lost = errLost })
	assert.ErrorIs(t, call.Err(), context.Canceled, "a call under a guard under the guard")
	assert.Equal(t, errLost, context.Cause(call))
	assert.Equal(t, errLost, context.Cause(nested))
}

// Guards with the same Done channel of their parents share an End, which the hold keeps until the parents are done.
func TestGuardsOfOneParentShareAnEnd(t *testing.T) {
	h := new(fakeHold)
	type ctxKey struct{}
	parent, cancel := context.WithCancel(context.Background())
	one := guardOf(t, parent, h)
	two := guardOf(t, context.WithValue(parent, ctxKey{}, "two"), h)
	assert.Equal(t, 1, h.count())
	assert.Equal(t, one.Done(), two.Done())
	assert.Nil(t, one.Value(ctxKey{}))
	assert.Equal(t, "two", two.Value(ctxKey{}), "each has the values of its parent")
	cancel()
	assert.Error(t, one.Err())
	assert.Error(t, two.Err())
	assert.Eventually(t, func() bool { return h.count() == 0 }, 10*time.Second, time.Millisecond, "the hold keeps the end")
	ended := guardOf(t, parent, h)
	assert.Error(t, ended.Err())
	assert.Zero(t, h.count(), "of a parent that has ended nothing is kept")
}

// A context that is canceled with the hold is its own guard, and so are contexts derived from it. A context that is
// detached from it is not.
func TestGuardIsItsOwnGuard(t *testing.T) {
	h := new(fakeHold)
	g := guardOf(t, context.Background(), h)
	assert.Equal(t, g, guardOf(t, g, h))
	type ctxKey struct{}
	below := context.WithValue(g, ctxKey{}, 1)
	assert.Equal(t, below, guardOf(t, below, h))
	other := guardOf(t, g, new(fakeHold))
	assert.Equal(t, other, guardOf(t, other, h), "a guard of another hold, which ends with its parent")
	detached := context.WithoutCancel(g)
	assert.NotEqual(t, detached, guardOf(t, detached, h))
	assert.Equal(t, 1, h.count(), "of parents without an end")
}

// The context of a call is canceled when its function has returned, and with its guard.
func TestCallEndsWithItsFunction(t *testing.T) {
	h := new(fakeHold)
	g := guardOf(t, context.Background(), h)
	call, end := NewCall(g)
	deadline, ok := call.Deadline()
	assert.Equal(t, time.Time{}, deadline)
	assert.False(t, ok)
	assert.NoError(t, call.Err())
	end()
	assert.ErrorIs(t, call.Err(), context.Canceled)
	assert.NoError(t, g.Err())
	call, end = NewCall(g)
	defer end()
	h.lose()
	<-call.Done()
	assert.Equal(t, errLost, context.Cause(call))
}

// When two goroutines create the first guards of a parent at the same time, the hold keeps the first End, and
// forgetting the second one changes nothing.
func TestEndsKeepTheFirst(t *testing.T) {
	var ends Ends
	done := make(chan struct{})
	first, second := new(End), new(End)
	assert.Same(t, first, ends.Keep(done, first))
	assert.Same(t, first, ends.Keep(done, second))
	ends.Forget(done, second)
	assert.Len(t, ends, 1, "another end is forgotten")
	assert.Equal(t, Ends{done: first}, ends.Take())
	assert.Empty(t, ends.Take())
	ends.Forget(done, first)
}

// A slowHold has forgotten the End of a parent that is canceled just now before it keeps it.
type slowHold struct {
	fakeHold
	cancel func()
	forgot chan struct{}
}

func (h *slowHold) KeepEnd(done <-chan struct{}, end *End) (*End, error) {
	h.cancel()
	<-h.forgot
	return h.fakeHold.KeepEnd(done, end)
}

func (h *slowHold) ForgetEnd(done <-chan struct{}, end *End) {
	h.fakeHold.ForgetEnd(done, end)
	select {
	case h.forgot <- struct{}{}:
	default:
	}
}

// A parent that is canceled while its guard is made leaves no End in the hold.
func TestHoldKeepsNoEndOfAParentThatIsCanceledMeanwhile(t *testing.T) {
	parent, cancel := context.WithCancel(context.Background())
	h := &slowHold{cancel: cancel, forgot: make(chan struct{}, 1)}
	g := guardOf(t, parent, h)
	assert.Error(t, g.Err())
	assert.Zero(t, h.count(), "the Ends that the hold keeps")
}

// A brokenCtx panics once it is broken.
type brokenCtx struct {
	context.Context
	broken *bool
}

func (c brokenCtx) Done() <-chan struct{} {
	if *c.broken {
		panic("broken")
	}
	return c.Context.Done()
}

// A parent that panics keeps no other guard from its end.
func TestAllGuardsEndAlthoughAParentPanics(t *testing.T) {
	ends := make(Ends)
	var guards []context.Context
	broken := false
	for range 3 {
		parent, cancel := context.WithCancel(context.Background())
		defer cancel()
		h := new(fakeHold)
		guards = append(guards, guardOf(t, brokenCtx{parent, &broken}, h))
		maps.Copy(ends, h.ends.Take())
	}
	broken = true
	assert.PanicsWithValue(t, "broken", func() { ends.EndAll(errLost) })
	broken = false
	for _, g := range guards {
		assert.Equal(t, errLost, context.Cause(g))
	}
}
