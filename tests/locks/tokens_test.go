package locks

// Fencing tokens, which are drawn one by one, or in blocks for the holds that are handed off inside a process.
//
// Rule: the token of a hold is greater than those of all holds before it, in every process: under faults, beside Java,
// after the loss of the counter, and whatever the clock of Redis does.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// S6: tokens only grow, across hand-offs, clients, and the loss of the counter.
func TestTokensOnlyGrow(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		var mu sync.Mutex // guards tokens
		var tokens []int64
		var wg sync.WaitGroup
		for range 3 {
			l := b.Client().NewLock(b.LockName, Fenced())
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
		n, err := b.Rdb.Get(ctx, "redisson_lock_token:{"+b.LockName+"}").Int64()
		assert.NoError(t, err)
		assert.GreaterOrEqual(t, n, last, "the counter is the last token that was drawn")
		assert.Less(t, n, last+int64(tokenBlock), "a block has no more tokens")
		// A real loss takes longer: the clock, from which a lost counter starts, has moved on.
		time.Sleep(5 * time.Millisecond)
		b.Must(b.Rdb.FlushAll(ctx).Err())
		l := b.Client().NewLock(b.LockName, Fenced())
		b.Must(l.Lock(ctx))
		token, err := l.Token(ctx)
		assert.NoError(t, err)
		assert.Greater(t, token, last, "the token after Redis has lost everything")
		b.Must(l.Unlock(ctx))
	})
}

func TestTokenBelongsToTheOwnersHold(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		c := b.Client()
		plain, fenced := c.NewLock(b.LockName), c.NewLock(b.LockName, Fenced())
		_, err := plain.Token(ctx)
		b.MustBe(err, ErrInvalid)
		_, err = fenced.Token(ctx)
		b.MustBe(err, ErrNotHeld)

		b.Must(b.Rdb.Set(ctx, "redisson_lock_token:{"+b.LockName+"}", locktest.Ahead, 0).Err()) // by Redisson
		b.Must(fenced.Lock(ctx))
		first, err := fenced.Token(ctx)
		assert.NoError(t, err)
		assert.Equal(t, int64(locktest.Ahead+1), first, "token")
		b.Must(fenced.Lock(ctx))
		again, err := fenced.Token(ctx)
		assert.NoError(t, err)
		assert.Equal(t, first, again, "a re-entry keeps the token")
		counter := b.Rdb.Get(ctx, "redisson_lock_token:{"+b.LockName+"}").Val()
		assert.Equal(t, fmt.Sprint(locktest.Ahead+1), counter, "a re-entry does not move the counter")
		err = locktest.Elsewhere(func() error { return locktest.Second(fenced.Token(ctx)) })
		b.MustBe(err, ErrNotHeld)
		b.Must(b.Rdb.Del(ctx, b.LockName).Err())
		b.MustBe(fenced.Lock(ctx), ErrLockLost)
		_, err = fenced.Token(ctx)
		b.MustBe(err, ErrLockLost)
		b.MustBe(fenced.Unlock(ctx), ErrLockLost)
		b.MustBe(fenced.Unlock(ctx), ErrLockLost)

		b.Must(plain.Lock(ctx))
		_, err = fenced.Token(ctx)
		b.MustBe(err, ErrInvalid)
		b.Must(plain.Unlock(ctx))
	})
}

// tokenBlock is how many tokens are drawn together at most.
var tokenBlock = (&contract.Attempt{AdoptsRecord: true}).TokensWanted(true)

// A fencedLock is a lock with tokens that is handed off inside a process.
type fencedLock interface {
	Locker
	Token(ctx context.Context) (int64, error)
}

// onFencedLocks runs a test with each lock type that takes tokens from blocks, on each server.
func onFencedLocks(t *testing.T, test func(b *locktest.Bench, of func(c *Client) fencedLock)) {
	for name, of := range map[string]func(c *Client, name string) fencedLock{
		"lock":  func(c *Client, name string) fencedLock { return c.NewLock(name, Fenced()) },
		"write": func(c *Client, name string) fencedLock { return c.NewRWLock(name, Fenced()).Write() },
	} {
		t.Run(name, func(t *testing.T) {
			locktest.OnEachServer(t, func(t *testing.T, addr string) {
				b := locktest.NewBench(t, addr)
				test(b, func(c *Client) fencedLock { return of(c, b.LockName) })
			})
		})
	}
}

// A fencedCrowd is owners of one Client that wait for a fenced lock, which the first of them holds.
type fencedCrowd struct {
	*locktest.Bench
	lock  fencedLock
	first context.Context
	all   sync.WaitGroup
	lossy bool // Redis loses data meanwhile: an Unlock may report it

	mu     sync.Mutex
	tokens []int64 // in the order of the holds
}

// crowd has the first owner acquire the lock, and waiters owners wait behind it. Each of those calls hold, while it
// holds the lock, with its number from 1 on.
func crowd(b *locktest.Bench, l fencedLock, waiters int, hold func(n int, owner context.Context)) *fencedCrowd {
	b.Helper()
	c := &fencedCrowd{Bench: b, lock: l, first: ContextWithOwner(ctx)}
	b.Must(l.Lock(c.first))
	c.holds(c.first)
	for n := 1; n <= waiters; n++ {
		waitgroup.Go(&c.all, func() {
			owner := ContextWithOwner(ctx)
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
			testredis.Await(b, "it waits", locktest.Soon, func() bool { return b.WaitersInQueue(l) >= n })
		}
	}
	testredis.Await(b, "all wait", locktest.Soon, func() bool { return b.WaitersInQueue(l) == waiters })
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
	b := c.Bench
	if err := c.lock.Unlock(c.first); !c.lossy || !errors.Is(err, ErrLockLost) {
		b.Must(err)
	}
	c.all.Wait()
	require.IsIncreasing(b, c.tokens, "tokens in the order of the holds")
	return c.tokens
}

// clock is the clock of Redis, in microseconds.
func clock(b *locktest.Bench) int64 {
	b.Helper()
	now, err := b.Rdb.Time(ctx).Result()
	b.Must(err)
	return now.UnixMicro()
}

// nextToken has a new owner hold the lock for a moment, and returns its token.
func nextToken(b *locktest.Bench, l fencedLock) int64 {
	b.Helper()
	owner := ContextWithOwner(ctx)
	b.Must(l.Lock(owner))
	token, err := l.Token(owner)
	b.Must(err)
	b.Must(l.Unlock(owner))
	return token
}

// Holds that are handed off take their tokens from a block, in order and without a request; and the counter is the end
// of the block, so that a later draw anywhere is above all of it.
func TestHandoffsTakeTokensFromABlock(t *testing.T) {
	t.Parallel()
	onFencedLocks(t, func(b *locktest.Bench, of func(c *Client) fencedLock) {
		rdb := testredis.Client(b, b.Addr)
		scripts := &scriptCounter{}
		rdb.AddHook(scripts)
		c := b.ClientOn(rdb, WithHandoffWindow(time.Hour))
		nextToken(b, of(c)) // Redis knows the scripts from then on
		crowd := crowd(b, of(c), 20, nil)
		time.Sleep(5 * time.Millisecond) // more microseconds than tokens
		before := scripts.N.Load()
		tokens := crowd.passes()
		assert.Equal(b, int64(2), scripts.N.Load()-before, "requests: one that takes the record over, and the release")
		for i := range tokens[2:] {
			assert.Equal(b, tokens[1]+int64(i)+1, tokens[i+2], "tokens of a block follow one another")
		}
		end := b.Counter()
		assert.Equal(b, tokens[1]+int64(tokenBlock)-1, end, "the counter is the end of the block")
		assert.LessOrEqual(b, end, clock(b), "it does not run ahead of the clock")
		theirs := nextToken(b, of(b.Client()))
		assert.Greater(b, theirs, end, "the token of another process")
		assert.Greater(b, nextToken(b, of(c)), theirs, "the next token of this process, which had a rest of the block")
	})
}

// S6: where Redis loses data between two holds that are handed off, no token comes again and none falls.
func TestTokensGrowOverALossBetweenHandoffs(t *testing.T) {
	t.Parallel()
	for what, lose := range map[string]func(b *locktest.Bench){
		"all":         func(b *locktest.Bench) { assert.NoError(b, b.Rdb.FlushAll(ctx).Err()) },
		"the counter": func(b *locktest.Bench) { assert.NoError(b, b.Rdb.Del(ctx, record.TokenKey(b.LockName)).Err()) },
		"all, and Java counts from the start": func(b *locktest.Bench) {
			assert.NoError(b, b.Rdb.FlushAll(ctx).Err())
			assert.NoError(b, b.Rdb.Incr(ctx, record.TokenKey(b.LockName)).Err())
		},
	} {
		for _, at := range []int{0, 1, 5} { // before the block is drawn, at its first hold, and in the middle
			t.Run(fmt.Sprint(what, " at ", at), func(t *testing.T) {
				onFencedLocks(t, func(b *locktest.Bench, of func(c *Client) fencedLock) {
					loses := func() {
						time.Sleep(5 * time.Millisecond) // a real loss takes longer than a block of microseconds
						lose(b)
					}
					ours := of(b.Client(WithHandoffWindow(time.Hour)))
					crowd := crowd(b, ours, 10, func(n int, _ context.Context) {
						if n == at {
							loses()
						}
					})
					crowd.lossy = true
					if at == 0 {
						loses()
					}
					tokens := crowd.passes()
					theirs := nextToken(b, of(b.Client()))
					assert.Greater(b, theirs, tokens[10], "the token of another process")
					assert.Greater(b, nextToken(b, ours), theirs, "the next token of this process")
				})
			})
		}
	}
}

// A forced release by another process is noticed at the end of the window: until then the holds that are handed off
// keep to their block, whose tokens are below that of the new holder, so that the resource refuses them. Afterwards
// tokens go on above.
func TestForcedReleaseLeavesTheLowerTokensToTheOldHolders(t *testing.T) {
	t.Parallel()
	onFencedLocks(t, func(b *locktest.Bench, of func(c *Client) fencedLock) {
		ours, other := of(b.Client(WithHandoffWindow(time.Hour))), of(b.Client())
		owner := ContextWithOwner(ctx)
		var theirs int64
		crowd := crowd(b, ours, 10, func(n int, _ context.Context) {
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
		b.Must(other.Unlock(owner))
		assert.Greater(b, nextToken(b, ours), theirs, "the next token of this process")
	})
}

// An attempt that is to take over a record which is gone, and finds the lock held elsewhere, waits in the line as any
// other, and is granted one token.
func TestTakeoverOfALostRecordIsGrantedAToken(t *testing.T) {
	t.Parallel()
	onFencedLocks(t, func(b *locktest.Bench, of func(c *Client) fencedLock) {
		ours, other := of(b.Client(WithHandoffWindow(time.Hour))), of(b.Client())
		crowd := crowd(b, ours, 3, nil)
		owner := ContextWithOwner(ctx)
		forced, err := other.ForceUnlock(owner)
		b.Must(err)
		assert.True(b, forced)
		b.Must(other.Lock(owner))
		theirs, err := other.Token(owner)
		b.Must(err)
		if err := ours.Unlock(crowd.first); !errors.Is(err, ErrLockLost) { // it may have heard of that by now
			b.Must(err)
		}
		testredis.Await(b, "it waits in the line", locktest.Soon, func() bool { return len(b.Places()) == 1 })
		assert.True(b, b.Places()[0].Fenced, "the place asks for a token")
		b.Must(other.Unlock(owner))
		crowd.all.Wait()
		assert.IsIncreasing(b, crowd.tokens, "tokens in the order of the holds")
		assert.Greater(b, crowd.tokens[1], theirs, "the token after that of the other process")
	})
}

// Readers draw no tokens. A writer after them has a greater one than those before, also where it reads, too.
func TestWritersTokensGrowBesideReaders(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		rw, other := b.Client(
			WithHandoffWindow(time.Hour),
		).NewRWLock(
			b.LockName,
			Fenced(),
		), b.Client().NewRWLock(
			b.LockName,
			Fenced(),
		)
		last := int64(0)
		for round := range 4 {
			crowd := crowd(b, rw.Write(), 10, func(n int, owner context.Context) {
				if n == 5 && round%2 == 1 { // the record is not handed off then: it goes on as that of a reader
					assert.NoError(b, rw.Read().Lock(owner))
					time.AfterFunc(20*time.Millisecond, func() { assert.NoError(b, rw.Read().Unlock(owner)) })
				}
			})
			reading := make(chan error, 1)
			reader := ContextWithOwner(ctx)
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
			b.Must(locktest.Await(b, "the reader", reading))
			assert.GreaterOrEqual(b, b.Counter(), last)
			theirs := nextToken(b, other.Write())
			assert.Greater(b, theirs, last, "the token of another process")
			last = theirs
		}
	})
}

// Each term draws its own number, which is the counter: so every process sees which term it is.
func TestTermsDrawNoBlocks(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		c, looker := b.Client(WithHandoffWindow(time.Hour)), b.Client().NewElection(b.LockName)
		e, l := c.NewElection(b.LockName), c.NewLock(b.LockName, Fenced())
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
		crowd := crowd(b, l, 10, nil) // a lock of the same name, which draws blocks
		for range 5 {
			waitgroup.Go(&crowd.all, lead)
		}
		testredis.Await(b, "all wait", locktest.Soon, func() bool { return b.WaitersInQueue(l) == 15 })
		time.Sleep(time.Millisecond)
		crowd.passes()
	})
}

// Inspect shows the token of a hold of this Client, and otherwise the last one that was drawn.
func TestInspectShowsTheTokenOfAHoldHere(t *testing.T) {
	t.Parallel()
	onFencedLocks(t, func(b *locktest.Bench, of func(c *Client) fencedLock) {
		c, other := b.Client(WithHandoffWindow(time.Hour)), b.Client()
		l, seen := of(c), int64(0)
		crowd := crowd(b, l, 10, func(_ int, owner context.Context) {
			token, err := l.Token(owner)
			assert.NoError(b, err)
			here, err := c.Inspect(ctx, b.LockName)
			assert.NoError(b, err)
			assert.Equal(b, token, here.Token, "the token that this Client shows")
			there, err := other.Inspect(ctx, b.LockName)
			assert.NoError(b, err)
			assert.GreaterOrEqual(b, there.Token, token, "the token that another Client shows")
			assert.Less(b, there.Token, token+int64(tokenBlock), "the token that another Client shows")
			seen++
		})
		time.Sleep(5 * time.Millisecond)
		crowd.passes()
		assert.Equal(b, int64(10), seen)
		i, err := c.Inspect(ctx, b.LockName)
		b.Must(err)
		assert.Equal(b, b.Counter(), i.Token, "of a lock that is free")
	})
}
