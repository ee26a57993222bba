package relock

// Fencing tokens, which are drawn one by one, or in blocks for the holds that are handed off inside a process.
//
// Rule: the token of a hold is greater than those of all holds before it, in every process: under faults, beside Java,
// after the loss of the counter, and whatever the clock of Redis does.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

// S6: tokens only grow, across hand-offs, clients, and the loss of the counter.
func TestTokensOnlyGrow(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		var mu sync.Mutex // guards tokens
		var tokens []int64
		var wg sync.WaitGroup
		for range 3 {
			l := b.client().NewLock(b.name, Fenced())
			for range 3 {
				waitgroup.Go(&wg, func() {
					for range 10 {
						if !assert.NoError(t, l.Lock(ctx)) {
							return
						}
						token, err := l.Token(ctx)
						assert.NoError(t, err)
						mu.Lock()
						tokens = append(tokens, token)
						mu.Unlock()
						assert.NoError(t, l.Unlock(ctx))
					}
				})
			}
		}
		wg.Wait()
		last := int64(0)
		for _, token := range tokens {
			require.Greater(t, token, last, "a token is greater than the one before")
			last = token
		}
		n, err := b.rdb.Get(ctx, "redisson_lock_token:{"+b.name+"}").Int64()
		assert.NoError(t, err)
		assert.GreaterOrEqual(t, n, last, "the counter is the last token that was drawn")
		assert.Less(t, n, last+int64(tokenBlock), "a block has no more tokens")
		// A real loss takes longer: the clock, from which a lost counter starts, has moved on.
		time.Sleep(5 * time.Millisecond)
		b.must(b.rdb.FlushAll(ctx).Err())
		l := b.client().NewLock(b.name, Fenced())
		b.must(l.Lock(ctx))
		token, err := l.Token(ctx)
		assert.NoError(t, err)
		assert.Greater(t, token, last, "the token after Redis has lost everything")
		b.must(l.Unlock(ctx))
	})
}

func TestTokenBelongsToTheOwnersHold(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c := b.client()
		plain, fenced := c.NewLock(b.name), c.NewLock(b.name, Fenced())
		_, err := plain.Token(ctx)
		b.mustBe(err, ErrInvalid)
		_, err = fenced.Token(ctx)
		b.mustBe(err, ErrNotHeld)

		b.must(b.rdb.Set(ctx, "redisson_lock_token:{"+b.name+"}", ahead, 0).Err()) // by Redisson
		b.must(fenced.Lock(ctx))
		first, err := fenced.Token(ctx)
		assert.NoError(t, err)
		assert.Equal(t, int64(ahead+1), first, "token")
		b.must(fenced.Lock(ctx))
		again, err := fenced.Token(ctx)
		assert.NoError(t, err)
		assert.Equal(t, first, again, "a re-entry keeps the token")
		counter := b.rdb.Get(ctx, "redisson_lock_token:{"+b.name+"}").Val()
		assert.Equal(t, fmt.Sprint(ahead+1), counter, "a re-entry does not move the counter")
		err = elsewhere(func() error { return second(fenced.Token(ctx)) })
		b.mustBe(err, ErrNotHeld)
		b.must(b.rdb.Del(ctx, b.name).Err())
		b.mustBe(fenced.Lock(ctx), ErrLockLost)
		_, err = fenced.Token(ctx)
		b.mustBe(err, ErrLockLost)
		b.mustBe(fenced.Unlock(ctx), ErrLockLost)
		b.mustBe(fenced.Unlock(ctx), ErrLockLost)

		b.must(plain.Lock(ctx))
		_, err = fenced.Token(ctx)
		b.mustBe(err, ErrInvalid)
		b.must(plain.Unlock(ctx))
	})
}

// tokenBlock is how many tokens are drawn together at most.
var tokenBlock = (&contract.Attempt{AdoptsRecord: true}).TokensWanted(true)

// A fencedLock is a lock with tokens that is handed off inside a process.
type fencedLock interface {
	Locker
	known
	Token(ctx context.Context) (int64, error)
}

// onFencedLocks runs a test with each lock type that takes tokens from blocks, on each server.
func onFencedLocks(t *testing.T, test func(b *bench, of func(c *Client) fencedLock)) {
	for name, of := range map[string]func(c *Client, name string) fencedLock{
		"lock":  func(c *Client, name string) fencedLock { return c.NewLock(name, Fenced()) },
		"write": func(c *Client, name string) fencedLock { return c.NewRWLock(name, Fenced()).Write() },
	} {
		t.Run(name, func(t *testing.T) {
			onEachServer(t, func(t *testing.T, addr string) {
				b := newBench(t, addr)
				test(b, func(c *Client) fencedLock { return of(c, b.name) })
			})
		})
	}
}

// A fencedCrowd is owners of one Client that wait for a fenced lock, which the first of them holds.
type fencedCrowd struct {
	*bench
	lock  fencedLock
	first context.Context
	all   sync.WaitGroup
	lossy bool // Redis loses data meanwhile: the last Unlock may report it

	mu     sync.Mutex
	tokens []int64 // in the order of the holds
}

// crowd has the first owner acquire the lock, and waiters owners wait behind it. Each of those calls hold, while it
// holds the lock, with its number from 1 on.
func (b *bench) crowd(l fencedLock, waiters int, hold func(n int, owner context.Context)) *fencedCrowd {
	b.Helper()
	c := &fencedCrowd{bench: b, lock: l, first: ContextWithOwner(context.Background())}
	b.must(l.Lock(c.first))
	c.holds(c.first)
	for n := 1; n <= waiters; n++ {
		waitgroup.Go(&c.all, func() {
			owner := ContextWithOwner(context.Background())
			if !assert.NoError(b, l.Lock(owner)) {
				return
			}
			c.holds(owner)
			if hold != nil {
				hold(n, owner)
			}
			if err := l.Unlock(owner); !c.lossy || !errors.Is(err, ErrLockLost) {
				assert.NoError(b, err)
			}
		})
		if n <= 20 { // the first ones in order
			testredis.Await(b, "it waits", soon, func() bool { return b.waitersInQueue(l) >= n })
		}
	}
	testredis.Await(b, "all wait", soon, func() bool { return b.waitersInQueue(l) == waiters })
	return c
}

// holds notes the token of a hold.
func (c *fencedCrowd) holds(owner context.Context) {
	token, err := c.lock.Token(owner)
	assert.NoError(c, err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tokens = append(c.tokens, token)
}

// passes has the first owner unlock, waits until all have held the lock, and returns their tokens.
func (c *fencedCrowd) passes() []int64 {
	c.Helper()
	b := c.bench
	b.must(c.lock.Unlock(c.first))
	c.all.Wait()
	require.IsIncreasing(b, c.tokens, "tokens in the order of the holds")
	return c.tokens
}

// counter is the token counter in Redis.
func (b *bench) counter() int64 {
	b.Helper()
	n, err := b.rdb.Get(context.Background(), record.TokenKey(b.name)).Int64()
	b.must(err)
	return n
}

// clock is the clock of Redis, in microseconds.
func (b *bench) clock() int64 {
	b.Helper()
	now, err := b.rdb.Time(context.Background()).Result()
	b.must(err)
	return now.UnixMicro()
}

// nextToken has a new owner hold the lock for a moment, and returns its token.
func (b *bench) nextToken(l fencedLock) int64 {
	b.Helper()
	owner := ContextWithOwner(context.Background())
	b.must(l.Lock(owner))
	token, err := l.Token(owner)
	b.must(err)
	b.must(l.Unlock(owner))
	return token
}

// Holds that are handed off take their tokens from a block, in order and without a request; and the counter is the end
// of the block, so that a later draw anywhere is above all of it.
func TestHandoffsTakeTokensFromABlock(t *testing.T) {
	t.Parallel()
	onFencedLocks(t, func(b *bench, of func(c *Client) fencedLock) {
		rdb := testredis.Client(b, b.addr)
		scripts := &scriptCounter{}
		rdb.AddHook(scripts)
		c := b.clientOn(rdb, WithHandoffWindow(time.Hour))
		b.nextToken(of(c)) // Redis knows the scripts from then on
		crowd := b.crowd(of(c), 20, nil)
		time.Sleep(5 * time.Millisecond) // more microseconds than tokens
		before := scripts.n.Load()
		tokens := crowd.passes()
		assert.Equal(b, int64(2), scripts.n.Load()-before, "requests: one that takes the record over, and the release")
		for i := range tokens[2:] {
			assert.Equal(b, tokens[1]+int64(i)+1, tokens[i+2], "tokens of a block follow one another")
		}
		end := b.counter()
		assert.Equal(b, tokens[1]+int64(tokenBlock)-1, end, "the counter is the end of the block")
		assert.LessOrEqual(b, end, b.clock(), "it does not run ahead of the clock")
		theirs := b.nextToken(of(b.client()))
		assert.Greater(b, theirs, end, "the token of another process")
		assert.Greater(b, b.nextToken(of(c)), theirs, "the next token of this process, which had a rest of the block")
	})
}

// More holds than a block has tokens draw another one, however fast they pass.
func TestMoreHandoffsThanABlockDrawAgain(t *testing.T) {
	t.Parallel()
	onFencedLocks(t, func(b *bench, of func(c *Client) fencedLock) {
		rdb := testredis.Client(b, b.addr)
		scripts := &scriptCounter{}
		rdb.AddHook(scripts)
		crowd := b.crowd(of(b.clientOn(rdb, WithHandoffWindow(time.Hour))), 3*tokenBlock, nil)
		before := scripts.n.Load()
		crowd.passes()
		requests := scripts.n.Load() - before
		assert.GreaterOrEqual(b, requests, int64(4), "three blocks, and the release")
		assert.Less(b, requests, int64(tokenBlock), "requests for %d holds", 3*tokenBlock)
		assert.LessOrEqual(b, b.counter(), b.clock(), "the counter runs ahead of the clock")
	})
}

// S6: where Redis loses data between two holds that are handed off, no token comes again and none falls.
func TestTokensGrowOverALossBetweenHandoffs(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for what, lose := range map[string]func(b *bench){
		"all":         func(b *bench) { assert.NoError(b, b.rdb.FlushAll(ctx).Err()) },
		"the counter": func(b *bench) { assert.NoError(b, b.rdb.Del(ctx, record.TokenKey(b.name)).Err()) },
		"all, and Java counts from the start": func(b *bench) {
			assert.NoError(b, b.rdb.FlushAll(ctx).Err())
			assert.NoError(b, b.rdb.Incr(ctx, record.TokenKey(b.name)).Err())
		},
	} {
		for _, at := range []int{0, 1, 5} { // before the block is drawn, at its first hold, and in the middle
			t.Run(fmt.Sprint(what, " at ", at), func(t *testing.T) {
				onFencedLocks(t, func(b *bench, of func(c *Client) fencedLock) {
					loses := func() {
						time.Sleep(5 * time.Millisecond) // a real loss takes longer than a block of microseconds
						lose(b)
					}
					ours := of(b.client(WithHandoffWindow(time.Hour)))
					crowd := b.crowd(ours, 10, func(n int, _ context.Context) {
						if n == at {
							loses()
						}
					})
					crowd.lossy = true
					if at == 0 {
						loses()
					}
					tokens := crowd.passes()
					theirs := b.nextToken(of(b.client()))
					assert.Greater(b, theirs, tokens[10], "the token of another process")
					assert.Greater(b, b.nextToken(ours), theirs, "the next token of this process")
				})
			})
		}
	}
}

// S6: the clock of Redis may step back and forth between the draws of holds that are handed off.
func TestTokensGrowWhileTheClockSteps(t *testing.T) {
	t.Parallel()
	m := testredis.StillMini(t)
	now := time.UnixMicro(1_800_000_000_000_000)
	m.SetTime(now)
	b := newBench(t, m.Addr())
	steps := []time.Duration{
		time.Millisecond,
		-time.Hour,
		time.Microsecond,
		2 * time.Hour,
		-time.Millisecond,
		40 * time.Microsecond,
		0,
	}
	rng := newRand(1)
	crowd := b.crowd(
		b.client(WithHandoffWindow(time.Hour)).NewLock(b.name, Fenced()),
		4*tokenBlock,
		func(int, context.Context) {
			if rng.IntN(20) == 0 { // one holder at a time has rng and now
				now = now.Add(steps[rng.IntN(len(steps))])
				m.SetTime(now)
			}
		},
	)
	crowd.passes()
}

// S3 and S6: the answer with the block is lost, or comes when another try was answered: no token is given twice, none
// of the blocks that no hold has had comes later, and later draws are above all of them.
func TestLostBlockGivesNoTokenTwice(t *testing.T) {
	t.Parallel()
	for what, fault := range map[string]testredis.Fault{
		"lost":     testredis.LoseReply,
		"late":     testredis.DelayReply(1500 * time.Millisecond),
		"run late": testredis.DelayRequest(1500 * time.Millisecond),
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := oneRedis(t)
			onFaultLocks(t, server, func(b *faultBench, k faultLock) {
				if k.name != "fenced" {
					b.Skip("it has no tokens, or draws no block")
				}
				ours := b.patientClient(WithHandoffWindow(time.Hour)).NewLock(b.name, Fenced())
				until := time.Now().Add(3 * time.Second)
				crowd := b.crowd(ours, 100, func(int, context.Context) {
					if time.Now().Before(until) {
						time.Sleep(30 * time.Millisecond) // the late answer comes while tokens of a block are used
					}
				})
				rule := b.proxy.On(calls(lockAcquire), fault).Times(1)
				tokens := crowd.passes()
				require.Equal(b, 1, rule.Count(), "nothing was lost")
				theirs := b.nextToken(b.direct.NewLock(b.name, Fenced()))
				assert.Greater(b, theirs, tokens[len(tokens)-1], "the token of another process")
				assert.Greater(b, b.nextToken(ours), theirs, "the next token of this process")
			})
		})
	}
}

// S6: Java draws with INCR, for the lock that it holds, and whatever another program adds to the counter meanwhile.
func TestTokensGrowBesideJava(t *testing.T) {
	t.Parallel()
	onFencedLocks(t, func(b *bench, of func(c *Client) fencedLock) {
		java := func() int64 {
			n, err := b.rdb.Incr(context.Background(), record.TokenKey(b.name)).Result()
			assert.NoError(b, err)
			return n
		}
		ours, last := of(b.client(WithHandoffWindow(time.Hour))), int64(0)
		for range 3 {
			crowd := b.crowd(ours, 10, func(n int, _ context.Context) {
				if n == 5 {
					last = java()
				}
			})
			assert.Greater(b, crowd.tokens[0], last, "the first token after those of Java")
			crowd.passes()
			end := b.counter()
			last = java()
			assert.Greater(b, last, end, "a token of Java after a block")
		}
	})
}

// A forced release by another process is noticed at the end of the window: until then the holds that are handed off
// keep to their block, whose tokens are below that of the new holder, so that the resource refuses them. Afterwards
// tokens go on above.
func TestForcedReleaseLeavesTheLowerTokensToTheOldHolders(t *testing.T) {
	t.Parallel()
	onFencedLocks(t, func(b *bench, of func(c *Client) fencedLock) {
		ours, other := of(b.client(WithHandoffWindow(time.Hour))), of(b.client())
		owner := ContextWithOwner(context.Background())
		var theirs int64
		crowd := b.crowd(ours, 10, func(n int, _ context.Context) {
			if n != 5 {
				return
			}
			forced, err := other.ForceUnlock(owner)
			assert.NoError(b, err)
			assert.True(b, forced)
			assert.NoError(b, other.Lock(owner))
			theirs, err = other.Token(owner)
			assert.NoError(b, err)
		})
		crowd.lossy = true
		tokens := crowd.passes()
		assert.Greater(b, theirs, tokens[len(tokens)-1], "the token of the new holder")
		b.must(other.Unlock(owner))
		assert.Greater(b, b.nextToken(ours), theirs, "the next token of this process")
	})
}

// An attempt that is to take over a record which is gone, and finds the lock held elsewhere, waits in the line as any
// other, and is granted one token.
func TestTakeoverOfALostRecordIsGrantedAToken(t *testing.T) {
	t.Parallel()
	onFencedLocks(t, func(b *bench, of func(c *Client) fencedLock) {
		ours, other := of(b.client(WithHandoffWindow(time.Hour))), of(b.client())
		crowd := b.crowd(ours, 3, nil)
		owner := ContextWithOwner(context.Background())
		forced, err := other.ForceUnlock(owner)
		b.must(err)
		assert.True(b, forced)
		b.must(other.Lock(owner))
		theirs, err := other.Token(owner)
		b.must(err)
		b.must(ours.Unlock(crowd.first))
		testredis.Await(b, "it waits in the line", soon, func() bool { return len(b.places()) == 1 })
		assert.True(b, b.places()[0].fenced, "the place asks for a token")
		b.must(other.Unlock(owner))
		crowd.all.Wait()
		assert.IsIncreasing(b, crowd.tokens, "tokens in the order of the holds")
		assert.Greater(b, crowd.tokens[1], theirs, "the token after that of the other process")
	})
}

// A forced release by this process ends the hold and its block at once: the next hold draws a token again.
func TestForcedReleaseHereEndsTheBlock(t *testing.T) {
	t.Parallel()
	onFencedLocks(t, func(b *bench, of func(c *Client) fencedLock) {
		ours, end := of(b.client(WithHandoffWindow(time.Hour))), int64(0)
		crowd := b.crowd(ours, 10, func(n int, owner context.Context) {
			if n == 5 {
				end = b.counter()
				forced, err := ours.ForceUnlock(owner)
				assert.NoError(b, err)
				assert.True(b, forced)
			}
		})
		crowd.lossy = true
		time.Sleep(5 * time.Millisecond)
		tokens := crowd.passes()
		assert.Less(b, tokens[5], end, "there was a rest of the block")
		assert.Greater(b, tokens[6], end, "the token of the next hold")
	})
}

// Readers draw no tokens. A writer after them has a greater one than those before, also where it reads, too.
func TestWritersTokensGrowBesideReaders(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		rw, other := b.client(
			WithHandoffWindow(time.Hour),
		).NewRWLock(
			b.name,
			Fenced(),
		), b.client().NewRWLock(
			b.name,
			Fenced(),
		)
		last := int64(0)
		for round := range 4 {
			crowd := b.crowd(rw.Write(), 10, func(n int, owner context.Context) {
				if n == 5 && round%2 == 1 { // the record is not handed off then: it goes on as that of a reader
					assert.NoError(b, rw.Read().Lock(owner))
					time.AfterFunc(20*time.Millisecond, func() { assert.NoError(b, rw.Read().Unlock(owner)) })
				}
			})
			reading := make(chan error, 1)
			reader := ContextWithOwner(context.Background())
			go func() {
				err := other.Read().Lock(reader) // before or after the writers, or between two
				if err == nil {
					err = other.Read().Unlock(reader)
				}
				reading <- err
			}()
			assert.Greater(b, crowd.tokens[0], last, "the first token of the round")
			tokens := crowd.passes()
			last = tokens[len(tokens)-1]
			b.must(await(b, "the reader", reading))
			assert.GreaterOrEqual(b, b.counter(), last)
			theirs := b.nextToken(other.Write())
			assert.Greater(b, theirs, last, "the token of another process")
			last = theirs
		}
	})
}

// Each term draws its own number, which is the counter: so every process sees which term it is.
func TestTermsDrawNoBlocks(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c, looker := b.client(WithHandoffWindow(time.Hour)), b.client().NewElection(b.name)
		e, l := c.NewElection(b.name), c.NewLock(b.name, Fenced())
		lead := func() {
			term, err := e.Campaign(ctx)
			if !assert.NoError(b, err) {
				return
			}
			leader, _, err := looker.Leader(ctx)
			assert.NoError(b, err)
			assert.Equal(b, term.Token(), leader.Token, "the term that another process sees")
			assert.NoError(b, term.Resign(ctx))
		}
		crowd := b.crowd(l, 10, nil) // a lock of the same name, which draws blocks
		for range 5 {
			waitgroup.Go(&crowd.all, lead)
		}
		testredis.Await(b, "all wait", soon, func() bool { return b.waitersInQueue(l) == 15 })
		time.Sleep(time.Millisecond)
		crowd.passes()
	})
}

// Inspect shows the token of a hold of this Client, and otherwise the last one that was drawn.
func TestInspectShowsTheTokenOfAHoldHere(t *testing.T) {
	t.Parallel()
	onFencedLocks(t, func(b *bench, of func(c *Client) fencedLock) {
		c, other := b.client(WithHandoffWindow(time.Hour)), b.client()
		l, seen := of(c), int64(0)
		crowd := b.crowd(l, 10, func(_ int, owner context.Context) {
			token, err := l.Token(owner)
			assert.NoError(b, err)
			here, err := c.Inspect(context.Background(), b.name)
			assert.NoError(b, err)
			assert.Equal(b, token, here.Token, "the token that this Client shows")
			there, err := other.Inspect(context.Background(), b.name)
			assert.NoError(b, err)
			assert.GreaterOrEqual(b, there.Token, token, "the token that another Client shows")
			assert.Less(b, there.Token, token+int64(tokenBlock), "the token that another Client shows")
			seen++
		})
		time.Sleep(5 * time.Millisecond)
		crowd.passes()
		assert.Equal(b, int64(10), seen)
		i, err := c.Inspect(context.Background(), b.name)
		b.must(err)
		assert.Equal(b, b.counter(), i.Token, "of a lock that is free")
	})
}

// tokenWatcher notes the tokens of acquired events.
type tokenWatcher struct {
	NopObserver
	mu     sync.Mutex
	tokens []int64
}

func (w *tokenWatcher) Acquired(_ context.Context, e AcquiredEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tokens = append(w.tokens, e.Token)
}

// An event of a hold that was handed off has its token.
func TestEventOfAHandoffHasItsToken(t *testing.T) {
	t.Parallel()
	onFencedLocks(t, func(b *bench, of func(c *Client) fencedLock) {
		w := new(tokenWatcher)
		tokens := b.crowd(of(b.client(WithHandoffWindow(time.Hour), WithObserver(w))), 10, nil).passes()
		w.mu.Lock()
		defer w.mu.Unlock()
		assert.ElementsMatch(b, tokens, w.tokens)
	})
}

// S6 under load: the goroutines of two processes take turns, and each hold has a greater token than all before it.
func TestTokensOfTwoProcessesGrowUnderLoad(t *testing.T) {
	t.Parallel()
	for kind, of := range map[string]func(c *Client, name string) fencedLock{
		"lock":  func(c *Client, name string) fencedLock { return c.NewLock(name, Fenced()) },
		"write": func(c *Client, name string) fencedLock { return c.NewRWLock(name, Fenced()).Write() },
	} {
		t.Run(kind, func(t *testing.T) {
			b := newBench(t, testredis.Start(t).Addr())
			var all sync.WaitGroup
			var inside atomic.Int32
			last, holds, turns, process := int64(0), 0, 0, -1 // guarded by the lock
			begun := time.Now()
			goesOn := func() bool { // the caller holds the lock
				return time.Since(begun) < full(200*time.Millisecond, 3*time.Second) || turns < 5 && time.Since(begun) < soon
			}
			scripts := &scriptCounter{}
			for p := range 2 {
				rdb := testredis.Client(b, b.addr)
				rdb.AddHook(scripts)
				l := of(b.clientOn(rdb, WithHandoffWindow(2*time.Millisecond)), b.name)
				for range 8 {
					waitgroup.Go(&all, func() {
						owner := ContextWithOwner(context.Background())
						for more := true; more; {
							if !assert.NoError(b, l.Lock(owner)) {
								return
							}
							assert.Equal(b, int32(1), inside.Add(1), "holders")
							token, err := l.Token(owner)
							assert.NoError(b, err)
							assert.Greater(b, token, last, "token of process %d, after one of process %d", p, process)
							if last = token; process != p {
								process = p
								turns++
							}
							holds++
							more = goesOn()
							inside.Add(-1)
							assert.NoError(b, l.Unlock(owner))
						}
					})
				}
			}
			all.Wait()
			assert.GreaterOrEqual(b, turns, 5, "the processes alternate")
			assert.Less(b, scripts.n.Load(), int64(holds), "requests for %d holds", holds)
			b.Logf("%d holds, %d turns, %d requests", holds, turns, scripts.n.Load())
		})
	}
}
