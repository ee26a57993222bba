package waitqueue_test

import (
	"cmp"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/relock-go/relock/internal/waitqueue"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/relock-go/relock/internal/tests/seeds"
)

var properties = seeds.New("waitqueue")

type (
	queue  = waitqueue.Queue[string]
	waiter = waitqueue.Waiter[string]
)

// done reports whether w was woken.
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

// Waiters that came at the same time are admitted in the order of their arrival.
func TestWaitersOfOneMomentAreAdmittedInOrder(t *testing.T) {
	var q queue
	for _, name := range []string{"a", "b", "c"} {
		q.Add(name, 7)
	}
	require.Equal(t, []string{"a", "b", "c"}, names(q.All()))
}

func TestAllWaitersAreRefused(t *testing.T) {
	var q queue
	q.FailBehind(0, errRefused) // no caller waits
	q.TryEnter()
	all := []*waiter{q.Add("a", 1), q.Add("b", 2)}
	require.Equal(t, 2, q.Len())
	q.FailBehind(0, errRefused)
	for _, w := range all {
		require.True(t, done(w))
		require.ErrorIs(t, w.Err, errRefused)
		q.Leave(w)
	}
	require.Zero(t, q.Len())
	require.True(t, q.Taken())
}

var errRefused = errors.New("refused")

// A Queue behaves like the simplest model: a flag for the owner inside, and a list of the waiters.
func TestQueueIsItsModel(t *testing.T) {
	properties.Play(t, 1, func(q *seeds.Sequence) {
		q.SetRapid()
		rapid.Check(q.T, func(rt *rapid.T) { behavesLikeAModel(rt, q.Digest) })
	})
}

func behavesLikeAModel(rt *rapid.T, digest *seeds.Digest) {
	var q queue
	inside, first := false, (*waiter)(nil) // first is that of the owner inside, unless it came by TryEnter
	var waiting, away []*waiter
	numbers := time.Duration(0)
	next := func() {
		if inside = len(waiting) > 0; inside {
			first, waiting = waiting[0], waiting[1:]
		} else {
			first = nil
		}
	}
	rt.Repeat(map[string]func(*rapid.T){
		"try to enter": func(rt *rapid.T) {
			require.Equal(rt, !inside, q.TryEnter(), "try to enter")
			inside = true
		},
		"enqueue": func(rt *rapid.T) {
			if !inside {
				rt.Skip()
			}
			numbers++
			waiting = append(waiting, q.Add("", numbers))
		},
		"leave": func(rt *rapid.T) {
			if !inside {
				rt.Skip()
			}
			q.Release()
			next()
		},
		"give up a place": func(rt *rapid.T) {
			if len(waiting) == 0 {
				rt.Skip()
			}
			i := rapid.IntRange(0, len(waiting)-1).Draw(rt, "which")
			q.Leave(waiting[i])
			waiting = slices.Delete(waiting, i, i+1)
		},
		"give up a turn": func(rt *rapid.T) {
			if first == nil {
				rt.Skip()
			}
			q.Leave(first)
			next()
		},
		"turn away": func(*rapid.T) {
			q.FailBehind(1, errRefused)
			if len(waiting) > 0 {
				away, waiting = append(away, waiting[1:]...), waiting[:1]
			}
		},
		"come back when turned away": func(rt *rapid.T) {
			if len(away) == 0 || !inside {
				rt.Skip()
			}
			back := q.Add("", away[0].Since)
			away = away[1:]
			at, _ := slices.BinarySearchFunc(
				waiting,
				back.Since,
				func(t *waiter, n time.Duration) int { return cmp.Compare(t.Since, n) },
			)
			waiting = slices.Insert(waiting, at, back)
		},
		"give up when turned away": func(rt *rapid.T) {
			if len(away) == 0 {
				rt.Skip()
			}
			q.Leave(away[0])
			away = away[1:]
		},
		"": func(rt *rapid.T) {
			digest.Note(inside, len(waiting), len(away), numbers)
			require.Equal(rt, inside, q.Taken(), "taken")
			require.Len(rt, q.All(), len(waiting), "waiters")
			if first != nil {
				require.True(rt, done(first), "the owner inside was not told")
				require.NoError(rt, first.Err, "the owner inside")
			}
			require.False(rt, slices.ContainsFunc(waiting, done), "a waiter was admitted too early")
			require.False(rt, slices.ContainsFunc(away, func(t *waiter) bool { return !done(t) || t.Err != errRefused }),
				"a waiter that was turned away still waits")
		},
	})
}
