//go:build go1.25

package engine

// The tokens of holds that are handed off inside one process: they come in blocks.
//
// Rule: each hold has a token of its own, greater than those before it, whatever happens to a block.

import (
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/fakeredis"
)

// fencedCrowd has so many owners hold a fenced lock, one after the other, and returns their tokens in that order. Those
// behind the first wait for it. each is called by each owner, the first of which is 1, while it holds the lock.
func (e *bubbleEngine) fencedCrowd(holds int, each func(o Owner)) (tokens []int64) {
	lock := newFencedFake(e.redis, "x")
	var all sync.WaitGroup
	for o := Owner(1); o <= Owner(holds); o++ {
		all.Go(func() {
			ok, err := e.acquire(ctx, lock, o, Request{Wait: forever})
			assert.NoError(e.t, err)
			assert.True(e.t, ok)
			time.Sleep(time.Millisecond)
			token, err := e.Token(lock, o)
			assert.NoError(e.t, err)
			if n := len(tokens); n > 0 {
				assert.Greater(e.t, token, tokens[n-1], "tokens do not grow")
			}
			tokens = append(tokens, token)
			each(o)
			assert.NoError(e.t, e.Release(ctx, lock, o))
		})
		synctest.Wait() // the first owner holds: an owner that does not wait asks Redis, and gets no handover
	}
	all.Wait()
	return tokens
}

func nothing(Owner) {}

// S6: each hold of a fenced lock that is handed off has a token of its own. One request draws the tokens of many holds.
func TestHandoffDrawsTokensInBlocks(t *testing.T) {
	for _, tt := range []struct{ holds, acquires int }{
		{2, 2}, {3, 2}, {20, 2},
		{1 + contract.BlockSize, 2},
		{2 + contract.BlockSize, 3},
		{1 + 2*contract.BlockSize, 3},
	} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			e.HandoffWindow = time.Hour
			e.fencedCrowd(tt.holds, nothing)
			assert.Equal(t, tt.acquires, e.redis.Count("acquire"), "acquires of %d holds", tt.holds)
			assert.Equal(t, 1, e.redis.Count("release"), "releases of %d holds", tt.holds)
		})
	}
}

// S6: the rest of a block is not used after its record has ended, because another process may have drawn since.
func TestRestOfABlockEndsWithItsRecord(t *testing.T) {
	for name, end := range map[string]func(e *bubbleEngine, lock contract.Record, last Owner) (held bool){
		"released": func(*bubbleEngine, contract.Record, Owner) bool { return true },
		"lost": func(e *bubbleEngine, _ contract.Record, last Owner) bool {
			e.deleteRecord()
			time.Sleep(e.WatchdogTimeout / 2)
			return false
		},
		"forced": func(e *bubbleEngine, lock contract.Record, _ Owner) bool {
			ok, err := e.Force(ctx, lock)
			assert.NoError(e.t, err)
			assert.True(e.t, ok)
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				e.HandoffWindow = time.Hour
				lock := newFencedFake(e.redis, "x")
				take := func(e *bubbleEngine, o Owner) int64 {
					e.take(lock, o)
					token, err := e.Token(lock, o)
					assert.NoError(t, err)
					return token
				}
				first := take(e, 1)
				var all sync.WaitGroup
				tokens := make(chan int64, 3)
				for o := Owner(2); o <= 4; o++ {
					all.Go(func() {
						tokens <- take(e, o)
						if o < 4 || end(e, lock, o) {
							e.giveBack(lock, o)
						} else {
							assert.ErrorIs(t, e.Release(ctx, lock, o), ErrLockLost)
						}
					})
					synctest.Wait()
				}
				e.giveBack(lock, 1)
				all.Wait()
				assert.Equal(t, []int64{first + 1, first + 2, first + 3}, []int64{<-tokens, <-tokens, <-tokens}, "the block")
				other := e.another()
				theirs := take(other, 1)
				assert.Greater(t, theirs, first+contract.BlockSize, "the token of another process")
				other.giveBack(lock, 1)
				assert.Greater(t, take(e, 5), theirs, "the token of this process after that")
				e.giveBack(lock, 5)
			})
		})
	}
}

// S3 and S6: where the answer to the attempt that takes the record over is lost, or comes late, another block is drawn,
// and no token is given twice.
func TestLostAnswerOfABlockGivesNoTokenTwice(t *testing.T) {
	for name, fault := range map[string]fakeredis.Fault{
		"lost":           {Err: io.EOF},
		"late":           {Answer: 3 * time.Second},
		"run late":       {Late: 3 * time.Second},
		"run after loss": {Ghost: 2 * time.Second},
		"run much later": {Ghost: 40 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				e.HandoffWindow = time.Hour
				var drawn atomic.Int64
				e.redis.Fault = func(verb string) fakeredis.Fault {
					if verb == "acquire" && drawn.Add(1) == 2 {
						return fault
					}
					return fakeredis.Fault{}
				}
				tokens := e.fencedCrowd(3000, nothing)
				assert.Greater(t, drawn.Load(), int64(2), "the attempt was not repeated")
				assert.Len(t, tokens, 3000)
				assert.IsIncreasing(t, tokens)
				synctest.Wait()
				time.Sleep(5 * time.Second)
				e.assertFree("the record is left")
			})
		})
	}
}
