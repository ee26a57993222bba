// Package gocron lets several replicas of a service share the jobs of their gocron
// schedulers (github.com/go-co-op/gocron/v2), with locks of relock.
//
// There are two ways. With a [Locker] each run of each job is done by one replica, whichever comes first. With an
// [Elector] one replica, the leader, does all runs.
//
//	locker := gocron.NewLocker(client, relock.MinHold(5*time.Second))
//	scheduler, err := gocronv2.NewScheduler(gocronv2.WithDistributedLocker(locker))
//
// # A run that is done twice
//
// gocron unlocks a job when its run has ended. The clock of another replica may be behind: that replica comes to the
// same run after the end of the first one, finds the lock free, and does the run once more. A Locker therefore keeps
// the lock for a time from the beginning of the run, also where the run was shorter: see [relock.MinHold]. That
// time has to be longer than the clocks of the replicas differ, and shorter than the interval of the job. It cannot
// help jobs whose replicas do not mean the same moments: a DurationJob counts from the start of each scheduler. Use a
// CronJob, or give a DurationJob a start time that all replicas round in the same way (WithStartAt). With an Elector
// the clocks matter only for a run at whose moment the lead passes to another replica.
//
// # A lock that is lost
//
// gocron has no way to tell a run that its lock was lost, and drops the error of Unlock. The Client logs such a
// loss, and tells its Observer. A job that has to stop uses the ctx of [Elector.Context], or takes a lock of its own.
package gocron

// Rules: the locks and leases are relock's, and nothing is kept here but the term of an Elector. The goroutine of
// an Elector ends with Close.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/relock-go/relock"
)

const (
	// Prefix is put before the name of a job to make the name of its lock. Services that share a Redis, and may
	// have jobs of the same name, give their jobs names of their own.
	Prefix = "gocron:"

	// DefaultMinHold is for how long a Locker keeps the lock of a run at least, unless its options say otherwise.
	DefaultMinHold = 500 * time.Millisecond

	pause = time.Second // before another campaign after one that has failed
)

var (
	// ErrTaken says that another replica does this run, or has just done it.
	ErrTaken = errors.New("another replica has the job")

	// ErrNotLeader says that another replica leads, or none does.
	ErrNotLeader = errors.New("this replica does not lead")
)

// A Locker has each run of a job done by one replica. It implements gocron.Locker.
type Locker struct {
	client *relock.Client
	opts   []relock.LockOption
}

// NewLocker returns a Locker for gocron.WithDistributedLocker. The options are those of the locks: relock.MinHold
// replaces DefaultMinHold. A relock.MaxHold shorter than DefaultMinHold needs a relock.MinHold, too: no lock is kept
// for longer than it may be held. NewLocker sends nothing.
func NewLocker(client *relock.Client, opts ...relock.LockOption) *Locker {
	return &Locker{client, append([]relock.LockOption{relock.MinHold(DefaultMinHold)}, opts...)}
}

// Lock takes the lock of the job called key, in one try. The watchdog of the Client renews it while the run lasts. The
// error is ErrTaken if another replica has the lock; it is that of relock otherwise, and then the run is not done
// either.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	hold, ok, err := l.client.NewLock(Prefix+key, l.opts...).TryAcquire(ctx, 0, 0)
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, fmt.Errorf("gocron: lock %q: %w", key, ErrTaken)
	}
	return lock{hold}, nil
}

// A lock is the lock of one run.
type lock struct{ hold *relock.Hold }

// Unlock releases the lock. It goes on when ctx is done, as it has after the Shutdown of a scheduler.
func (l lock) Unlock(ctx context.Context) error { return l.hold.Release(ctx) }

// An Elector has all runs done by the leader, one of the replicas. It implements gocron.Elector.
type Elector struct {
	election *relock.Election
	stop     context.CancelFunc
	ended    chan struct{}

	mu   sync.Mutex // guards below
	term *relock.Term
	err  error // of the last campaign, if it failed
}

// NewElector returns an Elector for gocron.WithDistributedElector, and begins to campaign in
// the election called name. It campaigns again when it has lost the lead, until Close.
//
// The runs before the first election are skipped. Shut the scheduler down before Close, so that its
// runs have ended when another replica leads.
func NewElector(client *relock.Client, name string, opts ...relock.LockOption) *Elector {
	ctx, stop := context.WithCancel(context.Background())
	e := &Elector{election: client.NewElection(name, opts...), stop: stop, ended: make(chan struct{})}
	go e.campaign(ctx)
	return e
}

// IsLeader returns nil if this replica leads. It sends nothing. The error matches ErrNotLeader, and
// says why the last campaign has failed, if it has.
func (e *Elector) IsLeader(context.Context) error {
	e.mu.Lock()
	term, err := e.term, e.err
	e.mu.Unlock()
	switch {
	case term != nil && term.Context().Err() == nil:
		return nil
	case err != nil:
		return fmt.Errorf("gocron: election %q: %w: %w", e.election.Name(), ErrNotLeader, err)
	}
	return fmt.Errorf("gocron: election %q: %w", e.election.Name(), ErrNotLeader)
}

// Context is a ctx for a run of the leader: it ends when this replica does not lead any more. Where it does not
// lead, the ctx is done.
func (e *Elector) Context() context.Context {
	e.mu.Lock()
	term := e.term
	e.mu.Unlock()
	if term != nil {
		return term.Context()
	}
	ended, end := context.WithCancelCause(context.Background())
	end(ErrNotLeader)
	return ended
}

// Close ends the campaign, and resigns if this replica leads. It may be called again.
func (e *Elector) Close() {
	e.stop()
	<-e.ended
}

// campaign leads whenever it can, until ctx is done or the Client is closed.
func (e *Elector) campaign(ctx context.Context) {
	defer close(e.ended)
	for {
		term, err := e.election.Campaign(ctx)
		e.set(term, err)
		switch {
		case errors.Is(err, relock.ErrClosed), errors.Is(err, relock.ErrInvalid):
			return
		case err != nil:
			wait(ctx, pause)
		default:
			select {
			case <-term.Context().Done():
			case <-ctx.Done():
			}
			e.set(nil, nil)
			_ = term.Resign(ctx) // IsLeader says no already; the Client logs a loss
		}
		if ctx.Err() != nil {
			return
		}
	}
}

func (e *Elector) set(term *relock.Term, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.term, e.err = term, err
}

// wait waits for d, or until ctx is done.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
