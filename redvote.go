package relock

// The hold of a RedLock: its hold count at each node.
//
// Rules: a vote is an owner of its own at the nodes. A grant of a node is recorded here, or released, even if it arrives
// after the end of the round. The next vote of the same caller asks a node after the requests of this one to that node
// were answered, because it would meet another owner there. A vote that was not valid for a moment never becomes valid
// again: another owner may have had the lock then. A node whose Client shuts down is held until it is lost, or that
// Client is closed. No node is asked with a mutex held.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

// A redVote has the hold counts of one hold at the nodes. It is the backend of that hold.
type redVote struct {
	lock    *redLock
	field   string // of the hold
	caller  engine.Owner
	agent   *engine.Agent // of caller: the owner at the nodes
	changed func()        // called when the result of Check may have changed
	users   atomic.Int64  // of agent: the vote until it is over, and the requests that were not answered

	mu sync.Mutex // guards below; with it held, only that of voteTable is locked, and goroutines begin
	voteState
}

// A voteState is what changes of a vote.
type voteState struct {
	count   int  // the highest hold count at a node
	over    bool // the hold was released or lost
	nodes   []nodeHold
	begun   bool // Ask has returned Held: the hold has to be valid from then on
	invalid bool // the hold, which has begun, was not valid for a moment: Check never returns nil again
}

// A nodeHold is the part of a redVote at one node.
type nodeHold struct {
	count int
	guard context.Context // the guard of the hold there, or nil
}

// alive reports whether the hold at the node can be valid. The guard of a foreign Locker may panic on a goroutine of
// this package, so the panic is caught.
func (n nodeHold) alive() bool {
	return n.guard != nil && send.CatchPanic(n.guard.Err) == nil
}

// raise records that nodes are going to have the hold count holdCount. It returns false if the owner is to acquire
// again a hold that has ended.
func (v *redVote) raise(holdCount int) bool {
	if holdCount > 1 && v.Check() != nil {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if holdCount > 1 && v.over {
		return false
	}
	v.count = holdCount
	if holdCount == 1 { // the engine asks again: its owner does not have the hold yet
		v.begun, v.invalid = false, false
	}
	return true
}

// nodeAsker returns the function that asks node i to increment its hold count. The request counts as one that the node
// has not answered from now on. A grant is recorded in v or released, even if the round is over by then.
func (v *redVote) nodeAsker(ctx context.Context, i int, a contract.Attempt) func() error {
	n := v.lock.nodes[i]
	owned := v.in(ctx)
	earlier, answered := v.asks(i)
	return func() error {
		defer answered()
		if err := v.tryNode(owned, i, a, earlier); err != nil {
			return err
		}
		guard, expired := ended, true
		defer func() { // also if the guard of a Locker of the user ends the goroutine
			if expired || !v.note(i, guard) {
				_ = n.Unlock(owned) // a grant that cannot be released expires with its lease
			}
		}()
		if expired = v.expired(); expired { // the grant must not make up for a node that was lost while it was under way
			v.changed()
			return ErrLockLost
		}
		if before := v.now().nodes[i].guard; before != nil { // each guard of a MultiLock costs memory until it ends
			guard = before
			return nil
		}
		made, err := n.Guard(owned)
		if err == nil {
			context.AfterFunc(made, func() { v.lock.client.engine().Spawn(v.changed) })
			guard = made
		}
		return err
	}
}

// in returns a copy of ctx for the calls of v to nodes, which is not canceled with ctx.
func (v *redVote) in(ctx context.Context) context.Context {
	return v.agent.In(context.WithoutCancel(ctx))
}

// tryNode tries node i after the node has answered the earlier requests for the same caller.
func (v *redVote) tryNode(ctx context.Context, i int, a contract.Attempt, earlier []chan struct{}) error {
	n := v.lock.nodes[i]
	limit, late := n.answersWithin(a)
	ctx, cancel := context.WithTimeout(engine.Patiently(ctx), limit)
	defer cancel()
	for _, answer := range earlier {
		select {
		case <-answer:
		case <-ctx.Done():
			return late
		}
	}
	lease := a.Lease
	if a.Renewed {
		lease = 0
	}
	outdated, valid := v.outdated(i)
	for range outdated { // if the node is a MultiLock, some of its locks may still be held
		_ = n.Unlock(ctx)
	}
	if !valid {
		v.changed()
		return ErrLockLost
	}
	ok, err := n.TryLock(ctx, 0, lease)
	switch said := redis.Error(nil); {
	case err == nil && !ok:
		return errTaken
	case err == nil || ctx.Err() == nil:
		return err
	case errors.As(err, &said): // Redis answered with an error before the time was up
		return fmt.Errorf("%w: %w", late, said)
	}
	return late
}

// answersWithin returns how long the answer of the node to a may take, and the error if it takes longer. An answer that
// leaves less than half of an explicit lease is of no use: see lease.EnoughValidityLeft. A renewal is repeated after a
// third of the lease.
func (n *redNode) answersWithin(a contract.Attempt) (limit time.Duration, late error) {
	useful := lease.Validity(a.Lease) / 2
	if a.Renewed {
		useful = a.Lease / 3
	}
	if useful = max(useful, time.Millisecond); useful < n.timeout {
		return useful, errLeaseTimeout
	}
	return n.timeout, errNodeTimeout
}

// outdated returns the hold count that a node still has of a hold that it has lost, and forgets it. valid reports whether
// the node may be acquired again: too few other nodes may hold by now for v to be valid.
func (v *redVote) outdated(i int) (holdCount int, valid bool) {
	if before := v.now().nodes[i]; before.guard == nil || before.alive() {
		return 0, true
	}
	valid = !v.expired()
	v.mu.Lock()
	defer v.mu.Unlock()
	holdCount = v.nodes[i].count
	v.nodes[i] = nodeHold{}
	return holdCount, valid
}

// expired reports whether the hold has begun and is not valid any more, and notes that for good. It is called before a
// node that the hold does not have is acquired, and again before the grant counts: another owner may have had the lock
// in between.
func (v *redVote) expired() bool {
	if !v.now().begun || v.Check() == nil { // in this order: it may begin after the look
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.invalid = v.begun // unless the engine has asked again meanwhile: see raise
	return v.invalid
}

// begins notes that the hold begins if it is valid, and reports whether it is.
func (v *redVote) begins() bool {
	if v.Check() != nil {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.begun = true
	v.agent.Holds(!v.over)
	return true
}

// note records a grant of a node, and reports whether it is still needed.
func (v *redVote) note(i int, guard context.Context) (wanted bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := &v.nodes[i]
	if n.count >= v.count {
		return false
	}
	*n = nodeHold{n.count + 1, guard}
	return true
}

// lowerTo makes all nodes reduce their hold counts to holdCount, at the same time.
func (v *redVote) lowerTo(ctx context.Context, holdCount int) *round {
	r := v.lock.newRound()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.count = min(v.count, holdCount)
	for i := range v.nodes {
		times := v.nodes[i].count - holdCount
		if times <= 0 {
			continue
		}
		v.nodes[i].count = holdCount
		_, answered := v.asks(i)
		r.ask(i, func() (err error) {
			defer answered()
			ctx := v.in(ctx)
			for range times { // all of them, also if an Observer ends the goroutine
				defer func() { err = send.CatchPanic(func() error { return v.lock.nodes[i].Unlock(ctx) }) }()
			}
			return nil
		})
	}
	if holdCount == 0 && !v.over {
		v.over = true
		v.agent.Holds(false)
		v.leave()
		v.lock.client.in().votes.byField.Delete(v.field) // now the next vote of the caller waits for these requests
	}
	return r
}

// leave removes a user of the agent.
func (v *redVote) leave() {
	if v.users.Add(-1) == 0 {
		v.agent.End()
	}
}

// now returns the state of v.
func (v *redVote) now() voteState {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := v.voteState
	s.nodes = slices.Clone(s.nodes)
	return s
}

// Check returns an error if the hold can be valid at fewer nodes than a majority, or could be earlier.
func (v *redVote) Check() error {
	s, n := v.now(), 0
	for _, held := range s.nodes {
		if held.alive() {
			n++
		}
	}
	if n < v.lock.needed || s.invalid {
		return errParts
	}
	return nil
}

// Renew acquires the lock again at nodes that have lost their hold, or did not grant one, of a vote that is valid.
func (v *redVote) Renew() {
	c := v.lock.client
	for i, held := range v.now().nodes {
		if !held.alive() {
			a := contract.Attempt{HoldCount: 1, Lease: c.engine().WatchdogTimeout, Renewed: true}
			ask := v.nodeAsker(context.Background(), i, a)
			c.engine().Spawn(func() { _ = send.CatchPanic(ask) })
		}
	}
}

// Listen subscribes to the release channels of nodes, with one signal channel for all. Nodes that granted the lock are
// not among them, because they announce the releases of this process.
func (l *redLock) Listen(nodes []int) []*wake.Listener {
	signal := make(chan struct{}, 1)
	var all []*wake.Listener
	for _, i := range nodes {
		for _, m := range l.nodes[i].locks {
			if channel := m.channel(); channel != "" {
				all = append(all, m.in.client.engine().Hub().JoinFor(signal, channel))
			}
		}
	}
	return all
}

// A nodeRequest is a request to a node of a RedLock for one caller.
type nodeRequest struct {
	lock   contract.LockID
	caller engine.Owner
	node   string // the ID of the node
}

// A voteTable has the votes of a Client that are not over, by their fields, and the requests that nodes have not
// answered yet.
type voteTable struct {
	byField sync.Map // the votes

	mu      sync.Mutex // guards below; no other mutex is locked while it is held
	pending map[nodeRequest][]chan struct{}
}

// vote returns the vote with this field, or nil.
func (l *redLock) vote(field string) *redVote {
	found, _ := l.client.in().votes.byField.Load(field)
	v, _ := found.(*redVote)
	return v
}

// asks records a request to node i, and returns the earlier requests for the same caller that the node has not answered
// yet.
func (v *redVote) asks(i int) (earlier []chan struct{}, answered func()) {
	t, r := &v.lock.client.in().votes, nodeRequest{v.lock.traits.ID, v.caller, v.lock.nodes[i].id}
	answer := make(chan struct{})
	v.users.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	earlier = slices.Clone(t.pending[r])
	t.pending[r] = append(t.pending[r], answer)
	return earlier, func() {
		defer v.leave()
		t.mu.Lock()
		defer t.mu.Unlock()
		t.pending[r] = slices.DeleteFunc(t.pending[r], func(a chan struct{}) bool { return a == answer })
		if len(t.pending[r]) == 0 {
			delete(t.pending, r)
		}
		close(answer)
	}
}
