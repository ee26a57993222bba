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

// An Election chooses a leader among processes. It is a fenced [Lock] of the same name: the leader holds the lock, and
// its lease is renewed automatically. If a leader crashes, another candidate follows when the lease has expired. An
// Election may be used by any number of goroutines at once.
type Election struct {
	client *Client
	lock   Lock
}

// NewElection returns the election with the given name. The options are those of the lock; Fenced is implied.
// NewElection sends no request. A bad name is reported by the methods of the election. A lock of the same name, if
// there is one, excludes the leader: make it with Fenced, too.
func (c *Client) NewElection(name string, opts ...LockOption) *Election {
	return &Election{c, *c.NewLock(name, append(slices.Clone(opts), Fenced())...)}
}

// Name returns the name of the election, which is the key of its lock in Redis.
func (e *Election) Name() string { return e.lock.Name() }

// Campaign blocks until the caller is the leader, or ctx is done: then the error matches the error of ctx, and the
// caller is no longer a candidate. Each call is a candidate of its own. Candidates are elected in the order of the wait
// queue of a [Lock].
//
// The term lasts until Resign. A Term that is forgotten stays in office until the Client is closed.
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

// Lead campaigns, calls fn when the caller is the leader, and resigns when fn has returned, also if fn panics. It
// returns the error of fn, joined with the error of Resign: the result matches ErrLockLost if the leadership was lost
// while fn was running.
//
// The context of fn is canceled when the leadership is lost, and when ctx is. The leadership is given up only after fn
// has returned, so that the next leader does not begin before the work of this one has ended. If it is lost, however,
// the lease expires whether fn returns or not.
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

// Token returns the number of the term to which ctx belongs: the context of [Term.Context], or the one that Lead
// passes to its function. The error is ErrNotHeld for another context, and ErrLockLost if the leadership was lost.
func (e *Election) Token(ctx context.Context) (int64, error) { return e.lock.Token(ctx) }

// A Term is the time in which one process is the leader. The methods of a nil Term may be called, as those of a nil
// [Hold].
type Term struct {
	hold   *Hold
	number int64
}

// Context returns a context for the work of the leader. It has the values of the context of Campaign, but not its
// cancellation: use [Term.Guard] for work that is to end with the context of its caller. It is canceled with the cause
// ErrLockLost when the leadership is lost, context.Canceled after Resign, and ErrClosed after Shutdown and Close: see
// [Hold.Context]. The work has to stop when it is canceled, and must have stopped before Resign is called.
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

// Token returns the number of the term, which is greater than the number of every earlier term. It is the fencing
// token of the leader: have the resource to which the leader writes reject a lower one. See [Lock.Token].
func (t *Term) Token() int64 {
	if t == nil {
		return 0
	}
	return t.number
}

// Resign ends the term, and the next candidate is elected; with [MinHold] when that time is over. It ignores the
// cancellation of ctx, and works after Close: see [Hold.Release].
//
// Resign may be called more than once: only the first call has an effect, and the others return nil. The error is
// ErrLockLost if the leadership was lost before. After any other error Redis has not confirmed that the lock is
// released; the term is over all the same.
func (t *Term) Resign(ctx context.Context) error { return t.resign(ctx, "resign") }

// resign is Resign. Its errors name op.
func (t *Term) resign(ctx context.Context, op string) error {
	if err := t.held().release(ctx, op); !errors.Is(err, errReleased) {
		return err
	}
	return nil
}

// A Leader identifies the process that is the leader. The zero Leader stands for a vacancy.
type Leader struct {
	// Client is the [Client.ID] of the leader's Client, or the UUID of a RedissonClient that holds the lock.
	Client string
	// Owner is the owner within that process: see [Contender].
	Owner string
	// Label and Host are those of the process, if it has a label: see [WithLabel].
	Label, Host string
	// Token is the number of its term. It is 0, or that of an earlier term, where
	// the lock is held through a lock that was made without Fenced.
	Token int64
}

// Vacant reports whether no process is the leader.
func (l Leader) Vacant() bool { return l.Client == "" }

// leadsAs reports whether l and other are one leader in one term. The label and the host are read in a request of their
// own, which Redis may refuse or answer late: they say nothing about a change.
func (l Leader) leadsAs(other Leader) bool {
	return l.Client == other.Client && l.Owner == other.Owner && l.Token == other.Token
}

// Leader returns the current leader, and reports whether there is one. It is one request; when it returns, there may be
// another leader. The Redis user needs the permissions of [Client.Inspect].
//
// In an election with [MinHold] a leader that has resigned early is returned until that time is over: its key stays in
// Redis, where it looks like that of a working leader, and no other process can be elected meanwhile.
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
	return Leader{Client: h.Client, Owner: h.Owner, Label: h.Label, Host: h.Host, Token: i.Token}, nil
}

// Observe returns a sequence of leaders: the current one, and then each change. A vacancy is the zero [Leader]. A
// change is another client, owner or number; Label and Host are those that could be read at that moment. With [MinHold]
// the end of a term is reported when that time is over: see [Election.Leader]. Observe asks once in each poll interval
// ([WithPollInterval]), and misses what is shorter: a vacancy between two leaders, or a whole term.
//
//	for leader, err := range election.Observe(ctx) {
//		...
//	}
//
// A request that fails is reported as an error, once until a request succeeds, and Observe continues. After ErrInvalid
// and ErrClosed the sequence ends. It ends without an error when ctx is done.
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
			_ = e.client.engine.Pause(ctx, e.client.engine.PollDelay(-1)) // the next look returns why it was cut short
		}
	}
}
