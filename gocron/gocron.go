// Package gocron lets several replicas of a service share the jobs of their gocron schedulers
// (github.com/go-co-op/gocron/v2), with locks of relock.
//
// There are two ways. With a [Locker] each run of each job is done by one replica: the first one that acquires the
// lock. With an [Elector] one replica, the leader, does all runs.
//
//	locker := gocron.NewLocker(client, relock.MinHold(5*time.Second))
//	scheduler, err := gocronv2.NewScheduler(gocronv2.WithDistributedLocker(locker))
//
// # Runs that are done twice
//
// gocron unlocks a job when its run has ended. If the clock of another replica is behind, that replica starts the same
// run after the end of the first one, finds the lock free, and does the run again. A Locker therefore keeps the lock
// for a minimum time from the beginning of the run, even if the run was shorter: see [relock.MinHold]. That time has to
// be longer than the clocks of the replicas differ, and shorter than the interval of the job. It cannot help with jobs
// that the replicas start at different times: a DurationJob counts from the start of each scheduler. Use a CronJob, or
// give a DurationJob a start time that all replicas round in the same way (WithStartAt). With an Elector the clocks
// matter only for a run that is due when another replica becomes the leader.
//
// # Locks that are lost
//
// gocron has no way to tell a run that its lock was lost, and ignores the error of Unlock. The Client logs the loss,
// and reports it to its Observer. A job that has to stop uses the context of [Elector.Context], or acquires a lock of
// its own.
package gocron

// Rules: the locks and leases are relock's, and nothing is kept here except the term of an Elector. The goroutine of an
// Elector ends with Close.

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
	// Prefix is put before the name of a job to form the name of its lock. If several services share a Redis, give
	// their jobs different names.
	Prefix = "gocron:"

	// DefaultMinHold is the minimum time for which a Locker keeps the lock of a run, unless its options set another
	// one.
	DefaultMinHold = 500 * time.Millisecond

	pause = time.Second // the time between a failed campaign and the next one
)

var (
	// ErrTaken is returned if another replica does this run, or has just done it.
	ErrTaken = errors.New("another replica has the job")

	// ErrNotLeader is returned if another replica is the leader, or none is.
	ErrNotLeader = errors.New("this replica does not lead")
)

// A Locker makes one replica do each run of a job. It implements gocron.Locker.
type Locker struct {
	client *relock.Client
	opts   []relock.LockOption
}

// NewLocker returns a Locker for gocron.WithDistributedLocker. The options are those of the locks. [relock.MinHold]
// replaces DefaultMinHold. If [relock.MaxHold] is shorter than DefaultMinHold, pass a [relock.MinHold] that is not
// longer than it, too. NewLocker sends no request.
func NewLocker(client *relock.Client, opts ...relock.LockOption) *Locker {
	return &Locker{client, append([]relock.LockOption{relock.MinHold(DefaultMinHold)}, opts...)}
}

// Lock acquires the lock of the job with the given key, in one attempt. The lease is renewed automatically while the
// run lasts. The error matches ErrTaken if another replica has the lock. Any other error is one of relock, and the run
// is not done either.
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

// Unlock releases the lock, even if ctx is done, as it is after the Shutdown of a scheduler.
func (l lock) Unlock(ctx context.Context) error { return l.hold.Release(ctx) }

// An Elector makes one of the replicas, the leader, do all runs. It implements gocron.Elector.
type Elector struct {
	election *relock.Election
	stop     context.CancelFunc
	ended    chan struct{}

	mu   sync.Mutex // guards below
	term *relock.Term
	err  error // the error of the last campaign, or nil
}

// NewElector returns an Elector for gocron.WithDistributedElector, and starts to campaign in the election with the
// given name. It campaigns again when it has lost the leadership, until Close.
//
// Runs before the first election are skipped. Shut the scheduler down before Close, so that its runs have ended when
// another replica becomes the leader.
func NewElector(client *relock.Client, name string, opts ...relock.LockOption) *Elector {
	ctx, stop := context.WithCancel(context.Background())
	e := &Elector{election: client.NewElection(name, opts...), stop: stop, ended: make(chan struct{})}
	go e.campaign(ctx)
	return e
}

// IsLeader returns nil if this replica is the leader. It sends no request. Otherwise the error matches ErrNotLeader,
// and also the error of the last campaign, if it failed.
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

// Context returns a context for a run of the leader, which is canceled when this replica is no longer the leader. If it
// is not the leader, the context is done.
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

// Close ends the campaign, and resigns if this replica is the leader. It may be called more than once.
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
			_ = term.Resign(ctx) // IsLeader already returns an error; the Client logs a loss
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
