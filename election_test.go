package relock

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

// campaign returns a term of e, which is vacant or soon will be.
func (b *bench) campaign(e *Election) *Term {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	term, err := e.Campaign(ctx)
	b.must(err)
	return term
}

// leads checks that this Client is the leader, or, if it is nil, that there is none.
func (b *bench) leads(e *Election, c *Client) Leader {
	b.Helper()
	leader, ok, err := e.Leader(context.Background())
	b.must(err)
	require.Equal(b, c != nil, ok, "there is a leader")
	require.Equal(b, !ok, leader.Vacant(), "vacancy")
	if c != nil {
		require.Equal(b, c.ID(), leader.Client, "client of the leader")
	}
	return leader
}

// S1, S6: candidates of several processes lead one at a time, and the tokens of their terms grow.
func TestElectionHasOneLeader(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		var together section
		var mu sync.Mutex // guards numbers
		var numbers []int64
		var all sync.WaitGroup
		for range 3 {
			e := b.client().NewElection(b.name)
			for range 2 {
				waitgroup.Go(&all, func() {
					for range 8 {
						assert.NoError(b, e.Lead(ctx, func(within context.Context) error {
							together.visit(b, true, 0)
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

// L3: when a leader crashes, the next candidate is elected after its lease has expired.
func TestElectionAfterACrash(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		const lease = time.Second
		b := newBench(t, addr)
		crashed, next := b.client(WithWatchdogTimeout(lease)), b.client()
		term := b.campaign(crashed.NewElection(b.name))
		within := term.Context()
		b.must(crashed.Close()) // its record stays, and is no longer renewed
		b.ends(within, ErrClosed)
		start := time.Now()
		after := b.campaign(next.NewElection(b.name))
		assert.LessOrEqual(t, time.Since(start), lease+soon/2, "time until the next leader")
		assert.Greater(t, after.Token(), term.Token(), "number of the next term")
		b.must(after.Resign(context.Background()))
	})
}

func TestResignMayBeRepeated(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c, other := b.client(), b.client()
		e := c.NewElection(b.name)
		term := b.campaign(e)
		within := term.Context()
		assert.Equal(t, term.Token(), b.leads(other.NewElection(b.name), c).Token, "number of the term")
		for range 3 {
			b.must(term.Resign(ctx))
		}
		b.ends(within, context.Canceled)
		b.leads(e, nil)

		next := b.campaign(other.NewElection(b.name))
		b.must(term.Resign(ctx)) // and takes nothing from the next leader
		b.leads(e, other)
		b.must(next.Resign(ctx))

		lost := b.campaign(e)
		b.forget()
		err := lost.Resign(ctx)
		b.mustBe(err, ErrLockLost)
		assert.ErrorContains(t, err, "relock: resign ")
		b.must(lost.Resign(ctx))
	})
}

// A guard of a term ends with its context, and when the leadership is lost.
func TestTermGuard(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		e := b.client(WithWatchdogTimeout(1500 * time.Millisecond)).NewElection(b.name)
		term := b.campaign(e)
		parent, cancel := context.WithTimeout(ctx, time.Hour)
		guarded, err := term.Guard(parent)
		b.must(err)
		want, _ := parent.Deadline()
		until, _ := guarded.Deadline()
		assert.Equal(t, want, until, "deadline")
		number, err := e.Token(guarded)
		b.must(err)
		assert.Equal(t, term.Token(), number, "number of the term that the guard belongs to")
		cancel()
		b.ends(guarded, context.Canceled)
		b.must(term.Context().Err())

		guarded, err = term.Guard(ctx)
		b.must(err)
		b.must(term.Resign(ctx))
		b.ends(guarded, context.Canceled)
		_, err = term.Guard(ctx)
		b.mustBe(err, ErrNotHeld)

		lost := b.campaign(e)
		guarded, err = lost.Guard(ctx)
		b.must(err)
		b.forget()
		b.ends(guarded, ErrLockLost)
		_, err = lost.Guard(ctx)
		b.mustBe(err, ErrLockLost)
		b.mustBe(lost.Resign(ctx), ErrLockLost)
	})
}

// The work of a leader ends before it resigns.
func TestLeadWaitsForTheWork(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx, cancel := context.WithCancel(context.Background())
		c := b.client()
		e, rival := c.NewElection(b.name), b.client().NewLock(b.name, Fenced())
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
		await(b, "the candidate leads", leading)
		cancel()
		await(b, "the ctx of the work ends first", inner.Done())
		b.tries(rival, false)
		b.leads(e, c)
		close(finish)
		err := await(b, "Lead returns", done)
		b.mustBe(err, io.ErrNoProgress)
		assert.NotErrorIs(t, err, ErrNotHeld)
		b.leads(e, nil)
	})
}

func TestLeadTellsOfALostLead(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		e := b.client(WithWatchdogTimeout(1500 * time.Millisecond)).NewElection(b.name)
		err := e.Lead(ctx, func(within context.Context) error {
			b.forget()
			await(b, "the ctx of the work ends", within.Done())
			assert.ErrorIs(b, context.Cause(within), ErrLockLost)
			return io.ErrNoProgress
		})
		b.mustBe(err, io.ErrNoProgress)
		b.mustBe(err, ErrLockLost)
		assert.ErrorContains(t, err, "relock: lead ")
		assert.NotContains(t, err.Error(), "release")
		assert.PanicsWithValue(t, "mine", func() {
			_ = e.Lead(ctx, func(context.Context) error { panic("mine") })
		})
		b.leads(e, nil)
	})
}

// A leader that returns the error of its context, or the cause, after a loss: Lead tells of the loss once, and not of a
// cancellation.
func TestLeadTellsOfALostLeadOnce(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	e := b.client().NewElection(b.name)
	for what, result := range map[string]func(ctx context.Context) error{
		"error": context.Context.Err, "cause": context.Cause,
	} {
		err := e.Lead(context.Background(), func(within context.Context) error {
			b.must(second(e.lock.ForceUnlock(within)))
			await(b, "the ctx of the work ends", within.Done())
			return result(within)
		})
		assert.ErrorIs(b, err, ErrLockLost, what)
		assert.NotErrorIs(b, err, context.Canceled, what)
		assert.Equal(b, 1, strings.Count(err.Error(), "the lock was lost"), "%s: %v", what, err)
	}
	b.leads(e, nil)
}

// A leader that returns the error of its context after a Shutdown: Lead tells that the Client is closed, and not of a
// cancellation.
func TestLeadTellsOfAShutdown(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c := b.client()
	ended := make(chan error, 1)
	err := c.NewElection(b.name).Lead(ctx, func(within context.Context) error {
		go func() { ended <- c.Shutdown(ctx) }()
		await(b, "the ctx of the work ends", within.Done())
		return within.Err()
	})
	b.must(await(b, "Shutdown ends", ended))
	b.mustBe(err, ErrClosed)
	assert.NotErrorIs(t, err, context.Canceled)
	b.leads(b.client().NewElection(b.name), nil)
}

func TestCampaignEndsWithCtx(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		c := b.client()
		term := b.campaign(b.client().NewElection(b.name))
		e := c.NewElection(b.name)
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		_, err := e.Campaign(ctx)
		b.mustBe(err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "campaign")
		b.mustBe(e.Lead(ctx, func(context.Context) error { return nil }), context.DeadlineExceeded)
		waiting := make(chan error, 1)
		go func() { waiting <- second(e.Campaign(context.Background())) }()
		testredis.Await(b, "the candidate waits", soon, func() bool { return b.asks(&e.lock) })
		b.must(c.Close())
		b.mustBe(await(b, "the candidate is woken", waiting), ErrClosed)
		b.must(term.Resign(context.Background()))
	})
}

// The methods of a nil Term are safe, like those of a nil Hold: Campaign returns nil with an error.
func TestNilTerm(t *testing.T) {
	ctx := context.Background()
	for what, term := range map[string]*Term{"nil": nil, "zero": new(Term)} {
		assert.Zero(t, term.Token(), what)
		for name, err := range map[string]error{
			"Resign": term.Resign(ctx), "Guard": second(term.Guard(ctx)), "Context": context.Cause(term.Context()),
		} {
			assert.ErrorIs(t, err, ErrNotHeld, "%s of a %s Term", name, what)
			assert.ErrorIs(t, err, ErrInvalid, "%s of a %s Term", name, what)
		}
	}
}

// Lead without a function fails before it campaigns.
func TestLeadWithoutAFunction(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	e := b.client().NewElection(b.name)
	err := e.Lead(context.Background(), nil)
	b.mustBe(err, ErrInvalid)
	assert.ErrorContains(t, err, "lead")
	b.leads(e, nil)
	assert.Empty(t, b.keys(), "keys")
}

// Observe returns the present state first, and then each change, including vacancies.
func TestObserveSeesLeadersAndVacancies(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx, cancel := context.WithCancel(context.Background())
		c := b.client()
		e := c.NewElection(b.name)
		onlooker := b.client(WithPollInterval(10 * time.Millisecond))
		seen, ended := make(chan pair[Leader]), make(chan struct{})
		go func() {
			defer close(ended)
			for leader, err := range onlooker.NewElection(b.name).Observe(ctx) {
				seen <- pairOf(leader, err)
			}
		}()
		next := func() (Leader, error) { return await(b, "a change", seen).get() }
		mustSee := func(want Leader) {
			t.Helper()
			got, err := next()
			b.must(err)
			got.Owner = ""
			require.Equal(t, want, got, "leader")
		}
		mustSee(Leader{})
		for range 2 { // the same Client has another term
			term := b.campaign(e)
			mustSee(Leader{Client: c.ID(), Token: term.Token()})
			b.must(term.Resign(ctx))
			mustSee(Leader{})
		}
		b.must(b.rdb.Set(ctx, b.name, "somebody else's", 0).Err())
		_, err := next()
		b.mustBe(err, ErrNotALock) // once
		b.forget()
		mustSee(Leader{}) // the state after an error
		stays(t, "no change", seen, 100*time.Millisecond)
		cancel()
		await(b, "the sequence ends", ended)
	})
}

// A label that becomes readable or unreadable is not a change of the leader.
func TestObserveReportsNoChangeOfALabelAlone(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx, cancel := context.WithCancel(context.Background())
	c := b.client()
	term := b.campaign(c.NewElection(b.name))
	looks := new(counter)
	rdb := testredis.Client(t, b.addr)
	rdb.AddHook(looks)
	onlooker := b.clientOn(rdb, WithPollInterval(10*time.Millisecond))
	seen, ended := make(chan pair[Leader]), make(chan struct{})
	go func() {
		defer close(ended)
		for leader, err := range onlooker.NewElection(b.name).Observe(ctx) {
			seen <- pairOf(leader, err)
		}
	}()
	first, err := await(b, "the leader", seen).get()
	b.must(err)
	assert.Equal(t, c.ID(), first.Client)
	assert.Empty(t, first.Label)
	key := record.LabelKey(c.ID())
	for range 3 {
		b.must(b.rdb.HSet(ctx, key, "label", "billing", "host", "h1").Err())
		labelled, _, err := onlooker.NewElection(b.name).Leader(ctx)
		b.must(err)
		require.Equal(t, "billing", labelled.Label)
		for _, next := range []func(){func() { b.must(b.rdb.Del(ctx, key).Err()) }, func() {}} {
			before := looks.n.Load()
			testredis.Await(b, "Observe looks a few times more, and tells nothing", soon, func() bool {
				select {
				case told := <-seen:
					assert.Fail(t, "Observe told a change", "%+v", told)
				default:
				}
				return looks.n.Load() > before+6
			})
			next()
		}
	}
	b.must(term.Resign(ctx))
	vacant, err := await(b, "the vacancy", seen).get()
	b.must(err)
	assert.True(t, vacant.Vacant())
	cancel()
	await(b, "the sequence ends", ended)
}

func TestObserveEndsForGood(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c := b.client(WithPollInterval(time.Hour))
	for leader, err := range c.NewElection(b.name).Observe(ctx) {
		b.must(err)
		assert.True(t, leader.Vacant())
		break
	}
	var errs []error
	for _, err := range c.NewElection(b.name).Observe(ctx) {
		errs = append(errs, err)
		if err == nil {
			go func() { assert.NoError(b, c.Close()) }() // ends the sleep
		}
	}
	require.Len(t, errs, 2)
	b.must(errs[0])
	b.mustBe(errs[1], ErrClosed)
}

func TestElectionBadInput(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c := b.client()
	for name, e := range map[string]*Election{
		"empty name": c.NewElection(""), "long name": c.NewElection(strings.Repeat("x", record.LongestName+1)),
		"nil client": (*Client)(nil).NewElection(b.name), "zero": new(Election),
	} {
		assert.ErrorIs(t, second(e.Campaign(ctx)), ErrInvalid, name)
		assert.ErrorIs(t, e.Lead(ctx, func(context.Context) error { return nil }), ErrInvalid, name)
		assert.ErrorIs(t, second(e.Token(ctx)), ErrInvalid, name)
		_, _, err := e.Leader(ctx)
		assert.ErrorIs(t, err, ErrInvalid, name)
		for _, err := range e.Observe(ctx) {
			assert.ErrorIs(t, err, ErrInvalid, name)
		}
	}
	e := c.NewElection(b.name)
	assert.ErrorIs(t, second(e.Campaign(nilCtx)), ErrInvalid)
	for _, err := range e.Observe(nilCtx) {
		assert.ErrorIs(t, err, ErrInvalid)
	}
	_, err := e.Token(ctx)
	assert.True(t, errors.Is(err, ErrNotHeld) && !errors.Is(err, ErrLockLost), "%v", err)
}
