package engine

// Forced releases: ForceUnlock, and how the processes that have lost a hold by it learn that.
//
// Rules: the script answers which Clients had holds, and the Client that has sent it publishes a hint for each of them,
// on a channel of that Client. (The script cannot do that, because the channel may be in another shard of a Cluster.) A
// hint names a lock. It makes the watchdog check the records that the Client has of this lock: it ends nothing by
// itself, any client may have sent it, and it may be lost. Without it a holder notices at its next renewal,
// for example if it was lost while the connection was replaced.
//
// A Client that releases a lock of its own needs no hint: it checks its records at once, whether or not the request was
// answered. If Redis runs the request when its caller has left, no holder is told.
//
// A Client subscribes to its channel while it has a hold that is old: see internal/lease/check.go and internal/hints.

import (
	"context"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/hints"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// mostForced is the most requests of one ForceUnlock: permits may be acquired as fast as it works.
const mostForced = 1000

// Force releases kind, no matter which owner holds it, and has the processes that had holds check theirs. If fields are passed in seen, only holds that have one of them in Redis are released. A
// request is never repeated, because a repeated one could release a later hold. If a semaphore has very many permits, a
// request releases some of them and the second number of the reply is not zero: then another request is sent. Force
// returns true and an error if not all of them have succeeded.
func (e *Engine) Force(ctx context.Context, kind contract.Record, seen ...string) (bool, error) {
	op := e.waitOptionsFor(ctx)
	op.OnCaller = false // a request that is sent once may have to wait longer for a connection
	if err := op.Over(); err != nil {
		return false, err
	}
	return e.ForceBy(ctx, kind, func() (freed bool, err error) {
		// In a batch, it would be given up when it is sent again otherwise.
		request := send.Request{Call: kind.Force(seen...), Long: true}
		for range mostForced {
			answer := e.sender.Once(&op.Wait, request)
			r, clients, err := answer.Forced()
			if err != nil {
				return freed, err
			}
			freed = freed || r[0] == 1
			e.hints.Send(kind.Traits().ID.Name, clients)
			if r[1] == 0 {
				break
			}
		}
		return freed, nil
	})
}

// ForceBy calls force, which releases kind in Redis. A request that fails may have run, and goroutines of this process
// may acquire kind during the call. So ForceBy has the holds of this process checked, and waits for that, but not for
// long: Redis may be unreachable now.
func (e *Engine) ForceBy(ctx context.Context, kind contract.Lock, force func() (freed bool, err error)) (bool, error) {
	freed, err := force()
	if !freed && !send.MayHaveActed(err) {
		return freed, err
	}
	all := e.forcedNow(kind.Traits().ID.Name)
	e.workers.Within(ctx, send.MinWait, func() { e.watchdog.CheckNow(all) })
	return freed, err
}

// newHints returns the channel of hints of e.
func (e *Engine) newHints() *hints.Channel {
	return hints.New(hints.Config{
		ID: e.ID, Channel: e.Channel, Tell: e.Tell, Check: e.checkHolds,
		Join: e.pubsub.Join, Spawn: e.workers.Spawn, Later: e.reporter.Later, Log: e.Log,
	})
}

// checkHolds has the watchdog check the holds of the lock called name.
func (e *Engine) checkHolds(name string) {
	for _, l := range e.forcedNow(name) {
		e.watchdog.Check(l)
	}
}

// forcedNow notes that the lock called name was released by force, and returns the leases that this process has of it.
// A hold whose request is under way, or that was granted and whose goroutine has not run since, is checked when it
// begins: see checkIfForcedLocked.
func (e *Engine) forcedNow(name string) (all []*lease.Lease) {
	s := e.retain(name)
	defer s.release()
	s.Lock()
	defer s.Unlock()
	s.forced = e.watchdog.Now()
	for h := range s.holds.all() {
		if h.Holds() && h.index == 0 { // h is the first hold of the record
			all = append(all, &h.record.lease)
		}
	}
	return all
}
