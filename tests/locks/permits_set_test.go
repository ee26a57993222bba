package locks

// SetPermits: its tries that run late.

import (
	"context"
	"testing"

	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
)

// The first try of SetPermits hangs, and another one is answered. When the first one runs after all, the number has
// been set again, and stays.
func TestSetPermitsThatRunsLateChangesNothing(t *testing.T) {
	b := locktest.NewFaultBench(t)
	s, operator := b.ClientOn(b.Proxy.Client()).NewSemaphore(b.LockName, 4), b.Direct.NewSemaphore(b.LockName, 4)
	b.Must(s.SetPermits(ctx, 4))
	held := b.Proxy.On(locktest.Calls(record.Script("semaphore_set")), testredis.HoldRequest)
	b.Must(s.SetPermits(ctx, 9))
	<-held.Fired()
	b.Must(operator.SetPermits(ctx, 2))
	before := b.ScriptRuns()
	held.Release()
	testredis.Await(t, "the first try runs", locktest.Soon, func() bool { return b.ScriptRuns() > before })
	n, err := operator.Permits(ctx)
	b.Must(err)
	assert.Equal(t, 2, n, "permits after a late SetPermits(9)")
	b.Forget()
}

// A SetPermits that Redis has not answered sets nothing any more once the number was set again.
func TestSetPermitsWithoutAnAnswerIsEnded(t *testing.T) {
	b := locktest.NewFaultBench(t)
	c := b.ClientOn(b.Proxy.Client())
	s, operator := c.NewSemaphore(b.LockName, 4), b.Direct.NewSemaphore(b.LockName, 4)
	b.Must(s.SetPermits(ctx, 4))
	held := b.Proxy.On(locktest.Calls(record.Script("semaphore_set")), testredis.HoldRequest).Times(testredis.Always)
	deadline, cancel := context.WithCancel(ctx)
	go func() {
		<-held.Fired()
		cancel()
	}()
	b.MustBe(s.SetPermits(deadline, 9), context.Canceled)
	b.Must(operator.SetPermits(ctx, 2))
	before := b.ScriptRuns()
	held.Release()
	testredis.Await(t, "the try runs", locktest.Soon, func() bool { return b.ScriptRuns() > before })
	n, err := operator.Permits(ctx)
	b.Must(err)
	assert.Equal(t, 2, n, "permits after a late SetPermits(9)")
	b.Forget()
}
