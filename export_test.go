package relock

// What the tests of inside_test.go see of this package.

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
)

type (
	RedVote   = redVote
	VotedLock = redLock
)

var ExtendLocker = extendLocker

func IsReleased(h *Hold) bool { return h.in().released.Load() }

func DescribeHolder(c *Client, ctx context.Context, s engine.Subject) { c.describeHolder(ctx, s) }

// SetLastResort has w get what is written if a Logger panics.
func SetLastResort(w io.Writer) (reset func()) {
	lastResort = w
	return func() { lastResort = os.Stderr }
}

func (l *redLock) Node(i int) Locker { return l.nodes[i] }

// NewVote returns the vote of a new hold of owner. It calls changed when the hold may have become invalid.
func (l *redLock) NewVote(owner engine.Owner, changed func()) *redVote {
	v := l.newVote(owner, fmt.Sprint("field of ", owner))
	v.changed = changed
	return v
}

// AwaitAnswers waits until the nodes have answered all requests for owner.
func (l *redLock) AwaitAnswers(t testing.TB, owner engine.Owner) {
	t.Helper()
	testredis.Await(t, "the nodes have answered", time.Minute, func() bool {
		votes := &l.client.in().votes
		votes.mu.Lock()
		defer votes.mu.Unlock()
		for r := range votes.pending {
			if r.caller == owner {
				return false
			}
		}
		return true
	})
}

// Alive returns the number of nodes at which v holds.
func (v *redVote) Alive() (n int) {
	for _, held := range v.now().nodes {
		if held.alive() {
			n++
		}
	}
	return n
}

func (v *redVote) Expired() bool { return v.expired() }

func (v *redVote) Caller() engine.Owner { return v.caller }

// Lower makes all nodes reduce their hold counts to holdCount. settled waits for their answers.
func (v *redVote) Lower(ctx context.Context, holdCount int) (settled func(limit time.Duration)) {
	r := v.lowerTo(ctx, holdCount)
	return func(limit time.Duration) { _ = r.collect(&send.Wait{Ctx: context.Background()}, limit, nil) }
}
