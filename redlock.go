package relock

// RedLock: a lock that is held on a majority of independent Redis servers, some of which may be down.
//
// Rules: a node is one of the servers, with the lock on it. This is the published Redlock algorithm. A round asks all
// nodes at the same time, and each node has a short timeout of its own. The lock is held when a majority has granted it
// and the remaining lease exceeds the allowance for clock drift. If a round is lost, its grants are released at all
// nodes, including grants that arrive late. A hold is valid as long as the holds at a majority of its nodes are valid.
//
// A RedLock sends no requests itself: it acquires, releases and inspects its nodes as Lockers. A redVote keeps the hold
// counts that one hold has at the nodes, and acts as the backend of that hold. Everything else works as for any other
// lock.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// redPause is about how long a RedLock waits after a round that it lost although some nodes granted it. The pause is
// random, so that the same competitors do not meet again.
const redPause = 30 * time.Millisecond

var (
	errTaken        = errors.New("another owner holds it")
	errNodeTimeout  = errors.New("no answer within the time of WithRedLockNodeTimeout")
	errLeaseTimeout = errors.New("no answer within the part of the lease that is left for it")
	errNotAsked     = errors.New("not held there, or no answer")
	errInVain       = errors.New("a majority has granted it too late, or has lost it since")
)

// errParts is the cause of the loss of a hold that too few nodes still have.
var errParts = errors.New("too few of its locks are held")

// A RedLock is held while most of its locks are held, each on a Redis server of its own. It survives the loss of the
// other servers, and does not depend on replication. It implements the Redlock algorithm.
//
// A RedLock is safe as long as no server forgets a lock that it has granted. A server that was restarted without its
// data must stay offline for at least one lease: the longest lease in use, and at least the watchdog timeout. A server
// that keeps its data with appendfsync always may return at once. A holder acquires its lock on a restarted server
// again at the next renewal, as long as the other servers are a majority.
//
// TryLock returns false if other owners hold too many of the locks for the caller to acquire a majority, and otherwise
// a [*QuorumError]. Lock tries again until ctx is done, and joins ErrBusy, or the last QuorumError, to the error of
// ctx. If too many servers return errors that another attempt cannot change, such as ErrNotALock, Lock returns the
// QuorumError at once. Unlock returns nil if a majority has confirmed the release. Each server has the timeout of
// [WithRedLockNodeTimeout] for an answer, and at most half of an explicit lease, or a third of the watchdog timeout.
// IsLocked, IsHeld and TTL return the result of a majority, and ForceUnlock releases all locks. A RedLock has no fencing
// token.
//
// At its locks a RedLock is an owner of its own: what its owner holds there otherwise, by itself or through another
// RedLock, excludes it like the hold of anybody else. Where the owner of a RedLock would wait for itself, because it
// holds too many of the locks otherwise, or because it locks one of them by itself, the call returns ErrInvalid; except
// for permits of semaphores, which another owner may return.
//
// The Clients of the locks renew the leases, until Unlock or Close. Close them as well, after the Client of the RedLock, so that requests in
// flight can be rolled back. Shutdown may be called for all of them at once: each one renews its lock until the RedLock
// is released.
type RedLock struct{ handle }

// NewRedLock returns a lock that is held while most of the given locks are held: two of three, three of four, three of
// five. Four locks tolerate no more failures than three. NewRedLock sends no request. The locks may be of any type;
// fair locks are acquired without joining their queues. The methods return ErrInvalid for fewer than three locks, for a
// nil lock, for two locks on one Redis, which would have two votes, and for locks with MaxHold or MinHold. The name of
// a RedLock consists of the names of its locks.
//
// If go-redis does not know the addresses of the servers, because they are behind Sentinels, or the Redis client has a
// Dialer of its own, NewRedLock cannot tell whether two locks are on one Redis: see to it that they are not.
func (c *Client) NewRedLock(locks ...Locker) *RedLock {
	l := &redLock{
		traits: contract.Traits{Type: string(TypeRed), Admission: contract.Shared},
		client: c,
		needed: len(locks)/2 + 1,
	}
	members, err := membersOf(c, locks)
	var names, ids []string
	for _, m := range members { // a node that is one lock has the timeout of its Client
		n := &redNode{
			Locker:  m.Locker,
			id:      fmt.Sprintf("%p", m.Locker),
			timeout: c.nodeTimeout,
			locks:   flat([]member{m}, false),
		}
		admission := contract.Exclusive
		if r := m.in.record(); r != nil {
			n.id, n.timeout, admission = fmt.Sprint(m.in.client.ID(), r.Traits().ID), m.in.client.nodeTimeout, r.Traits().Admission
		}
		if admission == contract.Exclusive {
			l.traits.Admission = admission
		}
		l.nodes, l.grace = append(l.nodes, n), max(l.grace, n.timeout)
		names, ids = append(names, m.Name()), append(ids, n.id)
	}
	l.grace += send.MinWait / 4
	l.traits.ID = contract.LockID{
		Name: strings.Join(slices.Compact(names), ","),
		Half: strings.Join(slices.Sorted(slices.Values(ids)), ","),
	}
	l.traits.Name = l.traits.ID.Name
	switch {
	case err != nil:
	case len(members) < 3:
		err = invalid("%d locks: a RedLock needs at least 3", len(members))
	default:
		err = cmp.Or(l.checkNodes(), checkTwice(members))
	}
	return &RedLock{handle{client: c, name: l.traits.ID.Name, lock: l, bad: err}}
}

// checkNodes returns an error if a node would have two votes, or no time to cast one.
func (l *redLock) checkNodes() error {
	for i, node := range l.nodes {
		for _, m := range node.locks {
			if m.in.record() == nil {
				continue
			}
			if m.in.record().Traits().Limits != (contract.Limits{}) {
				return invalid("%s has MaxHold or MinHold: the locks of a RedLock must not have these options", shortName(node.Name()))
			}
			if s := m.in.client.synced; s.Replicas > 0 && s.Within >= node.timeout {
				return invalid("%s has WithSyncedReplicas(%d, %v): its Client needs a WithRedLockNodeTimeout longer than %v, "+
					"or that of the RedLock if it is a MultiLock", shortName(node.Name()), s.Replicas, s.Within, s.Within)
			}
			for _, other := range l.nodes[:i] {
				if at := slices.IndexFunc(other.locks, m.onOneServer); at >= 0 {
					return invalid("two locks are on one Redis, %s and %s: each Redis has one vote", other.locks[at].where(), m.where())
				}
			}
		}
	}
	return nil
}

// redLock has the data of a RedLock.
type redLock struct {
	contract.Record // nil: the engine calls no method of it that is not defined here, because a RedLock is asked with Ask

	traits contract.Traits
	client *Client
	nodes  []*redNode
	needed int           // a majority
	grace  time.Duration // after which every node that keeps to its timeout has answered
}

// A redNode is one of the locks that a RedLock consists of.
type redNode struct {
	Locker
	id      string
	timeout time.Duration
	locks   []member // of which it consists
}

// channel returns the channel on which a release of m is announced, or "" if it is not.
func (m member) channel() string {
	if m.in.record() == nil {
		return ""
	}
	return m.in.record().Channel(contract.Attempt{NoWait: true})
}

func (l *redLock) Traits() *contract.Traits { return &l.traits }

// The calls of a RedLock are carried out by the vote that has their field.

func (*redLock) Channel(contract.Attempt) string { return "" }

// The answers of calls.
const (
	done = "1 0 0"
	none = "-1 0 0" // the vote is over, or no owner has the lock
)

// by returns a call that f carries out for the vote with this field.
func (l *redLock) by(field string, f func(w *send.Wait, v *redVote) (there bool, err error)) call {
	return call{Run: func(w *send.Wait) (any, error) {
		if v := l.vote(field); v == nil {
			return none, nil
		} else if there, err := f(w, v); err != nil || there {
			return done, err
		}
		return none, nil
	}}
}

func (l *redLock) Release(r contract.Release) call {
	return l.by(r.Field, func(w *send.Wait, v *redVote) (bool, error) {
		valid := v.Check() == nil
		there, err := v.SetHoldCount(w, r.HoldCount)
		return there && valid, err
	})
}

func (l *redLock) RollBack(a contract.Attempt) call { return l.Release(a.AsRelease()) }

func (l *redLock) Renew(field string, lease time.Duration, _ bool) call {
	return l.by(field, func(w *send.Wait, v *redVote) (bool, error) { return true, v.Extend(w.Ctx, lease) })
}

// Check returns why the hold with this field is not valid, or nil.
func (l *redLock) Check(field string) error {
	if v := l.vote(field); v != nil {
		return v.Check()
	}
	return nil // it is being released
}

// Lost releases what the nodes still have, because the owner may never call Unlock.
func (l *redLock) Lost(field string) {
	if v := l.vote(field); v != nil {
		_ = v.lowerTo(context.Background(), 0)
	}
}

// newVote returns the vote of a new hold of o.
func (l *redLock) newVote(o engine.Owner, field string) *redVote {
	v := &redVote{lock: l, field: field, caller: o, agent: engine.NewAgent(o)}
	v.nodes = make([]nodeHold, len(l.nodes))
	v.users.Store(1)
	v.changed = func() {
		if !v.now().over && v.Check() != nil {
			l.client.engine().Lose(l, field, errParts)
		}
	}
	l.client.in().votes.byField.Store(field, v)
	return v
}

// Ask makes one attempt with the vote of the field, or with a new one.
func (l *redLock) Ask(
	p *send.Wait, o engine.Owner, a contract.Attempt,
) (status contract.Status, refused engine.Refusal, err error) {
	v := l.vote(a.Field)
	switch {
	case v == nil && a.HoldCount > 1:
		return contract.Gone, refused, nil
	case v == nil:
		v = l.newVote(o, a.Field)
	}
	defer func() { // also after a panic of a context of the user
		if status != contract.Held {
			_ = v.lowerTo(p.Ctx, a.HoldCount-1)
		}
	}()
	return v.Ask(p, a)
}

// Unanswered returns the error for a caller that gives up because no node has answered.
func (l *redLock) Unanswered() error {
	return fmt.Errorf("%w: %w", engine.ErrNoAnswer, l.newRound().QuorumError)
}

// Ask asks all nodes at the same time for the hold count of a, and releases a round that is not won.
func (v *redVote) Ask(p *send.Wait, a contract.Attempt) (status contract.Status, refused engine.Refusal, err error) {
	l := v.lock
	if err = p.Over(); err != nil && err != errTimeUp { // a wait of 0 allows one round
		return status, refused, err
	}
	sent := time.Now()
	if !v.raise(a.HoldCount) {
		return contract.Gone, refused, nil
	}
	if err = v.checkWait(p, a); err != nil {
		return status, refused, err
	}
	patient := p.WithMinWait(time.Now())
	r := l.newRound()
	for i := range l.nodes {
		r.ask(i, v.nodeAsker(p.Ctx, i, a))
	}
	err = r.collect(&patient, l.grace, r.won)
	if r.won() { // a node whose answer is a little late would stay free for a competitor
		err = r.collect(&patient, time.Since(sent)+l.grace/8, nil)
	}
	if err != nil && err != errTimeUp {
		if !r.won() { // more nodes than may be missing may have answered that others hold the lock
			_, refused, _ = l.lostRound(a, r)
		}
		return status, refused, err
	}
	if r.won() && time.Since(sent) < lease.Validity(a.Lease) && v.begins() {
		return contract.Held, refused, nil
	}
	// If the time is up, the reason is in the answers that have come by then.
	if err := v.lowerTo(p.Ctx, a.HoldCount-1).collect(&patient, l.grace, nil); err != nil && err != errTimeUp {
		return status, refused, err
	}
	return v.endOfRound(p.Ctx, a, r, err != nil)
}

// checkWait returns an error if the caller would wait for itself: it has so many nodes by other ways than this RedLock
// that no majority is left.
func (v *redVote) checkWait(p *send.Wait, a contract.Attempt) error {
	if p.NoWait || a.HoldCount > 1 {
		return nil
	}
	if blocked := v.lock.blocked(v.agent.Owner); blocked > 0 {
		return invalid("%v would wait for itself: it holds %d of the %d locks otherwise, by itself or through another RedLock",
			v.agent.Principal, blocked, len(v.lock.nodes))
	}
	return nil
}

// blocked returns at how many nodes o would wait for itself, or 0 if the other ones are a majority.
func (l *redLock) blocked(o engine.Owner) (nodes int) {
	for _, n := range l.nodes {
		if slices.ContainsFunc(n.locks, func(m member) bool {
			red := m.red()
			return red != nil && red.blocked(o) > 0 || m.in != nil && m.in.client.engine().BlocksItself(m.in.lock, o)
		}) {
			nodes++
		}
	}
	if nodes <= len(l.nodes)-l.needed {
		return 0
	}
	return nodes
}

// endOfRound is lostRound for a round that the end of the wait has cut short if cut is set.
func (v *redVote) endOfRound(
	ctx context.Context,
	a contract.Attempt,
	r *round,
	cut bool,
) (contract.Status, engine.Refusal, error) {
	if lost := v.Check() != nil; lost && a.HoldCount > 1 { // during the round
		return contract.Gone, engine.Refusal{}, nil
	}
	status, refused, err := v.lock.lostRound(a, r)
	if cut && refused.Cause != nil {
		refused.Cause = fmt.Errorf("%w: %w", engine.ErrNoAnswer, refused.Cause)
	}
	if err != nil && ctx.Err() != nil {
		err = send.WithLast(ctxError(ctx), err)
	}
	return status, refused, err
}

// lostRound evaluates the answers of a lost round. An error that it returns is final.
func (l *redLock) lostRound(a contract.Attempt, v *round) (contract.Status, engine.Refusal, error) {
	spare := len(l.nodes) - l.needed // the number of nodes that may be missing when the lock is acquired
	if a.HoldCount > 1 && v.count(ErrLockLost) > spare {
		return contract.Gone, engine.Refusal{}, nil
	}
	final := 0
	r := engine.Refusal{Wait: -1, Who: "other owners hold too many of its locks"}
	for i, err := range v.Answers {
		switch {
		case err == nil:
		case err == errTaken:
			r.Taken = append(r.Taken, i)
		case !transient(err), errors.Is(err, ErrClosed):
			final++
		}
	}
	if final > spare {
		return contract.Busy, r, v.failed()
	}
	if v.Granted > 0 {
		r.Pause = redPause/2 + rand.N(redPause) // competitors may have lost the round, too,
		if len(r.Taken) <= spare {
			r.Wait = r.Pause // and hold only some of the nodes
		}
	}
	switch {
	case v.won():
		r.Cause = fmt.Errorf("%w: %w", errInVain, v.QuorumError)
	case len(r.Taken) <= spare:
		r.Cause = v.QuorumError
	}
	return contract.Busy, r, nil
}

// SetHoldCount makes all nodes reduce their hold counts to left, and reports whether a majority had higher ones.
func (v *redVote) SetHoldCount(p *send.Wait, left int) (there bool, err error) {
	l := v.lock
	before := v.now().nodes
	r := v.lowerTo(p.Ctx, left)
	for i, n := range before {
		if left > 0 && n.count <= left && n.alive() { // it did not grant a later request
			r.set(i, nil)
		}
	}
	patient := p.WithMinWait(time.Now())
	if !patient.Deadline.IsZero() {
		patient.Deadline = patient.Deadline.Add(send.MinWait) // each node takes up to 5s, and then returns its error
	}
	if r.collect(&patient, l.grace, nil) == nil {
		_ = r.collect(&patient, send.ConnectTime, r.won) // the answers of the nodes explain more than errTimeUp
	}
	failed := r.missing + len(r.Unwrap()) - r.count(errNotAsked) - r.count(ErrNotHeld)
	if !r.won() && failed > 0 {
		return false, r.failed()
	}
	return r.won(), nil
}

// Extend extends the hold at the nodes that have it. A majority has to confirm. A node that has granted a re-entry which
// has failed since is renewed until the release, so it confirms, too.
func (v *redVote) Extend(ctx context.Context, lease time.Duration) error {
	l := v.lock
	r, err := l.askAll(v.agent.In(ctx), func(ctx context.Context, i int) error {
		if !v.now().nodes[i].alive() {
			return errNotAsked
		}
		if err := extendLocker(ctx, l.nodes[i].Locker, lease); !errors.Is(err, engine.ErrRenewed) {
			return err
		}
		return nil
	})
	if err != nil || r.won() {
		return err
	}
	v.changed()
	return r.failed()
}

// Inspect asks for the state that a majority of the nodes reports: the shortest lease of the longest ones. If field is not "", it
// asks whether the caller holds the nodes.
func (l *redLock) Inspect(field string) call {
	return call{Run: func(w *send.Wait) (any, error) {
		ctx, v, ask := w.Ctx, l.vote(field), Locker.TTL
		if v != nil {
			ctx, ask = v.agent.In(ctx), func(n Locker, ctx context.Context) (time.Duration, error) {
				holdCount, err := n.HoldCount(ctx)
				return time.Duration(holdCount), err
			}
		} else if field != "" {
			return none, nil
		}
		ttls := make([]time.Duration, len(l.nodes)) // each element is written before its node's answer is sent
		r, err := l.askAll(ctx, func(ctx context.Context, i int) (err error) {
			ttls[i], err = ask(l.nodes[i], ctx)
			return err
		})
		if err != nil {
			return nil, err
		}
		var yes []time.Duration
		for i, err := range r.Answers {
			if err == nil && ttls[i] != 0 {
				yes = append(yes, ttls[i])
			}
		}
		switch no := r.Granted - len(yes); {
		case len(yes) >= l.needed:
			slices.Sort(yes)
			return fmt.Sprint("1 1 ", send.Milliseconds(yes[len(yes)-l.needed])), nil
		case no <= len(l.nodes)-l.needed:
			return nil, r.failed() // the missing answers could decide either way
		}
		return none, nil
	}}
}

// free releases all nodes, and ends the holds of this process.
func (l *redLock) free(ctx context.Context) (bool, error) {
	return l.client.engine().ForceBy(ctx, l, func() (bool, error) {
		var freed atomic.Bool
		r, err := l.askAll(ctx, func(ctx context.Context, i int) error {
			was, err := l.nodes[i].ForceUnlock(ctx)
			if was {
				freed.Store(true)
			}
			return err
		})
		if err == nil && !r.won() {
			err = r.failed()
		}
		return err == nil && freed.Load(), err
	})
}

// askAll asks all nodes at the same time, each with its timeout, and collects their answers.
func (l *redLock) askAll(ctx context.Context, ask func(ctx context.Context, i int) error) (*round, error) {
	ctx = engine.OwnerOf(ctx).In(ctx)
	p := l.client.engine().UntilEnd(ctx)
	if err := p.Over(); err != nil {
		return nil, err
	}
	r := l.newRound()
	for i, n := range l.nodes {
		r.ask(i, func() error {
			within, cancel := context.WithTimeout(ctx, n.timeout)
			defer cancel()
			err := ask(within, i)
			if err != nil && within.Err() != nil && ctx.Err() == nil {
				err = errNodeTimeout
			}
			return err
		})
	}
	return r, r.collect(p, l.grace, nil)
}
