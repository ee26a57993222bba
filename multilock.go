package relock

// MultiLock: several locks, all of them or none.
//
// Rules: a MultiLock keeps no state. Each of its locks knows its own holders. Locks are acquired in one order
// everywhere, and a holder waits only for locks that come later in that order, so that no two MultiLocks wait for each
// other. Where the order may differ between processes, because addresses cannot tell the servers apart, a holder waits
// for a limited time only: see sequence. Locks that one script can acquire form one step, which holds none of its locks
// while it waits. The first attempt is made on all steps at the same time, and waits for none of them.

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/opaque"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/waitgroup"
)

// A MultiLock is a group of locks that are acquired and released together. Each of them behaves as if it had been
// acquired by itself: it excludes other owners, has its own hold count, and is renewed and lost like a single lock.
//
// The Locks, ReadLocks and WriteLocks of one Client (in a Cluster: those in the same slot) are acquired by one script
// in one round trip, all of them or none. Fair locks, semaphores, and the locks of other Clients or slots need requests
// of their own, which are first sent at the same time. If one of the locks is held by another owner, or is a RedLock or
// a Locker of another package, the locks are acquired one after the other. Their order is the same in every process and
// does not depend on the order of the arguments of NewMultiLock, so that two MultiLocks never wait for each other. It
// does depend on the addresses of the servers: if the locks are on several servers, use the same addresses in every
// process. Lockers of other packages come last.
//
// If the locks belong to several Clients, and go-redis does not know the addresses of their servers, because they are
// behind Sentinels, or the Redis client has a Dialer of its own, the order may differ between processes. Then the
// MultiLock does not hold some of its locks for long while it waits for another one: it releases them, waits for that
// lock first, and then acquires the others. It is patient for 25ms at first, and four times as long after each attempt,
// so that it acquires all of them in the end. The error of a call whose time is up names two of these locks.
//
// A MultiLock does not join the wait queues of its locks. It acquires them when it finds all of them free. While
// processes wait for one of its locks, it has a chance once in each hand-off window (see [WithHandoffWindow]), like a
// Java service.
//
// Unlock decrements the hold count of every lock, even if it fails for one of them, and joins the errors. The context
// of Guard is canceled as soon as one of the locks is lost. An explicit lease starts when the last lock has been
// acquired, and ends for all locks at the same time. The lease of a Locker of another package ends independently: if
// there is such a Locker, call Unlock even if an explicit lease has expired. A MultiLock has no fencing token, because
// each of its locks may have one. ForceUnlock releases the locks in reverse order, so that no waiter loses a lock that
// it has just acquired.
type MultiLock struct{ handle }

// multi has the commands of a MultiLock.
type multi struct {
	client *Client
	locks  []Locker // in the order in which they are acquired
	steps  []step   // the same locks, grouped

	elsewhere bool     // some locks belong to other Clients
	doubt     []string // two locks whose order may differ between processes; nil: there are none
}

// restartPause is how long a MultiLock waits before it starts again with its first lock.
const restartPause = 10 * time.Millisecond

// A step of a MultiLock acquires one lock, or several that one script can acquire.
type step struct {
	locks   []Locker
	engine  *engine.Engine  // nil for a foreign Locker
	ids     []contract.Lock // the locks of this package
	records []contract.Lock // the same locks, if each has a record and is acquired without its methods: see isOurs
	members []component     // the same locks
}

// NewMultiLock returns a lock that consists of the given locks. They may be of any type, including MultiLocks and
// RedLocks, and belong to several Clients. NewMultiLock sends no request. The methods return ErrInvalid if there are no
// locks, if one of them is nil, and if two of them are the same lock. If go-redis does not know the addresses of the
// servers, one lock that was passed twice, through two Clients, is found when it is acquired. The name of a MultiLock
// consists of the names of its locks. Waiting for the MultiLock ends when c is closed.
func (c *Client) NewMultiLock(locks ...Locker) *MultiLock {
	components, err := componentsOf(c, locks)
	if err == nil {
		components, err = flattenMulti(components)
	}
	if err != nil {
		return &MultiLock{handle{bad: err}}
	}
	slices.SortStableFunc(components, component.compare)
	names := make([]string, len(components))
	for i, m := range components {
		names[i] = m.Name()
	}
	return &MultiLock{
		handle{client: c, name: strings.Join(names, ","), bad: checkTwice(components), many: opaque.To(newMulti(c, components))},
	}
}

// newMulti returns the commands of components, which are in the order in which they are acquired.
func newMulti(c *Client, components []component) *multi {
	l := &multi{client: c}
	for i, m := range components {
		l.locks = append(l.locks, m.Locker)
		l.elsewhere = l.elsewhere || m.record == nil || m.client != c
		if i > 0 && l.doubt == nil && !components[i-1].isToldFrom(m) {
			l.doubt = []string{components[i-1].where(), m.where()}
		}
		if i == 0 || !m.bundles(components[i-1]) {
			l.steps = append(l.steps, step{})
		}
		l.steps[len(l.steps)-1].add(m)
	}
	return l
}

// add adds m to the locks that the step acquires.
func (s *step) add(m component) {
	s.locks, s.members = append(s.locks, m.Locker), append(s.members, m)
	if m.lock != nil {
		s.engine, s.ids = m.client.engine(), append(s.ids, m.lock)
	}
	if m.record != nil && isOurs(m.Locker) {
		s.records = append(s.records, m.record)
	}
}

func (l *multi) acquire(ctx context.Context, r engine.Request) (ok bool, err error) {
	if err := l.open(ctx); err != nil {
		return false, err
	}
	ctx = engine.OwnerOf(ctx).In(ctx)
	within, stop := l.untilClosed(ctx)
	defer stop()
	returned := false
	defer func() {
		if ok && !returned { // ctx has panicked, or ended the goroutine, in stop
			_ = releaseAll(context.WithoutCancel(ctx), l.locks, nil)
		}
	}()
	ok, err = l.acquireSteps(within, r)
	stop()
	returned = true
	return ok, err
}

// acquireSteps is acquire for a ctx that is canceled if a Client of one of the locks is closed.
func (l *multi) acquireSteps(ctx context.Context, r engine.Request) (bool, error) {
	r.Component = len(l.locks) > 1
	var deadline time.Time
	if r.Wait > 0 {
		deadline = time.Now().Add(r.Wait)
	}
	if r.Wait != 0 && l.mayAcquireTogether() {
		ok, err := l.acquireTogether(ctx, deadline, r)
		if ok || err != nil && isOver(deadline) {
			return ok, err
		}
	}
	q := l.newSequence()
	for asked := 1; ; asked++ {
		ok, err := l.acquireInTurn(ctx, deadline, r, &q)
		r.Again = r.Again || err == errAllLate
		if err == errNotLasting && r.Wait != 0 || err == errAllLate && asked < engine.MostAsked {
			// The first locks expired before the other locks were free, or too little of their lease remains.
			if err = l.pause(ctx, deadline, err); err == nil {
				continue
			}
		}
		return ok, err
	}
}

// pause waits before the MultiLock starts over because of why. It returns nil, or the error to return instead.
func (l *multi) pause(ctx context.Context, deadline time.Time, why error) error {
	p := l.client.engine().UntilShutdown(ctx, deadline)
	err := p.Sleep(nil, nil, nil, restartPause)
	if err == errTimeUp {
		return why
	}
	return err
}

// errNotLasting is the error for a lock that was lost before the last lock was acquired.
var errNotLasting = engine.LossError(errors.New("one of its locks was lost before all of them were acquired"))

// errAllLate is the error for a lease of which too little remains when all locks are acquired.
var errAllLate = engine.LossError(engine.ErrLate)

// mayAcquireTogether reports whether all steps are likely to be free. If one of them is busy, the others are kept from
// other owners for a round trip, in vain.
func (l *multi) mayAcquireTogether() bool {
	for _, s := range l.steps {
		if s.records == nil || s.engine.InUse(s.ids) {
			return false
		}
	}
	return len(l.steps) > 1
}

// acquireTogether makes one attempt on all steps at the same time, and reports whether all are held. If not, it
// releases those that it has acquired. If the caller has time left, it drops the error, because acquireInOrder comes to
// the same error, or has more time for an answer.
func (l *multi) acquireTogether(ctx context.Context, deadline time.Time, r engine.Request) (bool, error) {
	within, done := context.WithCancel(ctx)
	defer done()
	r.Wait, r.AnswerBy, r.Trial = 0, deadline, true
	end := time.Now().Add(lease.Validity(r.Lease))
	taken, concluded := make([]bool, len(l.steps)), false
	defer func() {
		if !concluded { // code of the user has panicked, or ended the goroutine
			_ = releaseAll(context.WithoutCancel(ctx), locksOf(l.taken(taken)), nil)
		}
	}()
	err := errors.Join(forEach(l.steps, func(i int, s step) (err error) {
		taken[i], err = s.acquire(ctx, r)
		return err
	})...)
	if err == nil && !slices.Contains(taken, false) {
		if _, err = guardAll(within, l.locks); err == nil {
			err = l.endLeasesAt(engine.OwnerOf(ctx), end, r, l.steps)
		}
		if err == nil && ctx.Err() == nil && l.client.engine().Open() == nil {
			concluded = true
			return true, nil
		}
	}
	concluded = true
	return false, l.client.releaseInTime(ctx, deadline, locksOf(l.taken(taken)), err)
}

// taken returns the steps of l that are set in which.
func (l *multi) taken(which []bool) (some []step) {
	for i, s := range l.steps {
		if which[i] {
			some = append(some, s)
		}
	}
	return some
}

// isOver reports whether the deadline of a caller has passed; zero: it has none.
func isOver(deadline time.Time) bool { return !deadline.IsZero() && !time.Now().Before(deadline) }

// acquireInOrder acquires all steps once, in the order of q.
func (l *multi) acquireInOrder(ctx context.Context, deadline time.Time, r engine.Request, q *sequence) (bool, error) {
	within, done := context.WithCancel(ctx)
	defer done()
	guards := make([]context.Context, len(q.steps)-1)
	kept := l.keepLeases(within, r.Lease)
	defer kept.end()
	taken := 0
	defer func() { // this has an effect only after code of the user has panicked, or ended the goroutine
		if taken > 0 {
			_ = releaseAll(context.WithoutCancel(ctx), locksOf(q.steps[:taken]), nil)
		}
	}()
	fail := func(why error) (bool, error) {
		kept.end()
		steps := q.steps[:taken]
		taken = 0
		return false, l.client.releaseInTime(ctx, l.answersBy(deadline, r), locksOf(steps), why)
	}
	for i, s := range q.steps {
		if !deadline.IsZero() {
			r.Wait, r.AnswerBy = max(0, time.Until(deadline)), deadline
		}
		last := i == len(guards)
		if r.LeastLease = 0; r.Lease != 0 && !last {
			r.LeastLease = leastKept
		}
		ok, err := q.acquire(ctx, i, r, deadline)
		if ok {
			taken++
			kept.add(s)
		}
		if ok && !last {
			if guards[i], err = guardAll(within, s.locks); errors.Is(err, ErrNotHeld) { // the step is already lost
				err = errNotLasting
			}
		}
		if !ok || err != nil {
			return fail(err)
		}
	}
	kept.end()
	err := l.startLeases(ctx, guards, r, l.answersBy(deadline, r), q.steps)
	if err == nil {
		err = l.client.engine().Open()
	}
	if err != nil {
		return fail(err)
	}
	taken = 0
	return true, nil
}

// answersBy returns the time until which a caller waits for answers from now on, or zero if there is no limit.
func (l *multi) answersBy(deadline time.Time, r engine.Request) time.Time {
	if deadline.IsZero() && r.Wait == 0 {
		return time.Now().Add(l.client.engine().Patience())
	}
	return deadline
}

// startLeases checks with guards that all steps are held. The last step was acquired just before, so an explicit lease
// begins now, and ends for all locks at the same time.
func (l *multi) startLeases(
	ctx context.Context,
	guards []context.Context,
	r engine.Request,
	by time.Time,
	steps []step,
) error {
	end := time.Now().Add(lease.Validity(r.Lease))
	for i, guard := range guards {
		var err error
		if r.Lease != 0 && guard.Err() == nil {
			err = steps[i].startLease(ctx, r.Lease, by)
		}
		switch {
		case ctx.Err() != nil:
			return ctxError(ctx)
		case guard.Err() != nil || errors.Is(err, ErrLockLost):
			return errNotLasting
		case err != nil:
			return err
		}
	}
	return l.endLeasesAt(engine.OwnerOf(ctx), end, r, steps[len(guards):])
}

// endLeasesAt makes an explicit lease end for all steps at the same time: at end, or earlier if the lease of one of the
// latest steps, which were acquired with it, ends earlier.
func (l *multi) endLeasesAt(o engine.Owner, end time.Time, r engine.Request, latest []step) error {
	if r.Lease == 0 || len(l.steps) == 1 {
		return nil
	}
	end = validUntil(latest, o, end)
	l.endTogether(o, end)
	left, whole := time.Until(end), lease.Validity(r.Lease)
	if !lease.EnoughValidityLeft(left, whole, false) && (!r.Again || !lease.Suffices(left, whole, false)) {
		return errAllLate
	}
	return nil
}

// locksOf returns all locks of steps.
func locksOf(steps []step) (locks []Locker) {
	for _, s := range steps {
		locks = append(locks, s.locks...)
	}
	return locks
}

// releaseInTime is releaseAll for a caller that has time until deadline. If Redis does not answer by then, the release
// continues without the caller.
func (c *Client) releaseInTime(ctx context.Context, deadline time.Time, locks []Locker, why error) error {
	if len(locks) == 0 {
		return why
	}
	p := c.engine().UntilShutdown(ctx, deadline)
	given := make(chan struct{})
	var err error // written before given is closed
	c.engine().Spawn(func() {
		defer close(given)
		err = releaseAll(context.WithoutCancel(ctx), locks, why)
	})
	if p.Sleep(given, nil, nil, 0) != nil {
		select {
		case <-given:
		case <-time.After(send.MinWait):
			return why
		}
	}
	return err
}

// releaseAll releases locks, which the caller gives up because of why. It joins the errors of Unlock to why.
func releaseAll(ctx context.Context, locks []Locker, why error) error {
	errs := forEach(locks, func(_ int, m Locker) error {
		if h := insideOf(m); h != nil {
			h.client.engine().DropMinHold(h.lock, engine.OwnerOf(ctx))
		}
		if err := m.Unlock(ctx); !errors.Is(err, ErrNotHeld) { // a lock that is already lost need not be released
			return err
		}
		return nil
	})
	if also := errors.Join(errs...); also != nil {
		return errors.Join(why, also)
	}
	return why
}

func (l *multi) release(ctx context.Context) error {
	ctx = engine.OwnerOf(ctx).In(ctx)
	return errors.Join(forEach(l.locks, func(_ int, m Locker) error { return m.Unlock(ctx) })...)
}

func (l *multi) extend(ctx context.Context, length time.Duration) error {
	if err := l.open(ctx); err != nil {
		return err
	}
	errs := forEach(l.locks, func(_ int, m Locker) error { return extendLocker(ctx, m, length) })
	isRenewed := func(err error) bool { return errors.Is(err, engine.ErrRenewed) }
	if some := slices.DeleteFunc(slices.Clone(errs), isRenewed); len(some) > 0 { // the others last long enough
		errs = some
	}
	// After an error, too: then those that were extended end with the others.
	l.endTogether(engine.OwnerOf(ctx), time.Now().Add(lease.Validity(math.MaxInt64)))
	return errors.Join(errs...)
}

// validUntil returns the time until which all holds of o on steps are valid that have an explicit lease, but no later
// than end. It returns the present time if one of the holds has ended.
func validUntil(steps []step, o engine.Owner, end time.Time) time.Time {
	for _, s := range steps {
		if s.engine != nil {
			end = s.engine.ValidUntil(s.ids, o, end)
		}
	}
	return end
}

// endTogether makes the holds of o on the locks, which have an explicit lease, end at the same time: when the first of
// them ends, and at end at the latest. If one of them has ended, the others need not end with it: a goroutine of o that
// releases all of them has perhaps released this one, and must not find the others lost.
func (l *multi) endTogether(o engine.Owner, end time.Time) {
	if first := validUntil(l.steps, o, end); time.Now().Before(first) {
		end = first
	}
	for _, s := range l.steps {
		if s.engine != nil {
			s.engine.LimitValidity(s.ids, o, end)
		}
	}
}

func (l *multi) token(context.Context) (int64, error) {
	return 0, invalid("a MultiLock has no token: each of its locks may have one")
}

// Do acquires all locks, calls fn with a context that is canceled when one of them is lost, and releases them: see
// [Lock.Do].
func (l *MultiLock) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	ctx, end := l.within(ctx)
	defer end()
	return do(ctx, l, fn)
}

// TryDo is like Do, but waits for at most wait, and reports whether fn was called: see [Lock.TryDo].
func (l *MultiLock) TryDo(
	ctx context.Context,
	wait time.Duration,
	fn func(ctx context.Context) error,
) (ran bool, err error) {
	ctx, end := l.within(ctx)
	defer end()
	return tryDo(ctx, l, wait, fn)
}

// within returns the context of a call of Do or TryDo. Guard creates guards at other Clients, which end with the call.
func (l *MultiLock) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if many := l.many.Get(); many == nil || !many.elsewhere || ctx == nil {
		return ctx, func() {}
	}
	return context.WithCancel(ctx)
}

func (l *multi) guard(ctx context.Context) (context.Context, error) {
	if err := l.open(ctx); err != nil {
		return nil, err
	}
	ctx, stop := l.untilClosed(ctx)
	guarded, err := guardAll(ctx, l.locks)
	if err != nil {
		stop()
		return nil, err
	}
	if l.elsewhere {
		context.AfterFunc(guarded, stop)
	}
	return guarded, nil
}

// untilClosed returns a context that is canceled when the Client is closed. It returns ctx itself if all locks belong
// to this Client, because their calls end with the Client anyway.
func (l *multi) untilClosed(ctx context.Context) (context.Context, func()) {
	if !l.elsewhere {
		return ctx, func() {}
	}
	return l.client.engine().UntilClosed(ctx)
}

// guardAll guards the locks one inside the other. So the innermost guard ends with the first guard that ends, and has
// its cause.
func guardAll(ctx context.Context, locks []Locker) (context.Context, error) {
	for _, m := range locks {
		guarded, err := m.Guard(ctx)
		if err != nil {
			return nil, err
		}
		ctx = guarded
	}
	return ctx, nil
}

func (l *multi) isLocked(ctx context.Context) (bool, error) {
	answers, err := askAll(ctx, l, Locker.IsLocked)
	return slices.Contains(answers, true), err
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
	if err := l.open(ctx); err != nil {
		return false, err
	}
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
	if err := l.open(ctx); err != nil {
		return nil, err
	}
	ctx = engine.OwnerOf(ctx).In(ctx)
	answers := make([]T, len(l.locks))
	errs := forEach(l.locks, func(i int, m Locker) (err error) {
		answers[i], err = ask(m, ctx)
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

// acquire increments the hold count of every lock of the step.
func (s *step) acquire(ctx context.Context, r engine.Request) (ok bool, err error) {
	l := s.locks[0]
	switch h := insideOf(l); {
	case s.records != nil:
		ok, err = s.engine.Acquire(ctx, engine.OwnerOf(ctx), r, s.records...)
	case h != nil && isOurs(l):
		r.Component, r.Again = false, false // which are for several locks in one request
		ok, err = h.acquire(ctx, "acquire", r)
	case r.Wait >= 0:
		ok, err = l.TryLock(ctx, r.Wait, s.leaseFor(r))
	case r.Lease > 0:
		err = l.LockLease(ctx, s.leaseFor(r))
		ok = err == nil
	default:
		err = l.Lock(ctx)
		ok = err == nil
	}
	// The owner already held the step, and its lease was about to expire.
	if errors.Is(err, engine.ErrExpired) && !errors.Is(err, engine.ErrUnrenewed) {
		err = errNotLasting
	}
	return ok, err
}

// leaseFor returns the lease with which r acquires the step through the methods of its lock. If this is a type of the
// user that embeds a lock, it is at least the least lease of r, or what MaxHold allows of it: the MultiLock extends the
// lease, and ends it in time. A foreign Locker gets the lease of the caller.
func (s *step) leaseFor(r engine.Request) time.Duration {
	if s.engine == nil || r.Lease == 0 {
		return r.Lease
	}
	return max(r.Lease, s.ids[0].Traits().Limits.Cut(r.LeastLease))
}

// keepLease gives the step, which has an explicit lease, at least this lease from now on, and waits for that until by.
func (s *step) keepLease(ctx context.Context, lease time.Duration, by time.Time) error {
	if s.records != nil {
		return s.engine.KeepLease(ctx, s.records, engine.OwnerOf(ctx), lease, by)
	}
	ctx, cancel := context.WithDeadline(ctx, by)
	defer cancel()
	return extendLocker(ctx, s.locks[0], lease)
}

// startLease starts an explicit lease of the step now.
func (s *step) startLease(ctx context.Context, lease time.Duration, by time.Time) error {
	if s.records != nil {
		return s.keepLease(ctx, lease, by)
	}
	// Any Locker can be acquired once more, which sets the lease, and be released again.
	again := step{locks: s.locks[:1]}
	ok, err := again.acquire(ctx, engine.Request{Lease: lease, AnswerBy: by})
	if !ok {
		return cmp.Or(err, errNotLasting)
	}
	return s.locks[0].Unlock(ctx)
}

// forEach calls f for every lock or step at the same time, and returns the error of each call. A panic in a call is
// handled as an error until all calls have returned: see failed.
func forEach[T any](locks []T, f func(i int, l T) error) []error {
	errs := make([]error, len(locks))
	call := func(i int, l T) {
		errs[i] = send.CatchPanic(func() error { return f(i, l) })
	}
	var all sync.WaitGroup
	defer all.Wait() // also if code of the user ends the goroutine in the call below
	for i, l := range locks[min(1, len(locks)):] {
		waitgroup.Go(&all, func() { call(i+1, l) })
	}
	if len(locks) > 0 {
		call(0, locks[0])
	}
	return errs
}
