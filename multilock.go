package relock

// The lock of many: all of them, or none.
//
// Rules: it keeps no state, each of its locks knows who holds it. Locks are taken
// in one order everywhere, and what is held waits only for what comes later in
// it, so that no two wait for each other; what one script can take is taken
// together, and holds nothing of it while it waits.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/send"
)

// A MultiLock is many locks that are held together. Each of them is held as if it
// had been locked by itself, and excludes, re-enters, renews and is lost as such.
//
// Locks on the same Redis (on a Cluster: in the same slot) are taken by one script
// in one round trip, all or none; fair locks, and those on different servers, one
// after the other. The order does not depend on that in which they were given, so
// that two MultiLocks never wait for each other. It does depend on the addresses
// of the servers: where the locks of one MultiLock are on several, give these the
// same addresses in every process.
//
// IsLocked says whether any of the locks is held, by anybody: whether there is
// something in the way. IsHeld says whether the caller holds all of them, and
// HoldCount how often. TTL is the longest of theirs, ForceUnlock frees all of
// them. Unlock gives back one level of each, whatever the others answer, and
// joins their errors. The guarded context ends as soon as one of them is lost.
// An explicit lease counts from the moment when the last one was taken. Lockers
// that are not of this package are taken last, and their leases end when they do:
// with such, Unlock also when an explicit lease has run out.
//
// Redisson: RedissonMultiLock, which leaves locks behind when an unlock fails,
// has no order, and cannot be asked.
type MultiLock struct {
	client *Client
	name   string
	locks  []Locker // in the order in which they are taken
	steps  []step   // the same ones
	bad    error    // why it cannot be used, or nil

	elsewhere bool // some belong to other Clients
}

// restartPause is how long a MultiLock waits before it begins again from the start.
const restartPause = 10 * time.Millisecond

// A manyTaker is what a MultiLock needs of its locks beside Locker, where they are of this package. It is the engine
// of their Client.
type manyTaker interface {
	// acquireAll takes one level of every lock of bs, which one script can take: of all of them, or of none.
	acquire(ctx context.Context, o owner, r request, locks ...lockType) (bool, error)
	// settle has the leases of holds begin now that were provisional until then.
	settle(ctx context.Context, bs []lockType, o owner, lease time.Duration) error
	// trustEnd is until when all holds on ls are trusted, or end if that is sooner.
	trustEnd(ls []description, o owner, end time.Time) time.Time
	// setTrustEnd has the holds on ls end at the same moment.
	setTrustEnd(ls []description, o owner, end time.Time)
}

// A step of a MultiLock takes one lock, or several that one script can take.
type step struct {
	locks   []Locker
	engine  manyTaker     // nil: a foreign Locker
	ids     []description // of locks of this package
	records []lockType    // the same locks, if each has a record
}

// NewMultiLock returns the lock of all locks, which may be of any kind, also
// MultiLocks and RedLocks, and of several Clients. It sends nothing; no locks, nil
// and the same lock twice are reported by the methods as ErrInvalid. Its name is
// that of all its locks. When c is closed, nobody waits for it any more.
//
// Redisson: getMultiLock.
func (c *Client) NewMultiLock(locks ...Locker) *MultiLock {
	l := &MultiLock{client: c}
	components, err := componentsOf(c, locks)
	if err == nil {
		components, err = flattenMulti(components)
	}
	if err != nil {
		l.bad = err
		return l
	}
	l.bad = checkTwice(components)
	slices.SortStableFunc(components, component.compare)
	names := make([]string, len(components))
	for i, m := range components {
		names[i] = m.Name()
		l.locks = append(l.locks, m.Locker)
		l.elsewhere = l.elsewhere || m.record == nil || m.client != c
		if i == 0 || !m.bundles(components[i-1]) {
			l.steps = append(l.steps, step{})
		}
		l.steps[len(l.steps)-1].add(m)
	}
	l.name = strings.Join(names, ",")
	return l
}

// add has the step take m too.
func (s *step) add(m component) {
	s.locks = append(s.locks, m.Locker)
	if m.lock != nil {
		s.engine, s.ids = m.client.engine, append(s.ids, m.lock)
	}
	if m.record != nil {
		s.records = append(s.records, m.record)
	}
}

// Name is the names of all locks.
func (l *MultiLock) Name() string { return l.name }

// Lock waits until the caller holds all locks, or ctx ends: see [Locker].
func (l *MultiLock) Lock(ctx context.Context) error {
	_, err := l.acquire(ctx, "lock", request{wait: -1})
	return err
}

// LockLease is Lock with a lease that is not renewed: see [Locker].
func (l *MultiLock) LockLease(ctx context.Context, lease time.Duration) error {
	r, err := leaseRequest(lease)
	if err != nil {
		return l.fail("lock", err)
	}
	_, err = l.acquire(ctx, "lock", r)
	return err
}

// TryLock waits for all locks no longer than wait: see [Locker].
func (l *MultiLock) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	r, err := tryRequest(wait, lease)
	if err != nil {
		return false, l.fail("trylock", err)
	}
	return l.acquire(ctx, "trylock", r)
}

func (l *MultiLock) acquire(ctx context.Context, op string, r request) (bool, error) {
	if err := l.open(ctx); err != nil {
		return false, l.fail(op, err)
	}
	ctx, stop := l.untilClosed(ownerOf(ctx).in(ctx))
	defer stop()
	r.component = len(l.locks) > 1
	var deadline time.Time
	if r.wait > 0 {
		deadline = time.Now().Add(r.wait)
	}
	for asked := 1; ; asked++ {
		ok, err := l.takeAll(ctx, deadline, r)
		if err == errUnsettled && r.wait != 0 || err == errAllLate && asked < mostAsked {
			// The first locks did not last until the others were free, or too little is left of their lease.
			p := &send.Wait{Ctx: ctx, Closed: l.client.engine.closed, Deadline: deadline}
			why := p.Sleep(nil, nil, nil, restartPause)
			if why == nil {
				continue
			}
			if why != errTimeUp {
				err = why
			}
		}
		return ok, l.fail(op, err)
	}
}

// errUnsettled is a lock that was lost before the last one was taken.
var errUnsettled = lossError(errors.New("before all of them were taken"))

// errAllLate is a lease of which too little is left when all locks are taken.
var errAllLate = lossError(errLate)

// takeAll goes once through all parts.
func (l *MultiLock) takeAll(ctx context.Context, deadline time.Time, r request) (bool, error) {
	within, done := context.WithCancel(ctx)
	defer done()
	last := len(l.steps) - 1
	guards := make([]context.Context, last)
	taken := 0
	defer func() { // somebody else's Locker has panicked
		if taken > 0 {
			_ = giveBack(ctx, locksOf(l.steps[:taken]), nil)
		}
	}()
	fail := func(why error) (bool, error) {
		steps := l.steps[:taken]
		taken = 0
		return false, l.client.engine.giveBackInTime(ctx, deadline, locksOf(steps), why)
	}
	for i, s := range l.steps {
		if !deadline.IsZero() {
			r.wait = max(0, time.Until(deadline))
		}
		if r.interim = 0; r.lease != 0 && i < last {
			r.interim = l.client.engine.watchdogTimeout
		}
		ok, err := s.take(ctx, r)
		if ok {
			taken++
		}
		if ok && i < last {
			if guards[i], err = guardAll(within, s.locks); errors.Is(err, ErrNotHeld) { // any more
				err = errUnsettled
			}
		}
		if errors.Is(err, errLapsed) && !errors.Is(err, errUnrenewed) { // a hold of before that was just about to
			err = errUnsettled
		}
		if !ok || err != nil {
			return fail(err)
		}
	}
	err := l.settle(ctx, guards, r.lease)
	if err == nil {
		err = l.client.engine.open()
	}
	if err != nil {
		return fail(err)
	}
	taken = 0
	return true, nil
}

// settle makes sure that all parts are held, as guards say, and has an explicit
// lease begin now that the last one was taken, and end everywhere at once.
func (l *MultiLock) settle(ctx context.Context, guards []context.Context, lease time.Duration) error {
	end := time.Now().Add(trust(lease))
	for i, guard := range guards {
		var err error
		if lease != 0 && guard.Err() == nil {
			err = l.steps[i].settle(ctx, lease)
		}
		switch {
		case ctx.Err() != nil:
			return ctxError(ctx)
		case guard.Err() != nil || errors.Is(err, ErrLockLost):
			return errUnsettled
		case err != nil:
			return err
		}
	}
	if lease == 0 || len(guards) == 0 {
		return nil
	}
	o := ownerOf(ctx)
	if s := l.steps[len(guards)]; s.engine != nil {
		end = s.engine.trustEnd(s.ids, o, end)
	}
	for _, s := range l.steps {
		if s.engine != nil {
			s.engine.setTrustEnd(s.ids, o, end)
		}
	}
	if !lasts(time.Until(end), trust(lease)) {
		return errAllLate
	}
	return nil
}

// locksOf are all locks of steps.
func locksOf(steps []step) (locks []Locker) {
	for _, s := range steps {
		locks = append(locks, s.locks...)
	}
	return locks
}

// giveBackInTime is giveBack for a caller with so much time: where Redis does not
// answer, that goes on behind its back.
func (e *engine) giveBackInTime(ctx context.Context, deadline time.Time, locks []Locker, why error) error {
	if len(locks) == 0 {
		return why
	}
	p := &send.Wait{Ctx: ctx, Closed: e.closed, Deadline: deadline}
	given := make(chan struct{})
	var err error // written before given is closed
	e.workers.spawn(func() {
		defer close(given)
		err = giveBack(context.WithoutCancel(ctx), locks, why)
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

// giveBack gives up what was taken because of why, and says what else went wrong.
func giveBack(ctx context.Context, locks []Locker, why error) error {
	errs := forEach(locks, func(_ int, m Locker) error {
		if err := m.Unlock(ctx); !errors.Is(err, ErrNotHeld) { // what is lost already need not be given back
			return err
		}
		return nil
	})
	if also := errors.Join(errs...); also != nil {
		return errors.Join(why, also)
	}
	return why
}

// Unlock gives back one level of every lock: see [MultiLock].
func (l *MultiLock) Unlock(ctx context.Context) error {
	if err := l.usable(ctx); err != nil {
		return l.fail("unlock", err)
	}
	ctx = ownerOf(ctx).in(ctx)
	return l.fail("unlock", errors.Join(forEach(l.locks, func(_ int, m Locker) error {
		return m.Unlock(ctx)
	})...))
}

// Do calls fn with all locks held and a guarded ctx: see [Locker].
func (l *MultiLock) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	if l.elsewhere && ctx != nil { // each call of Guard makes guards of its own there: these end with this call
		within, end := context.WithCancel(ctx)
		defer end()
		ctx = within
	}
	return do(ctx, l, fn)
}

// Guard returns a ctx that ends when one of the locks can no longer be trusted: see [Locker].
func (l *MultiLock) Guard(ctx context.Context) (context.Context, error) {
	if err := l.open(ctx); err != nil {
		return nil, l.fail("guard", err)
	}
	ctx, stop := l.untilClosed(ctx)
	guarded, err := guardAll(ctx, l.locks)
	if err != nil {
		stop()
		return nil, l.fail("guard", err)
	}
	if l.elsewhere {
		context.AfterFunc(guarded, stop)
	}
	return guarded, nil
}

// untilClosed returns a ctx that ends when the Client is closed. The locks of this
// Client hear of it by themselves.
func (l *MultiLock) untilClosed(ctx context.Context) (context.Context, func()) {
	if !l.elsewhere {
		return ctx, func() {}
	}
	return l.client.engine.untilClosed(ctx)
}

// guardAll guards one within the other: the innermost ends with the first of them, and has its cause.
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

// IsLocked says whether anybody holds any of the locks.
func (l *MultiLock) IsLocked(ctx context.Context) (bool, error) {
	answers, err := askAll(ctx, l, "is locked", Locker.IsLocked)
	return slices.Contains(answers, true), err
}

// IsHeld says whether the caller holds all locks.
func (l *MultiLock) IsHeld(ctx context.Context) (bool, error) {
	answers, err := askAll(ctx, l, "is held", Locker.IsHeld)
	return err == nil && !slices.Contains(answers, false), err
}

// HoldCount is how often the caller holds all locks.
func (l *MultiLock) HoldCount(ctx context.Context) (int, error) {
	answers, err := askAll(ctx, l, "hold count", Locker.HoldCount)
	if err != nil {
		return 0, err
	}
	return slices.Min(answers), nil
}

// TTL is the longest that is left of the lease of any of the locks, and 0 if
// nobody holds any of them.
func (l *MultiLock) TTL(ctx context.Context) (time.Duration, error) {
	answers, err := askAll(ctx, l, "ttl", Locker.TTL)
	if err != nil {
		return 0, err
	}
	if least := slices.Min(answers); least < 0 {
		return least, nil
	}
	return slices.Max(answers), nil
}

// ForceUnlock frees all locks, whoever holds them, and says whether anybody held
// any. The one that waiters take first comes last, so that none of them is robbed
// of what it has just got.
func (l *MultiLock) ForceUnlock(ctx context.Context) (bool, error) {
	if err := l.open(ctx); err != nil {
		return false, l.fail("force unlock", err)
	}
	var any bool
	var errs []error
	for _, m := range slices.Backward(l.locks) {
		freed, err := m.ForceUnlock(ctx)
		any = any || freed
		errs = append(errs, err)
	}
	return any, l.fail("force unlock", errors.Join(errs...))
}

// askAll asks all locks of l at the same time.
func askAll[T any](ctx context.Context, l *MultiLock, op string, ask func(Locker, context.Context) (T, error)) ([]T, error) {
	if err := l.open(ctx); err != nil {
		return nil, l.fail(op, err)
	}
	ctx = ownerOf(ctx).in(ctx)
	answers := make([]T, len(l.locks))
	errs := forEach(l.locks, func(i int, m Locker) (err error) {
		answers[i], err = ask(m, ctx)
		return err
	})
	return answers, l.fail(op, errors.Join(errs...))
}

func (l *MultiLock) usable(ctx context.Context) error {
	if ctx == nil {
		return invalid("ctx is nil")
	}
	if l.client == nil && l.bad == nil {
		return invalid("a MultiLock is made with NewMultiLock")
	}
	return l.bad
}

// open is usable for what does not work after Close.
func (l *MultiLock) open(ctx context.Context) error {
	if err := l.usable(ctx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctxError(ctx)
	}
	return l.client.engine.open()
}

func (l *MultiLock) fail(op string, err error) error { return failed(op, l.name, err) }

// take takes one level of every lock of the step.
func (s *step) take(ctx context.Context, r request) (bool, error) {
	l := s.locks[0]
	switch {
	case s.records != nil:
		return s.engine.acquire(ctx, ownerOf(ctx), r, s.records...)
	case r.wait >= 0:
		return l.TryLock(ctx, r.wait, r.lease)
	case r.lease > 0:
		err := l.LockLease(ctx, r.lease)
		return err == nil, err
	}
	err := l.Lock(ctx)
	return err == nil, err
}

// settle has an explicit lease of the step begin now.
func (s *step) settle(ctx context.Context, lease time.Duration) error {
	if s.records != nil {
		return s.engine.settle(ctx, s.records, ownerOf(ctx), lease)
	}
	// One level more and one less is what any Locker can do.
	ok, err := s.locks[0].TryLock(ctx, 0, lease)
	if !ok {
		return cmp.Or(err, errUnsettled)
	}
	return s.locks[0].Unlock(ctx)
}

// A component is one of the locks that a MultiLock or a RedLock is made of.
type component struct {
	Locker

	// Of a lock of this package:
	client *Client
	lock   description // nil: a foreign Locker
	id     lockID
	record lockType // the same lock, if it has one record on one server
	server string   // where the record is, as far as that is known
}

// known is a lock of this package.
type known interface{ inside() *handle }

func (h *handle) inside() *handle { return h }

// componentsOf says what locks are.
func componentsOf(c *Client, locks []Locker) ([]component, error) {
	if c == nil {
		return nil, invalid("the Client is nil")
	}
	if len(locks) == 0 {
		return nil, invalid("no locks")
	}
	components := make([]component, len(locks))
	for i, l := range locks {
		if isNil(l) {
			return nil, invalid("lock %d of %d is nil", i+1, len(locks))
		}
		if u, ok := l.(interface{ usable(context.Context) error }); ok {
			if err := u.usable(context.Background()); err != nil {
				return nil, fmt.Errorf("lock %d of %d, %s: %w", i+1, len(locks), shortName(l.Name()), err)
			}
		}
		m := component{Locker: l}
		if k, ok := l.(known); ok {
			h := k.inside()
			m.client, m.lock, m.id, m.record = h.client, h.lock, h.lock.id(), h.record
		}
		if m.record != nil {
			m.server = m.client.server()
		}
		components[i] = m
	}
	return components, nil
}

// flattenMulti puts the locks of MultiLocks in their place.
func flattenMulti(components []component) ([]component, error) {
	var all []component
	for _, m := range components {
		l, ok := m.Locker.(*MultiLock)
		if !ok {
			all = append(all, m)
			continue
		}
		inner, err := componentsOf(l.client, l.locks)
		if err != nil {
			return nil, err
		}
		all = append(all, inner...)
	}
	return all, nil
}

// records are the locks with a record that m consists of.
func (m component) records() (all []component) {
	flat, _ := flattenMulti([]component{m})
	return slices.DeleteFunc(flat, func(m component) bool { return m.record == nil })
}

// compare orders components: the same in every process, for whatever can be known
// there. RedLocks come after locks with a record, and foreign Lockers last.
func (m component) compare(o component) int {
	if m.record == nil || o.record == nil {
		return cmp.Or(
			cmp.Compare(m.rank(), o.rank()),
			strings.Compare(m.place(), o.place()),
			strings.Compare(m.Name(), o.Name()),
		)
	}
	return cmp.Or(
		strings.Compare(m.server, o.server),
		strings.Compare(slotPart(m.id.name), slotPart(o.id.name)),
		strings.Compare(m.id.name, o.id.name),  // by record, whatever kind of lock it is
		-strings.Compare(m.id.half, o.id.half), // the write half before the read half: the other way round is an upgrade
	)
}

// rank is 0 for a lock with a record, 1 for a RedLock, and 2 for a foreign Locker.
func (m component) rank() int {
	switch {
	case m.record != nil:
		return 0
	case m.lock != nil:
		return 1
	}
	return 2
}

// place is that of a RedLock.
func (m component) place() string {
	if l, ok := m.lock.(*redLock); ok {
		return l.place
	}
	return ""
}

// bundles says whether m can be taken together with o.
func (m component) bundles(o component) bool {
	if m.record == nil || o.record == nil || m.client != o.client || m.record.bundled() == 0 || o.record.bundled() == 0 {
		return false
	}
	_, cluster := m.client.rdb.(*redis.ClusterClient)
	return !cluster || slotPart(m.id.name) == slotPart(o.id.name)
}

// checkTwice says whether two components are in each other's way: they are one lock,
// or have the same record and are not the halves of a RWLock.
func checkTwice(components []component) error {
	type place struct{ server, name, half string }
	seen := make(map[any]bool)
	for _, m := range components {
		if m.lock == nil && !reflect.TypeOf(m.Locker).Comparable() {
			continue
		}
		server := m.server
		if server == "" && m.record != nil {
			server = m.client.engine.id
		}
		var self any = m.Locker
		inTheWay := []any{self}
		if m.lock != nil {
			self = place{server, m.id.name, m.id.half}
			inTheWay = []any{self, place{server, m.id.name, ""}}
		}
		if m.lock != nil && m.id.half == "" {
			inTheWay = append(inTheWay, place{server, m.id.name, "read"}, place{server, m.id.name, "write"})
		}
		if slices.ContainsFunc(inTheWay, func(o any) bool { return seen[o] }) {
			return invalid("the same lock twice: %s", shortName(m.Name()))
		}
		seen[self] = true
	}
	return nil
}

// forEach calls f for every lock at the same time, and returns what each answered. A
// panic in one of them is an error until all have answered: see failed.
func forEach(locks []Locker, f func(i int, l Locker) error) []error {
	errs := make([]error, len(locks))
	call := func(i int, l Locker) {
		errs[i] = send.CatchPanic(func() error { return f(i, l) })
	}
	var all sync.WaitGroup
	for i, l := range locks[min(1, len(locks)):] {
		all.Go(func() { call(i+1, l) })
	}
	if len(locks) > 0 {
		call(0, locks[0])
	}
	all.Wait()
	return errs
}
