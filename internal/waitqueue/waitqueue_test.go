package waitqueue_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/relock-go/relock/internal/waitqueue"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type (
	queue  = waitqueue.Queue[string]
	waiter = waitqueue.Waiter[string]
)

// done says whether w was woken.
func done(w *waiter) bool {
	select {
	case <-w.Done:
		return true
	default:
		return false
	}
}

func names(ws []*waiter) (all []string) {
	for _, w := range ws {
		all = append(all, w.Value)
	}
	return all
}

func TestOneIsAdmittedAtATime(t *testing.T) {
	var q queue
	require.True(t, q.TryEnter())
	require.False(t, q.TryEnter())
	require.True(t, q.Taken())
	q.Release()
	require.False(t, q.Taken())
	require.True(t, q.TryEnter())
}

func TestWaitersAreAdmittedInOrder(t *testing.T) {
	var q queue
	require.True(t, q.TryEnter())
	a, b := q.Add("a", 1), q.Add("b", 2)
	require.Same(t, a, q.First())
	require.Equal(t, []string{"a", "b"}, names(q.All()))
	q.Release()
	require.True(t, done(a))
	require.False(t, done(b))
	require.False(t, q.TryEnter(), "a newcomer slips in before a waiter")
	q.Release()
	require.True(t, done(b))
	q.Release()
	require.Nil(t, q.First())
	require.True(t, q.TryEnter())
}

func TestOldNumberKeepsItsPlace(t *testing.T) {
	var q queue
	q.TryEnter()
	q.Add("b", 2)
	q.Add("d", 4)
	q.Add("c", 3)
	q.Add("a", 1)
	require.Equal(t, []string{"a", "b", "c", "d"}, names(q.All()))
}

func TestLeavingPassesOnWhatWasGranted(t *testing.T) {
	var q queue
	q.TryEnter()
	a, b, c := q.Add("a", 1), q.Add("b", 2), q.Add("c", 3)
	q.Leave(b)
	require.False(t, done(b))
	require.False(t, b.Waits())
	q.Release()
	require.True(t, done(a))
	q.Leave(a) // it was admitted and does not want it
	require.True(t, done(c))
	q.Leave(c)
	require.False(t, q.Taken())
}

func TestRefusedWaitersHaveNothingToPassOn(t *testing.T) {
	var q queue
	q.TryEnter()
	a, b, c := q.Add("a", 1), q.Add("b", 2), q.Add("c", 3)
	refused := errors.New("refused")
	q.FailOthers(refused)
	require.False(t, done(a))
	for _, w := range []*waiter{b, c} {
		require.True(t, done(w))
		require.ErrorIs(t, w.Err, refused)
		q.Leave(w)
	}
	require.True(t, q.Taken())
	require.Same(t, a, q.First())
}

// Whatever is done in whatever order, exactly one is admitted while the queue is
// taken, and the waiters keep their order.
func TestRandomWorkKeepsOrder(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var q queue
		var waiting []*waiter
		var admitted *waiter // nil with taken: it came by TryEnter
		taken, number := false, uint64(0)
		next := func() { // the model of Release
			if taken = len(waiting) > 0; taken {
				admitted, waiting = waiting[0], waiting[1:]
			} else {
				admitted = nil
			}
		}
		for range 100 {
			switch r.IntN(4) {
			case 0:
				assert.Equal(t, !taken, q.TryEnter())
				taken = true
			case 1:
				if taken {
					number++
					waiting = append(waiting, q.Add(fmt.Sprint(number), number))
				}
			case 2:
				if taken {
					q.Release()
					next()
				}
			case 3:
				if len(waiting) > 0 {
					at := r.IntN(len(waiting))
					q.Leave(waiting[at])
					waiting = slices.Delete(waiting, at, at+1)
				} else if admitted != nil {
					q.Leave(admitted)
					next()
				}
			}
			require.Equal(t, taken, q.Taken(), "seed %d", seed)
			require.Equal(t, names(waiting), names(q.All()), "seed %d", seed)
			if admitted != nil {
				require.True(t, done(admitted), "seed %d", seed)
			}
			for _, w := range waiting {
				require.False(t, done(w), "seed %d", seed)
			}
		}
	}
}
