package locks

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// campaign returns a term of e, which is vacant or soon will be.
func campaign(b *locktest.Bench, e *Election) *Term {
	b.Helper()
	ctx, cancel := context.WithTimeout(ctx, locktest.Soon)
	defer cancel()
	term, err := e.Campaign(ctx)
	b.Must(err)
	return term
}

// leads checks that this Client is the leader, or, if it is nil, that there is none.
func leads(b *locktest.Bench, e *Election, c *Client) Leader {
	b.Helper()
	leader, ok, err := e.Leader(ctx)
	b.Must(err)
	require.Equal(b, c != nil, ok, "there is a leader")
	require.Equal(b, !ok, leader.Vacant(), "vacancy")
	if c != nil {
		require.Equal(b, c.ID(), leader.Client, "client of the leader")
	}
	return leader
}

// S1, S6: candidates of several processes lead one at a time, and the tokens of their terms grow.
func TestElectionHasOneLeader(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		var together section
		var mu sync.Mutex // guards numbers
		var numbers []int64
		var all sync.WaitGroup
		for range 3 {
			e := b.Client().NewElection(b.LockName)
			for range 2 {
				waitgroup.Go(&all, func() {
					for range 8 {
						assert.NoError(b, e.Lead(ctx, func(within context.Context) error {
							together.visit(b, true)
							number, err := e.Token(within)
							mu.Lock()
							defer mu.Unlock()
							numbers = append(numbers, number)
							return err
						}))
					}
				})
			}
		}
		all.Wait()
		require.Len(t, numbers, 48, "terms")
		for i := range numbers[1:] {
			assert.Greater(t, numbers[i+1], numbers[i], "number of a term, after the one before")
		}
	})
}

func TestResignMayBeRepeated(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		c, other := b.Client(), b.Client()
		e := c.NewElection(b.LockName)
		term := campaign(b, e)
		within := term.Context()
		assert.Equal(t, term.Token(), leads(b, other.NewElection(b.LockName), c).Token, "number of the term")
		for range 3 {
			b.Must(term.Resign(ctx))
		}
		b.Ends(within, context.Canceled)
		leads(b, e, nil)

		next := campaign(b, other.NewElection(b.LockName))
		b.Must(term.Resign(ctx)) // and takes nothing from the next leader
		leads(b, e, other)
		b.Must(next.Resign(ctx))

		lost := campaign(b, e)
		b.Forget()
		err := lost.Resign(ctx)
		b.MustBe(err, ErrLockLost)
		assert.ErrorContains(t, err, "relock: resign ")
		b.Must(lost.Resign(ctx))
	})
}

// A guard of a term ends with its context, and when the leadership is lost.
func TestTermGuard(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		e := b.Client(WithWatchdogTimeout(1500 * time.Millisecond)).NewElection(b.LockName)
		term := campaign(b, e)
		parent, cancel := context.WithTimeout(ctx, time.Hour)
		guarded, err := term.Guard(parent)
		b.Must(err)
		want, _ := parent.Deadline()
		until, _ := guarded.Deadline()
		assert.Equal(t, want, until, "deadline")
		number, err := e.Token(guarded)
		b.Must(err)
		assert.Equal(t, term.Token(), number, "number of the term that the guard belongs to")
		cancel()
		b.Ends(guarded, context.Canceled)
		b.Must(term.Context().Err())

		guarded, err = term.Guard(ctx)
		b.Must(err)
		b.Must(term.Resign(ctx))
		b.Ends(guarded, context.Canceled)
		_, err = term.Guard(ctx)
		b.MustBe(err, ErrNotHeld)

		lost := campaign(b, e)
		guarded, err = lost.Guard(ctx)
		b.Must(err)
		b.Forget()
		b.Ends(guarded, ErrLockLost)
		_, err = lost.Guard(ctx)
		b.MustBe(err, ErrLockLost)
		b.MustBe(lost.Resign(ctx), ErrLockLost)
	})
}

// The work of a leader ends before it resigns.
func TestLeadWaitsForTheWork(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		ctx, cancel := context.WithCancel(ctx)
		c := b.Client()
		e, rival := c.NewElection(b.LockName), b.Client().NewLock(b.LockName, Fenced())
		leading, finish, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		var inner context.Context
		go func() {
			done <- e.Lead(ctx, func(within context.Context) error {
				inner = within
				close(leading)
				<-within.Done()
				<-finish
				return io.ErrNoProgress
			})
		}()
		locktest.Await(b, "the candidate leads", leading)
		cancel()
		locktest.Await(b, "the ctx of the work ends first", inner.Done())
		b.Tries(rival, false)
		leads(b, e, c)
		close(finish)
		err := locktest.Await(b, "Lead returns", done)
		b.MustBe(err, io.ErrNoProgress)
		assert.NotErrorIs(t, err, ErrNotHeld)
		leads(b, e, nil)
	})
}

func TestLeadTellsOfALostLead(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		e := b.Client(WithWatchdogTimeout(1500 * time.Millisecond)).NewElection(b.LockName)
		err := e.Lead(ctx, func(within context.Context) error {
			b.Forget()
			locktest.Await(b, "the ctx of the work ends", within.Done())
			assert.ErrorIs(b, context.Cause(within), ErrLockLost)
			return io.ErrNoProgress
		})
		b.MustBe(err, io.ErrNoProgress)
		b.MustBe(err, ErrLockLost)
		assert.ErrorContains(t, err, "relock: unlock ")
		assert.NotContains(t, err.Error(), "release")
		assert.PanicsWithValue(t, "mine", func() {
			_ = e.Lead(ctx, func(context.Context) error { panic("mine") })
		})
		leads(b, e, nil)
	})
}

// A thief takes the leadership as soon as it was granted, some times.
type thief struct {
	NopObserver
	times   int
	granted int
	lock    *Lock
}

func (o *thief) Acquired(ctx context.Context, _ AcquiredEvent) {
	if o.granted++; o.granted <= o.times {
		_, _ = o.lock.ForceUnlock(context.WithoutCancel(ctx))
	}
}

// A leadership that is lost before there is a term has not begun: the caller campaigns again, but not for ever.
func TestCampaignGoesOnAfterALossBeforeItsTerm(t *testing.T) {
	for name, c := range map[string]struct {
		steals, granted int
		lost            bool
	}{
		"lost twice": {2, 3, false}, "lost always": {1000, 5, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := locktest.NewBench(t, testredis.Mini(t).Addr())
			o := &thief{times: c.steals}
			client := b.Client(WithObserver(o))
			o.lock = client.NewLock(b.LockName)
			term, err := client.NewElection(b.LockName).Campaign(ctx)
			assert.Equal(t, c.lost, errors.Is(err, ErrLockLost), "%v", err)
			assert.Equal(t, c.granted, o.granted, "grants")
			if assert.Equal(t, c.lost, term == nil) && !c.lost {
				b.Must(term.Resign(ctx))
			}
			if !c.lost {
				o.granted = 0
				b.Must(client.NewElection(b.LockName).Lead(ctx, func(within context.Context) error {
					return within.Err()
				}))
				assert.Equal(t, c.granted, o.granted, "grants")
			}
		})
	}
}

// The methods of a nil Term are safe, like those of a nil Hold: Campaign returns nil with an error.
func TestNilTerm(t *testing.T) {
	for what, term := range map[string]*Term{"nil": nil, "zero": new(Term)} {
		assert.Zero(t, term.Token(), what)
		for name, err := range map[string]error{
			"Resign": term.Resign(ctx), "Guard": locktest.Second(term.Guard(ctx)), "Context": context.Cause(term.Context()),
		} {
			assert.ErrorIs(t, err, ErrNotHeld, "%s of a %s Term", name, what)
			assert.ErrorIs(t, err, ErrInvalid, "%s of a %s Term", name, what)
		}
	}
}

// Lead without a function fails before it campaigns.
func TestLeadWithoutAFunction(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	e := b.Client().NewElection(b.LockName)
	err := e.Lead(ctx, nil)
	b.MustBe(err, ErrInvalid)
	assert.ErrorContains(t, err, "lead")
	leads(b, e, nil)
	assert.Empty(t, b.Keys(), "keys")
}

// Observe returns the present state first, and then each change, including vacancies.
func TestObserveSeesLeadersAndVacancies(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		ctx, cancel := context.WithCancel(ctx)
		c := b.Client()
		e := c.NewElection(b.LockName)
		onlooker := b.Client(WithPollInterval(10 * time.Millisecond))
		seen, ended := make(chan locktest.Pair[Leader]), make(chan struct{})
		go func() {
			defer close(ended)
			for leader, err := range onlooker.NewElection(b.LockName).Observe(ctx) {
				seen <- locktest.PairOf(leader, err)
			}
		}()
		next := func() (Leader, error) { return locktest.Await(b, "a change", seen).Get() }
		mustSee := func(want Leader) {
			t.Helper()
			got, err := next()
			b.Must(err)
			got.Owner = ""
			require.Equal(t, want, got, "leader")
		}
		mustSee(Leader{})
		for range 2 { // the same Client has another term
			term := campaign(b, e)
			mustSee(Leader{Client: c.ID(), Token: term.Token()})
			b.Must(term.Resign(ctx))
			mustSee(Leader{})
		}
		b.Must(b.Rdb.Set(ctx, b.LockName, "somebody else's", 0).Err())
		_, err := next()
		b.MustBe(err, ErrNotALock) // once
		b.Forget()
		mustSee(Leader{}) // the state after an error
		locktest.Stays(t, "no change", seen, 100*time.Millisecond)
		cancel()
		locktest.Await(b, "the sequence ends", ended)
	})
}

// A label that becomes readable or unreadable is not a change of the leader.
func TestObserveReportsNoChangeOfALabelAlone(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	ctx, cancel := context.WithCancel(ctx)
	c := b.Client()
	term := campaign(b, c.NewElection(b.LockName))
	looks := new(locktest.Counter)
	rdb := testredis.Client(t, b.Addr)
	rdb.AddHook(looks)
	onlooker := b.ClientOn(rdb, WithPollInterval(10*time.Millisecond))
	seen, ended := make(chan locktest.Pair[Leader]), make(chan struct{})
	go func() {
		defer close(ended)
		for leader, err := range onlooker.NewElection(b.LockName).Observe(ctx) {
			seen <- locktest.PairOf(leader, err)
		}
	}()
	first, err := locktest.Await(b, "the leader", seen).Get()
	b.Must(err)
	assert.Equal(t, c.ID(), first.Client)
	assert.Empty(t, first.Label)
	key := record.ClientKey(c.ID())
	for range 3 {
		b.Must(b.Rdb.HSet(ctx, key, "label", "billing", "host", "h1").Err())
		labelled, _, err := onlooker.NewElection(b.LockName).Leader(ctx)
		b.Must(err)
		require.Equal(t, "billing", labelled.Label)
		for _, next := range []func(){func() { b.Must(b.Rdb.Del(ctx, key).Err()) }, func() {}} {
			before := looks.N.Load()
			testredis.Await(b, "Observe looks a few times more, and tells nothing", locktest.Soon, func() bool {
				select {
				case told := <-seen:
					assert.Fail(t, "Observe told a change", "%+v", told)
				default:
				}
				return looks.N.Load() > before+6
			})
			next()
		}
	}
	b.Must(term.Resign(ctx))
	vacant, err := locktest.Await(b, "the vacancy", seen).Get()
	b.Must(err)
	assert.True(t, vacant.Vacant())
	cancel()
	locktest.Await(b, "the sequence ends", ended)
}

func TestObserveEndsForGood(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client(WithPollInterval(time.Hour))
	for leader, err := range c.NewElection(b.LockName).Observe(ctx) {
		b.Must(err)
		assert.True(t, leader.Vacant())
		break
	}
	var errs []error
	for _, err := range c.NewElection(b.LockName).Observe(ctx) {
		errs = append(errs, err)
		if err == nil {
			go func() { assert.NoError(b, c.Close()) }() // ends the sleep
		}
	}
	require.Len(t, errs, 2)
	b.Must(errs[0])
	b.MustBe(errs[1], ErrClosed)
}

func TestElectionBadInput(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client()
	for name, e := range map[string]*Election{
		"empty name": c.NewElection(""), "long name": c.NewElection(strings.Repeat("x", record.LongestName+1)),
		"nil client": (*Client)(nil).NewElection(b.LockName), "zero": new(Election),
		"bad option": c.NewElection(b.LockName, MaxHold(-1)),
	} {
		assert.ErrorIs(t, locktest.Second(e.Campaign(ctx)), ErrInvalid, name)
		assert.ErrorIs(t, e.Lead(ctx, func(context.Context) error { return nil }), ErrInvalid, name)
		assert.ErrorIs(t, locktest.Second(e.Token(ctx)), ErrInvalid, name)
		_, _, err := e.Leader(ctx)
		assert.ErrorIs(t, err, ErrInvalid, name)
		for _, err := range e.Observe(ctx) {
			assert.ErrorIs(t, err, ErrInvalid, name)
		}
	}
	e := c.NewElection(b.LockName)
	assert.ErrorIs(t, locktest.Second(e.Campaign(locktest.NilCtx)), ErrInvalid)
	for _, err := range e.Observe(locktest.NilCtx) {
		assert.ErrorIs(t, err, ErrInvalid)
	}
	_, err := e.Token(ctx)
	assert.True(t, errors.Is(err, ErrNotHeld) && !errors.Is(err, ErrLockLost), "%v", err)
}
