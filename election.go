package relock

// Elections: one of several processes is the leader.
//
// Rules: the record is that of a fenced Lock of the same name, and nothing else. A Term is a hold of that lock, and its
// token is the fencing token. The work of a leader ends before it resigns.

import (
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/relock-go/relock/internal/engine"
)

// An Election chooses a leader among processes. It is a fenced [Lock] of the same name: the leader holds the lock, and
// its lease is renewed automatically. If a leader crashes, another candidate is elected when its lease has expired. An
// Election may be used by any number of goroutines at once.
type Election struct{ lock Lock }

// NewElection returns the election with the given name. The options are those of the lock; Fenced is implied.
// NewElection sends no request. A name or an option that is not valid is reported by the methods of the election, as
// ErrInvalid. A Lock with the same name and the leader exclude each other; create such a Lock with Fenced, too.
func (c *Client) NewElection(name string, opts ...LockOption) *Election {
	return &Election{*c.NewLock(name, append(slices.Clone(opts), ofElection)...)}
}

// Name returns the name of the election, without the prefix of [WithKeyPrefix]. It is the name of its lock.
func (e *Election) Name() string { return e.lock.Name() }

// Campaign blocks until the caller is the leader, and returns its term. Each call is a candidate of its own, and
// candidates of several processes are elected in the order of the wait queue of a [Lock].
//
// If ctx is done first, the error matches the error of ctx, and [ErrBusy] if another candidate leads or is ahead; the
// caller is no longer a candidate. If the leadership is lost before Campaign returns, the caller is a candidate again.
// Other errors are those of [Lock.Lock]. The term lasts until Resign is called, the leadership is lost or the Client is
// closed.
func (e *Election) Campaign(ctx context.Context) (*Term, error) {
	for asked := 1; ; asked++ {
		hold, _, err := newHold(ctx, &e.lock.handle, "campaign", engine.Request{Wait: -1})
		if err != nil {
			return nil, err
		}
		number, err := hold.Token()
		if err == nil {
			return &Term{hold, number}, nil
		}
		if _ = hold.Release(ctx); !lostUnused(err) || asked == engine.MostAsked { // not lost: the Client is closed
			return nil, err
		}
	}
}

// Lead campaigns, calls fn when the caller is the leader, and resigns when fn has returned, even if fn panics. It
// returns the error of fn, joined with the error of Resign. If the leadership was lost while fn was running, the result
// matches ErrLockLost, and does not match context.Canceled, even if fn has returned the error of its context. After
// Shutdown and Close it matches ErrClosed in that case: see [Lock.Do]. A nil fn is ErrInvalid.
//
// The context of fn is canceled when the leadership is lost, when ctx is canceled, and by Shutdown and Close. Lead
// resigns only after fn has returned, so that the next leader does not begin before the work of this one has ended. If
// the leadership is lost, however, the next leader may begin when the lease has expired, whether fn has returned or not.
func (e *Election) Lead(ctx context.Context, fn func(ctx context.Context) error) error {
	if fn == nil {
		return e.lock.fail("lead", errNilFunction)
	}
	if ctx != nil {
		ctx = ContextWithOwner(ctx)
	}
	_, err := doHeld(ctx, &e.lock.handle, "campaign", "lead", engine.Request{Wait: -1}, fn)
	return err
}

// Token returns the token of the term to which ctx belongs: ctx is the context of [Term.Context], or the one that Lead
// passes to its function. The error is ErrNotHeld for another context, and ErrLockLost if the leadership was lost.
func (e *Election) Token(ctx context.Context) (int64, error) { return e.lock.Token(ctx) }

// A Term is the time in which one caller is the leader. The methods of a nil Term may be called, like those of a nil
// [Hold].
type Term struct {
	hold   *Hold
	number int64
}

// Context returns a context for the work of the leader. It has the values of the context of Campaign, but not its
// cancellation: use [Term.Guard] for work that is to end with the context of its caller. It is canceled with the cause
// ErrLockLost when the leadership is lost, context.Canceled after Resign, and ErrClosed after Shutdown and Close: see
// [Hold.Context]. The work has to stop when the context is canceled, and must have stopped before Resign is called.
func (t *Term) Context() context.Context { return t.held().Context() }

// held returns the hold of the term, or nil if t is nil or zero.
func (t *Term) held() *Hold {
	if t == nil {
		return nil
	}
	return t.hold
}

// Guard returns a copy of ctx for the work of the leader: it has the values, the deadline and the cancellation of ctx,
// and is also canceled when the leadership is lost and after Resign: see [Hold.Guard]. The error is ErrNotHeld after
// Resign, and ErrLockLost if the leadership was lost.
func (t *Term) Guard(ctx context.Context) (context.Context, error) { return t.held().Guard(ctx) }

// Token returns the fencing token of the term, which is greater than the token of every earlier term. Have the resource
// to which the leader writes reject a lower token: see [Lock.Token]. The token of a nil Term is 0.
func (t *Term) Token() int64 {
	if t == nil {
		return 0
	}
	return t.number
}

// Resign ends the term, and the next candidate is elected. In an election with [MinHold] that happens only after that
// time has passed. Resign ignores the cancellation of ctx, takes at most 5s, and works after Close: see [Hold.Release].
//
// Resign may be called more than once: only the first call has an effect, and later calls return nil. The error is
// ErrLockLost if the leadership was lost before. Any other error means that Redis has not confirmed the release of the
// lock; even then the term has ended.
func (t *Term) Resign(ctx context.Context) error {
	if err := t.held().release(ctx, "resign"); !errors.Is(err, errReleased) {
		return err
	}
	return nil
}

// A Leader identifies the process that is the leader. The zero Leader means that there is none.
type Leader struct {
	// Client is the [Client.ID] of the leader's Client, or the UUID of a RedissonClient that holds the lock.
	Client string
	// Owner is the owner within that process: see [Contender].
	Owner string
	// Label and Host are the label and the host of the process. They are "" if it has no label: see [WithLabel].
	Label, Host string
	// Token is the fencing token of the term. It is 0, or the token of an earlier term, if the lock is held through a
	// Lock that was created without Fenced.
	Token int64
}

// Vacant reports whether there is no leader.
func (l Leader) Vacant() bool { return l.Client == "" }

// leadsAs reports whether l and other are one leader in one term. The label and the host are ignored: they are read
// with a request of their own, which Redis may refuse or answer late.
func (l Leader) leadsAs(other Leader) bool {
	other.Label, other.Host = l.Label, l.Host
	return l == other
}

// Leader returns the current leader, and reports whether there is one. It sends one request, and a second one for the
// label of the leader. When it returns, another process may already be the leader. The Redis user needs the permissions
// of [Client.Inspect].
//
// In an election with [MinHold] a leader that has resigned early is returned until that time has passed: its key stays
// in Redis, where it looks like that of a working leader, and no other process can be elected meanwhile.
func (e *Election) Leader(ctx context.Context) (leader Leader, ok bool, err error) {
	i, err := e.lock.inspect(ctx, "leader")
	if err != nil || len(i.Holders) == 0 {
		return Leader{}, false, err
	}
	h := i.Holders[0]
	return Leader{Client: h.Client, Owner: h.Owner, Label: h.Label, Host: h.Host, Token: i.Token}, true, nil
}

// Observe returns a sequence of leaders: the current one, and then one element for each change. The zero [Leader] means
// that there is no leader. A new element follows when the client, the owner or the token changes; Label and Host are
// those that could be read at that moment. With [MinHold] the end of a term is reported when that time has passed: see
// [Election.Leader].
//
// Observe asks Redis once in each poll interval ([WithPollInterval]). It misses changes that are shorter, such as the
// time between two leaders, or a whole term.
//
//	for leader, err := range election.Observe(ctx) {
//		...
//	}
//
// If a request fails, the error is an element of the sequence; further errors are left out until a request succeeds.
// Observe continues after errors, except that the sequence ends after ErrInvalid and ErrClosed. It ends without an
// error when ctx is done.
func (e *Election) Observe(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		var last *Leader // nil: it is not known
		failing := false
		for {
			leader, _, err := e.Leader(ctx)
			switch {
			case ctx != nil && ctx.Err() != nil:
				return
			case err != nil:
				if !failing && !yield(Leader{}, err) || errors.Is(err, ErrInvalid) || errors.Is(err, ErrClosed) {
					return
				}
				failing, last = true, nil
			case last == nil || !leader.leadsAs(*last):
				failing, last = false, &leader
				if !yield(leader, nil) {
					return
				}
			}
			_ = e.lock.client.engine().Pause(ctx, e.lock.client.engine().PollDelay(-1)) // if it is cut short, the next look returns why
		}
	}
}
