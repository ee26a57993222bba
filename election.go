package relock

// An election: which of several processes leads.
//
// Rules: the record is that of a fenced Lock of the same name, and nothing else. A Term is a hold of that lock, and its
// number is the fencing token. The work of a leader ends before the lead is given up.

import (
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/relock-go/relock/internal/guard"
)

// An Election chooses one of several processes, the leader, and another one when
// the leader resigns or is lost. The leader has a term, with a number that only grows.
//
// An Election is a fenced [Lock] of the same name: the leader holds it, and the watchdog keeps
// its lease. A leader that crashes is followed by another one when its lease is over. Any number of
// goroutines may share an Election.
type Election struct {
	client *Client
	lock   Lock
}

// NewElection returns the election called name. The options are those of the lock;
// Fenced is implied. NewElection sends nothing; a bad name is reported by the methods.
//
// A lock of that name blocks the election. If it is to have numbers too, make it with Fenced.
func (c *Client) NewElection(name string, opts ...LockOption) *Election {
	return &Election{c, *c.NewLock(name, append(slices.Clone(opts), Fenced())...)}
}

// Name is the name of the election, and the key of the leader's record in Redis.
func (e *Election) Name() string { return e.lock.Name() }

// Campaign waits until the caller leads, or ctx is done: then the error matches the error of
// ctx, and the caller is no candidate any more. Each call is a candidate of its own. The candidates
// are elected in the order of the line of a plain lock: see [Lock].
//
// The term lasts until Resign, and not as long as the Term can be reached.
func (e *Election) Campaign(ctx context.Context) (*Term, error) {
	hold, err := acquireHold(ctx, &e.lock, "campaign")
	if err != nil {
		return nil, err
	}
	number, err := hold.Token()
	if err != nil { // it was lost already, or the Client is closed
		_ = hold.Release(ctx)
		return nil, err
	}
	return &Term{hold, number}, nil
}

// Lead campaigns, calls fn while the caller leads, and resigns when fn has returned, also when fn
// panics. It returns the error of fn, joined with that of Resign: with ErrLockLost if the lead was
// lost while fn ran.
//
// The ctx of fn ends when the lead is lost, and when ctx is done. The lead is given up only
// after fn has returned, so the next leader does not begin before the work of this one has ended. A leader
// that was lost is different: its lease ends whether fn returns or not.
func (e *Election) Lead(ctx context.Context, fn func(ctx context.Context) error) (err error) {
	if fn == nil {
		return e.lock.fail("lead", errNilFunction)
	}
	term, err := e.Campaign(ctx)
	if err != nil {
		return err
	}
	defer func() {
		// Also when fn panics: then err is dropped and the panic goes on.
		if resigned := term.resign(ctx, "lead"); resigned != nil {
			err = errors.Join(err, resigned)
		}
	}()
	guarded, err := e.lock.Guard(term.hold.owner().In(ctx))
	if err != nil {
		return err
	}
	within, end := guard.NewCall(guarded)
	defer end()
	return fn(within)
}

// Number is the number of the term that ctx belongs to: ctx is that of [Term.Context], or that of the function which
// Lead calls. The error is ErrNotHeld for another ctx, and ErrLockLost if the lead was lost.
func (e *Election) Number(ctx context.Context) (int64, error) { return e.lock.Token(ctx) }

// A Term is the time for which one process leads. The methods of a nil *Term are safe to call, as those of a nil [Hold]
// are.
type Term struct {
	hold   *Hold
	number int64
}

// Context is the ctx for the work of the leader. It has the values of the ctx of Campaign, but not its end: use
// [Term.Guard] for work that also ends with the ctx of its caller. It ends
// with cause ErrLockLost when the lead is lost, context.Canceled after Resign, and ErrClosed after
// Close: see [Hold.Context]. The work has to stop when the ctx is done, and must have stopped before Resign.
func (t *Term) Context() context.Context { return t.held().Context() }

// held is the hold of the term; nil: t is nil or zero.
func (t *Term) held() *Hold {
	if t == nil {
		return nil
	}
	return t.hold
}

// Guard returns a context for the work of the leader, with the values, the deadline and the cancellation of ctx, that
// is also canceled when the lead is lost and after Resign: see [Hold.Guard]. The error is ErrNotHeld after Resign, and
// ErrLockLost if the lead was lost.
func (t *Term) Guard(ctx context.Context) (context.Context, error) { return t.held().Guard(ctx) }

// Number is the number of the term: greater than that of every term before it. It is the fencing
// token of the leader. Have the resource that the leader writes to refuse a lower one: see [Lock.Token].
func (t *Term) Number() int64 {
	if t == nil {
		return 0
	}
	return t.number
}

// Resign gives up the lead, and the next candidate is elected; with [AtLeast], when that time is over. It keeps the
// values of ctx but does not end with ctx, and works after Close: see [Hold.Release].
//
// Resign may be repeated: only the first call does anything, and the others return nil. The error is
// ErrLockLost if the lead was lost before. After any other error Redis has not confirmed that the
// lead is given up, and the term is over all the same.
func (t *Term) Resign(ctx context.Context) error { return t.resign(ctx, "resign") }

// resign is Resign. Its errors name op.
func (t *Term) resign(ctx context.Context, op string) error {
	if err := t.held().release(ctx, op); !errors.Is(err, errReleased) {
		return err
	}
	return nil
}

// A Leader is the process that leads. The zero Leader stands for a vacancy.
type Leader struct {
	// Client is the [Client.ID] of the leader's Client, or the UUID of a RedissonClient that holds the lock.
	Client string
	// Owner is the owner within that process: see [Contender].
	Owner string
	// Label and Host are those of the process, if it has a label: see [WithLabel].
	Label, Host string
	// Number is the number of its term. It is 0, or that of an earlier term, where
	// the lock is held through a lock that was made without Fenced.
	Number int64
}

// Vacant reports whether no process leads.
func (l Leader) Vacant() bool { return l.Client == "" }

// leadsAs reports whether l and other are one leader in one term. The label and the host are read in a request of their
// own, which Redis may refuse or answer late: they say nothing about a change.
func (l Leader) leadsAs(other Leader) bool {
	return l.Client == other.Client && l.Owner == other.Owner && l.Number == other.Number
}

// Leader returns the process that leads, and false where none does. It is one request, and by the time that it returns
// there may be another leader. The Redis user needs the rights of [Client.Inspect].
//
// In an election with [AtLeast] a leader that has resigned early is returned until that time is over: its record stays
// in Redis, which does not tell it from that of a leader at work, and nobody else can lead so long.
func (e *Election) Leader(ctx context.Context) (Leader, bool, error) {
	leader, err := e.look(ctx)
	return leader, !leader.Vacant(), err
}

// look is Leader. The zero Leader is a vacancy.
func (e *Election) look(ctx context.Context) (Leader, error) {
	i, err := e.client.Inspect(ctx, e.Name())
	if err != nil || len(i.Holders) == 0 {
		return Leader{}, err
	}
	h := i.Holders[0]
	return Leader{Client: h.Client, Owner: h.Owner, Label: h.Label, Host: h.Host, Number: i.Token}, nil
}

// Observe tells who leads: first the present state, and then each change of it. A vacancy is the zero [Leader]. A
// change is another client, owner or number; Label and Host are as they could be read at that moment. With [AtLeast]
// the end of a term is told when that time is over: see [Election.Leader]. Observe looks once in every poll interval
// ([WithMaxWakeDelay]), and misses what was shorter: a vacancy between two leaders, or a whole term.
//
//	for leader, err := range election.Observe(ctx) {
//		...
//	}
//
// A look that fails is reported as an error, once until a look succeeds, and Observe goes on. After
// ErrInvalid and ErrClosed the sequence ends. It ends without an error when ctx is done.
func (e *Election) Observe(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		var last Leader
		known, failing := false, false
		for {
			leader, err := e.look(ctx)
			switch {
			case ctx != nil && ctx.Err() != nil:
				return
			case err != nil:
				if !failing && !yield(Leader{}, err) || errors.Is(err, ErrInvalid) || errors.Is(err, ErrClosed) {
					return
				}
				failing = true
			case !known || failing || !leader.leadsAs(last):
				known, failing, last = true, false, leader
				if !yield(leader, nil) {
					return
				}
			}
			_ = e.client.engine.Pause(ctx, e.client.engine.PollDelay(-1)) // the next look says why it was cut short
		}
	}
}
