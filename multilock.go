package relock

// MultiLock: several locks, all of them or none.
//
// Rules: a MultiLock keeps no state. Each of its locks knows its own holders, and is acquired, released and extended as
// if it was used by itself: see gather.go.

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/each"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/opaque"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/waitgroup"
)

// A MultiLock is a group of locks that are acquired and released together. Each of them behaves as if it had been
// acquired by itself: it excludes other owners, has its own hold count, and is renewed and lost like a single lock.
//
// Lock asks for all locks at once, without waiting. If all of them are free, that takes about one round trip. If one of
// them is busy, the MultiLock keeps those before it in the order of their names, gives back the others, and waits for the
// busy one in its wait queue, as any caller of that lock does. Then it asks for the rest at once again. The order is the
// same in every process, and does not depend on the order of the arguments of NewMultiLock, so that two MultiLocks never
// wait for each other. And each wait is one in a queue, so that none of them starves. While a MultiLock waits for one of
// its locks it may hold those before it, so that their MaxHold and MinHold count already. What its owner holds otherwise
// stays held, and an explicit lease stays as it is until all is held: then it is extended, and renewed if the call has no
// lease.
//
// If one of the locks is granted when the time of a TryLock is up, it asks for the others once more, and returns up to
// 0.3s after wait if they do not answer. TryLock with a wait of 0 asks for all locks at once. If that fails, it asks for
// one after the other, in their order, so that, as a rule, one of two such calls acquires them.
//
// Locks with the same name are ordered by the addresses of their servers: use the same addresses in every process. If
// go-redis does not know them, because the servers are behind Sentinels, or the Redis client has a Dialer of its own, the
// order may differ between processes. A RedLock has no place in it at all, because its locks may have any names. Then the
// MultiLock does not hold one of the two for long while it waits for the other one: it gives it back, stays in the queue of
// the other one, and acquires the first one after that. It is patient for about 25ms at first, and four times as long each
// time, so that it acquires both in the end. The name of a Locker of another package has to be the same in every process,
// with the prefix of [WithKeyPrefix].
//
// Unlock decrements the hold count of every lock, even if it fails for one of them, and joins the errors. The context
// of Guard is canceled as soon as one of the locks is lost. Each lock is acquired with an explicit lease, which is
// extended while the others are awaited, and starts for all of them when the last one has been acquired. The locks
// end one after the other then, within a fiftieth of the lease as a rule, and the context of Guard with the first of
// them. A Locker of another package is acquired with the lease, which is not extended and ends
// independently: if there is such a Locker, call Unlock even if an explicit lease has expired. A MultiLock has no fencing token, because
// each of its locks may have one. ForceUnlock releases the locks in reverse order, so that no waiter loses a lock that
// it has just acquired.
type MultiLock struct{ handle }

// multi has the commands of a MultiLock.
type multi struct {
	client *Client
	locks  []member // in the order in which they are acquired
	// ends are the Client and those of the locks: a call ends when one of them is closed. There are none if all locks belong
	// to the Client, because then their calls end with it anyway.
	ends []*Client
}

// NewMultiLock returns a lock that consists of the given locks. They may be of any type, including MultiLocks and
// RedLocks, and belong to several Clients. NewMultiLock sends no request. The methods return ErrInvalid if there are no
// locks, if one of them is nil, if two of them have the same name on the same server, and if they contain both halves of a
// read/write lock. If go-redis does not know the addresses of the servers, it cannot be seen that one lock was passed twice,
// through two Clients: then Lock never acquires both. The name of a MultiLock consists of the names
// of its locks. Waiting for the MultiLock ends when c is closed.
func (c *Client) NewMultiLock(locks ...Locker) *MultiLock {
	members, err := membersOf(c, locks)
	if err != nil {
		return &MultiLock{handle{bad: err}}
	}
	l := &multi{client: c, locks: flat(members, false)}
	slices.SortStableFunc(l.locks, func(a, b member) int { // see members.go
		return cmp.Or(strings.Compare(a.key(), b.key()), strings.Compare(a.server, b.server))
	})
	names, ends := make([]string, len(l.locks)), []*Client{c}
	for i, m := range l.locks {
		names[i] = m.Name()
		if m.in != nil && !slices.Contains(ends, m.in.client) {
			ends = append(ends, m.in.client)
		}
		if m.in == nil || m.in.client != c {
			l.ends = ends
		}
	}
	return &MultiLock{handle{client: c, name: strings.Join(names, ","), bad: checkTwice(l.locks), many: opaque.To(l)}}
}

func (l *multi) acquire(ctx context.Context, r engine.Request) (ok bool, err error) {
	if err := l.open(ctx); err != nil {
		return false, err
	}
	ctx = engine.OwnerOf(ctx).In(ctx)
	within, done := context.WithCancel(ctx)
	defer done()
	within, stop := l.untilClosed(within)
	defer stop()
	g := &gathering{multi: l, ctx: within, request: r, patience: firstPatience}
	if r.Wait >= 0 {
		g.request.AnswerBy = time.Now().Add(cmp.Or(r.Wait, l.client.engine().Patience()))
	}
	for _, m := range l.locks {
		g.parts = append(g.parts, &part{member: m})
	}
	defer func() { // also if code of the user has panicked, or ended the goroutine
		if !ok {
			if e := g.giveBack(g.parts); e != nil {
				err = errors.Join(err, e)
			}
			for _, p := range g.parts {
				p.report.Drop()
			}
		}
	}()
	out, err := g.gather()
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		err = cmp.Or(context.Cause(within), err) // a Client was closed
	}
	if out != acquired {
		return false, err
	}
	stop() // both call methods of ctx
	done()
	for _, p := range g.parts { // nothing can fail any more
		if p.report.Renew != nil {
			p.report.Renew()
		}
	}
	return true, nil
}

func (l *multi) release(ctx context.Context) error {
	ctx = engine.OwnerOf(ctx).In(ctx)
	return errors.Join(forEach(l.locks, func(_ int, m member) error { return m.Unlock(ctx) })...)
}

func (l *multi) extend(ctx context.Context, length time.Duration) error {
	if err := l.open(ctx); err != nil {
		return err
	}
	errs := forEach(l.locks, func(_ int, m member) error { return extendLocker(ctx, m.Locker, length) })
	isRenewed := func(err error) bool { return errors.Is(err, engine.ErrRenewed) }
	if some := slices.DeleteFunc(slices.Clone(errs), isRenewed); len(some) > 0 { // the others last long enough
		errs = some
	}
	return errors.Join(errs...)
}

func (l *multi) guard(ctx context.Context) (context.Context, error) {
	guarded, stop := l.untilClosed(ctx)
	for _, m := range l.locks { // one inside the other: the innermost guard ends with the first that ends, and has its cause
		inner, err := m.Guard(guarded)
		if err != nil {
			stop()
			return nil, err
		}
		guarded = inner
	}
	if len(l.ends) > 0 {
		context.AfterFunc(guarded, stop)
	}
	return guarded, nil
}

// untilClosed returns a context that is canceled when one of the Clients in ends is closed.
func (l *multi) untilClosed(ctx context.Context) (context.Context, func()) {
	stops := make([]func(), len(l.ends))
	for i, c := range l.ends {
		ctx, stops[i] = c.engine().UntilClosed(ctx)
	}
	return ctx, func() { each.Do(stops, func(stop func()) { stop() }) }
}

// holdCount returns the smallest hold count of the locks.
func (l *multi) holdCount(ctx context.Context) (int, error) {
	answers, err := askAll(ctx, l, Locker.HoldCount)
	if err != nil {
		return 0, err
	}
	return slices.Min(answers), nil
}

// ttl returns the longest TTL of the locks, and 0 if no owner holds any of them. It is negative if the key of one of
// them has no expiry.
func (l *multi) ttl(ctx context.Context) (time.Duration, error) {
	answers, err := askAll(ctx, l, Locker.TTL)
	if err != nil {
		return 0, err
	}
	if least := slices.Min(answers); least < 0 {
		return least, nil
	}
	return slices.Max(answers), nil
}

// force releases all locks, and reports whether any of them was held. The lock that waiters acquire first is released
// last, so that no waiter loses a lock that it has just acquired.
func (l *multi) force(ctx context.Context) (bool, error) {
	var any bool
	var errs []error
	for _, m := range slices.Backward(l.locks) {
		freed, err := m.ForceUnlock(ctx)
		any = any || freed
		errs = append(errs, err)
	}
	return any, errors.Join(errs...)
}

// askAll asks all locks of l at the same time.
func askAll[T any](ctx context.Context, l *multi, ask func(Locker, context.Context) (T, error)) ([]T, error) {
	ctx = engine.OwnerOf(ctx).In(ctx)
	answers := make([]T, len(l.locks))
	errs := forEach(l.locks, func(i int, m member) (err error) {
		answers[i], err = ask(m.Locker, ctx)
		return err
	})
	return answers, errors.Join(errs...)
}

// open returns the reason why l cannot send requests, or nil.
func (l *multi) open(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctxError(ctx)
	}
	return l.client.engine().Alive()
}

// forEach calls f for every lock at the same time, and returns the error of each call. A panic in a call is
// handled as an error until all calls have returned: see failed.
func forEach[T any](locks []T, f func(i int, l T) error) []error {
	errs := make([]error, len(locks))
	var all sync.WaitGroup
	for i, l := range locks {
		waitgroup.Go(&all, func() {
			errs[i] = send.ErrHookExited // unless the goroutine goes on
			errs[i] = send.CatchPanic(func() error { return f(i, l) })
		})
	}
	all.Wait()
	return errs
}
