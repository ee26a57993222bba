//go:build go1.25

package engine

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

// A fakeVotedLock is a lock whose votes refuse every attempt.
type fakeVotedLock struct {
	traits contract.Traits
	asked  func(v *fakeVote) // called during each attempt
}

func newFakeVotedLock(asked func(*fakeVote)) *fakeVotedLock {
	traits := contract.Traits{ID: contract.LockID{Name: "v"}, Name: "v", Type: "red", Admission: contract.Exclusive}
	return &fakeVotedLock{traits, asked}
}

func (l *fakeVotedLock) Traits() *contract.Traits { return &l.traits }

func (*fakeVotedLock) BusyText(ttl, left, ago time.Duration) string {
	return contract.BusyText(ttl, left, ago)
}

func (l *fakeVotedLock) Unanswered() error { return ErrNoAnswer }

func (l *fakeVotedLock) CheckLease(time.Duration) error { return nil }

func (l *fakeVotedLock) NewVote(_ Owner, check func(Vote)) Vote {
	v := &fakeVote{lock: l}
	v.check = func() { check(v) }
	return v
}

type fakeVote struct {
	lock   *fakeVotedLock
	check  func()
	looked atomic.Int64 // how often Over was called
}

func (v *fakeVote) Ask(*send.Wait, contract.Attempt) (Answer, Refusal, error) {
	v.lock.asked(v)
	return Answer{Sent: time.Now()}, Refusal{Wait: time.Millisecond, Who: "others"}, nil
}

func (v *fakeVote) Over() bool {
	v.looked.Add(1)
	return true
}

func (*fakeVote) Owner() Owner                                             { return NoOwner }
func (*fakeVote) Listen([]int) []*wake.Listener                            { return nil }
func (*fakeVote) Lower(context.Context, int) func(time.Duration)           { return func(time.Duration) {} }
func (*fakeVote) SetHoldCount(*send.Wait, int) (bool, error)               { return true, nil }
func (*fakeVote) Extend(context.Context, time.Duration) (time.Time, error) { return time.Now(), nil }
func (*fakeVote) Check() error                                             { return nil }
func (*fakeVote) Renew() bool                                              { return true }
func (*fakeVote) Lost()                                                    {}

// A vote that was replaced may still notice that a part of it has ended. Then that vote is checked, and not the one that
// has replaced it.
func TestVoteThatWasReplacedIsTheOneThatIsChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := joinBubbleEngine(t, fakeredis.New(), "client")
		var first *fakeVote
		l := newFakeVotedLock(func(v *fakeVote) {
			if first == nil {
				first = v
				return
			}
			before, own := first.looked.Load(), v.looked.Load()
			checked := begin(func() {
				first.check()
			})
			<-checked
			assert.Equal(t, before+1, first.looked.Load(), "looks at the vote that has called")
			assert.Equal(t, own, v.looked.Load(), "looks at the vote that is under way")
		})
		ok, err := e.Acquire(t.Context(), 1, Request{Wait: 100 * time.Millisecond}, l)
		assert.NoError(t, err)
		assert.False(t, ok)
		assert.NotNil(t, first)
	})
}

// The callback of a vote shares no memory with the caller that replaces the vote: the race detector finds it otherwise.
func TestVoteIsReplacedWhileTheOldOneIsChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := joinBubbleEngine(t, fakeredis.New(), "client")
		l := newFakeVotedLock(func(v *fakeVote) {
			go func() {
				time.Sleep(time.Millisecond)
				v.check()
			}()
		})
		ok, err := e.Acquire(t.Context(), 1, Request{Wait: 100 * time.Millisecond}, l)
		assert.NoError(t, err)
		assert.False(t, ok)
		time.Sleep(time.Second)
	})
}
