package relock

// The lock of a majority: of independent Redis servers, some of which may be down.
//
// Rules: the published Redlock algorithm. All nodes are asked at the same time and
// each is given its own short time; the lock is held when a majority granted it
// and more of the lease is left than clocks may differ. Otherwise it is given
// back everywhere, also where the answer comes late. It is trusted as long as a
// majority of the holds it is made of are. To the engine it is one more backend,
// which never asks a server but only Lockers.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// redPause is about how long a RedLock waits before it asks again after a round
// that it lost by a part: random, so that the same ones do not meet again.
const redPause = 30 * time.Millisecond

// deafPause is how long it waits for what is not announced, or not by a dead node.
const deafPause = 250 * time.Millisecond

var (
	errTaken       = errors.New("somebody else holds it")
	errNodeTimeout = errors.New("no answer within the node timeout")
	errNotAsked    = errors.New("it was not held there, or did not answer")
)

// A QuorumError says that too few of the nodes of a RedLock did what they were
// asked, and what each of them answered.
type QuorumError struct {
	Asked   int // nodes
	Granted int // of them did it
	Needed  int // a majority

	// Answers are in the order of the locks that NewRedLock was given; nil for
	// those that did it.
	Answers []error
}

func (e *QuorumError) Error() string {
	var why strings.Builder
	for i, err := range e.Answers {
		if err != nil {
			fmt.Fprintf(&why, "; node %d: %v", i+1, err)
		}
	}
	return fmt.Sprintf("%d of %d nodes, %d needed%s", e.Granted, e.Asked, e.Needed, why.String())
}

// Unwrap returns what the nodes answered that did not do it.
func (e *QuorumError) Unwrap() []error {
	return slices.DeleteFunc(slices.Clone(e.Answers), func(err error) bool { return err == nil })
}

// A RedLock is held when a majority of its locks are, each on a Redis of its own:
// it survives the loss of the others, and does not depend on replication.
//
// It is safe as long as no node forgets a lock that it granted. A node that was
// restarted without its data must stay away for at least one lease (the longest
// that is asked for; at least the watchdog timeout) before it is asked again, or
// keep its data with appendfsync always. A holder takes such a node again at its
// next renewal, as long as a majority without it can be trusted.
//
// TryLock returns false when others hold a majority, and a [*QuorumError] when dead
// nodes made one impossible; Lock goes on until ctx ends, and joins the last
// QuorumError to ctx's error. Unlock is nil when a majority confirmed. After Close
// the Clients of the locks go on renewing what is held: Close those too, and
// afterwards, so that what is under way can still be given back. Every node is given
// its [WithNodeTimeout] for each of these, and a third of the lease at most.
// IsLocked, IsHeld and TTL are what a majority says; ForceUnlock frees all.
//
// Redisson: RedissonRedLock (deprecated), which neither asks at the same time nor
// looks at how much of the lease is left.
type RedLock struct{ handle }

// NewRedLock returns the lock of a majority of locks: three of five, and of four
// too, which is no better than two of three. Fewer than three, nil, and two on
// one Redis, which would have two votes, are reported by the methods as
// ErrInvalid. It sends nothing. Its name is that of its locks.
//
// The locks may be of any kind; those of fair locks are taken without queueing.
//
// Redisson: getRedLock.
func (c *Client) NewRedLock(locks ...Locker) *RedLock {
	l := &redLock{client: c, locks: slices.Clone(locks), needed: len(locks)/2 + 1}
	members, err := membersOf(c, locks)
	if err == nil && len(members) < 3 {
		err = invalid("%d locks: at least 3", len(members))
	}
	if err == nil {
		err = checkNodes(members)
	}
	if err == nil {
		l.describe(members)
	}
	return &RedLock{handle{client: c, name: l.name.name, lock: l, parts: true, bad: err}}
}

// checkNodes says whether a node would have two votes, or no time to cast one.
func checkNodes(members []member) error {
	votes := make(map[any]int)
	for i, m := range members {
		for _, r := range records(m) {
			if s := r.record.client.synced; s.replicas > 0 && s.within >= r.record.client.nodeTimeout {
				return invalid("%s has WithSyncedReplicas(%d, %v): its Client needs a longer WithNodeTimeout than %v",
					shortName(m.Name()), s.replicas, s.within, r.record.client.nodeTimeout)
			}
			address, _, _ := strings.Cut(r.server, "/")
			for _, node := range []any{r.record.client, address} {
				if voter, ok := votes[node]; ok && voter != i && node != "" {
					return invalid("two locks on one Redis, the second one is %s: a node has one vote", shortName(m.Name()))
				}
				votes[node] = i
			}
		}
	}
	return checkTwice(members)
}

// records are the members with a record that m consists of.
func records(m member) (all []member) {
	apart, _ := takeApart([]member{m})
	for _, m := range apart {
		if m.record != nil {
			all = append(all, m)
		}
	}
	return all
}

// redLock is the backend of a RedLock.
type redLock struct {
	client   *Client
	name     lockID
	locks    []Locker
	ids      []string        // of each node
	timeouts []time.Duration // of each node
	voices   [][]voice       // where each node announces releases; none: it cannot be heard
	needed   int             // a majority
	shared   bool            // by several of one process
	place    string          // the same in every process, for whatever can be known there
	ailing   []atomic.Bool   // nodes that did not answer the last time
	*redHolds
}

// redHolds are the RedLocks that are held through one Client.
type redHolds struct {
	mu    sync.Mutex // guards below, and what is in holds; nothing is called with it held
	holds map[string]*redHold
	asked map[question][]chan struct{} // that were not answered yet; closed then
}

// A question is put to one node for one owner. The next acquire waits for the
// answer: an Unlock under way could take back what that one is granted.
type question struct {
	name  lockID
	owner owner
	node  string // its id
}

func newRedHolds() *redHolds {
	return &redHolds{holds: make(map[string]*redHold), asked: make(map[question][]chan struct{})}
}

// A voice is a channel on which one node announces releases.
type voice struct {
	pubsub  *pubsub
	channel string
}

// A redHold is one acquisition of a RedLock: of which nodes it consists.
type redHold struct {
	owner owner
	field string
	level int  // that nodes are held at, at most
	held  bool // by a majority, at some time
	nodes []redNode
}

type redNode struct {
	owed  int             // Unlocks
	guard context.Context // of the hold there, or nil
}

// describe sets what follows from the members.
func (l *redLock) describe(members []member) {
	l.redHolds = l.client.red
	l.shared = true
	var names, places []string
	for _, m := range members {
		names = append(names, m.Name())
		timeout, id := l.client.nodeTimeout, fmt.Sprintf("%p", m.Locker)
		if m.record != nil {
			timeout, id = m.record.client.nodeTimeout, fmt.Sprint(m.record.client.engine.id, m.id)
		}
		l.shared = l.shared && m.record != nil && m.record.lock.passage() != oneByOne
		l.ids = append(l.ids, id)
		l.timeouts = append(l.timeouts, timeout)
		l.voices = append(l.voices, voicesOf(m))
		for _, r := range records(m) {
			places = append(places, fmt.Sprint(r.server, r.id))
		}
	}
	l.ailing = make([]atomic.Bool, len(members))
	slices.Sort(places)
	l.place = strings.Join(places, ",")
	l.name = lockID{strings.Join(slices.Compact(names), ","), strings.Join(slices.Sorted(slices.Values(l.ids)), ",")}
}

// voicesOf is where a release of m is announced; nothing if it cannot be heard of all of it.
func voicesOf(m member) (voices []voice) {
	all, _ := takeApart([]member{m})
	for _, m := range all {
		if m.record == nil {
			return nil
		}
		channel := m.record.lock.channel(attempt{once: true})
		if channel == "" {
			return nil
		}
		voices = append(voices, voice{m.record.client.engine.wakeups, channel})
	}
	return voices
}

func (l *redLock) id() lockID    { return l.name }
func (l *redLock) typ() LockType { return TypeRed }
func (l *redLock) kin() lockID   { return lockID{} }
func (l *redLock) passage() passage {
	if l.shared {
		return eachForItself
	}
	return oneByOne
}

func (l *redLock) channel(attempt) string { return "" }
func (l *redLock) ranking() string        { return l.place }

// A nodeAnswer is what one node said.
type nodeAnswer struct {
	node int
	err  error // nil: it did it
}

// acquire makes one round.
func (l *redLock) acquire(ctx context.Context, a attempt) (grant, error) {
	if a.lease <= drift(a.lease) {
		return grant{}, invalid("lease %v: less than clocks may differ, it would be over at once", a.lease)
	}
	start := time.Now()
	h := l.raise(ownerOf(ctx), a)
	if h == nil {
		return grant{state: gone}, nil
	}
	answers := make(chan nodeAnswer, len(l.locks))
	for i := range l.locks {
		l.client.engine.spawn(func() {
			answers <- nodeAnswer{i, withoutPanic(func() error { return l.askNode(ctx, h, i, a) })}
		})
	}
	result := l.round(answers)
	if result.Granted >= l.needed && time.Since(start) < a.lease-drift(a.lease) && l.confirm(h) {
		return grant{state: held}, nil
	}

	undone, n := l.lower(ctx, h, a.level-1)
	l.collect(l.noAnswers(), undone, n, l.grace(), nil)
	return l.refused(a, result)
}

// refused says what the answers to a round that was not won mean.
func (l *redLock) refused(a attempt, r *QuorumError) (grant, error) {
	missing := len(l.locks) - l.needed // so many may be, and it can still be had
	if a.level > 1 && l.count(r, ErrLockLost) > missing {
		return grant{state: gone}, nil
	}
	failed, final := 0, 0
	g := grant{state: busy, wait: -1} // until somebody releases it
	for i, err := range r.Answers {
		switch {
		case err == nil:
		case err == errTaken && len(l.voices[i]) > 0:
			g.nodes = append(g.nodes, i)
		case err == errTaken:
			g.wait = deafPause
		default:
			failed++
			g.wait = deafPause
			if !transient(err) || errors.Is(err, ErrClosed) {
				final++
			}
		}
	}
	if final > missing {
		return grant{}, r
	}
	if r.Granted > 0 {
		g.pause = redPause/2 + rand.N(redPause) // others may be as unlucky
		if len(g.nodes) <= missing {
			g.wait = g.pause // and hold only some
		}
	}
	if failed > missing {
		g.cause = r
	}
	return g, nil
}

// round waits for the answers to one round. Once there is a majority, it gives the
// others as much time again and a little: a node that is only missed because it
// was a bit later would be anybody's.
func (l *redLock) round(answers <-chan nodeAnswer) *QuorumError {
	r := l.noAnswers()
	start := time.Now()
	left := l.collect(r, answers, len(l.locks), l.limit(), l.won)
	if !l.won(r) {
		return r
	}
	for i, err := range r.Answers {
		if err == errNotAsked && l.ailing[i].Load() {
			left-- // it did not answer the last time either
		}
	}
	l.collect(r, answers, left, time.Since(start)+l.grace()/8, nil)
	return r
}

func (l *redLock) won(r *QuorumError) bool { return r.Granted >= l.needed }

func (l *redLock) noAnswers() *QuorumError {
	r := &QuorumError{Asked: len(l.locks), Needed: l.needed, Answers: make([]error, len(l.locks))}
	for i := range r.Answers {
		r.Answers[i] = errNotAsked
	}
	return r
}

// collect waits for n answers, no longer than limit, and no longer than until they
// are enough. It returns how many are missing.
func (l *redLock) collect(r *QuorumError, answers <-chan nodeAnswer, n int, limit time.Duration, enough func(*QuorumError) bool) int {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for n > 0 && (enough == nil || !enough(r)) {
		select {
		case a := <-answers:
			n--
			if r.Answers[a.node] = a.err; a.err == nil {
				r.Granted++
			}
		case <-timer.C:
			return n
		}
	}
	return n
}

// count is how many nodes answered with target.
func (l *redLock) count(r *QuorumError, target error) int {
	n := 0
	for _, err := range r.Answers {
		if errors.Is(err, target) {
			n++
		}
	}
	return n
}

// raise notes that nodes are going to be held at the level of a; nil: what was to be re-entered is over.
func (l *redLock) raise(o owner, a attempt) *redHold {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.holds[a.field]
	if h == nil && a.level > 1 {
		return nil
	}
	if h == nil {
		h = &redHold{owner: o, field: a.field, nodes: make([]redNode, len(l.locks))}
		l.holds[a.field] = h
	}
	h.level = a.level
	return h
}

// confirm notes that h is held, if it still is.
func (l *redLock) confirm(h *redHold) bool {
	alive := l.alive(h)
	l.mu.Lock()
	defer l.mu.Unlock()
	h.held = h.held || alive >= l.needed
	return alive >= l.needed
}

// askNode asks one node for one level. Whatever becomes of the round, what it
// grants is either noted in h or given back.
func (l *redLock) askNode(ctx context.Context, h *redHold, i int, a attempt) error {
	earlier, answered := l.ask(h, i)
	defer answered()
	owned := h.owner.in(context.WithoutCancel(ctx))
	ctx, cancel := context.WithTimeout(owned, min(l.timeouts[i], max(a.lease/3, time.Millisecond)))
	defer cancel()
	lease := a.lease
	if a.renewed {
		lease = 0
	}
	for _, answer := range earlier {
		select {
		case <-answer:
		case <-ctx.Done():
			return errNodeTimeout
		}
	}
	m := l.locks[i]
	for range l.stale(h, i) { // of a lock that consists of several, some may be left
		_ = m.Unlock(ctx)
	}
	ok, err := m.TryLock(ctx, 0, lease)
	if a.level == 1 && errors.Is(err, ErrLockLost) { // the node has forgotten an earlier hold: now that this was said
		ok, err = m.TryLock(ctx, 0, lease)
	}
	l.ailing[i].Store(err != nil)
	switch {
	case err != nil && ctx.Err() != nil:
		if said := redis.Error(nil); errors.As(err, &said) { // what it answered before
			return fmt.Errorf("%w: %w", errNodeTimeout, said)
		}
		return errNodeTimeout
	case err != nil:
		return err
	case !ok:
		return errTaken
	}
	guard, err := m.Guard(owned)
	if err != nil {
		guard = ended{owned}
	}
	wanted, first := l.note(h, i, guard)
	switch {
	case !wanted:
		_ = m.Unlock(owned) // what cannot be released lapses with its lease
	case first: // a re-entry has one that waits already
		context.AfterFunc(guard, func() { l.nodeLost(h) })
	}
	return err
}

// ended is a ctx that has ended.
type ended struct{ context.Context }

func (ended) Err() error { return context.Canceled }

// stale returns how many levels are owed to a node that has lost its hold, and forgets them.
func (l *redLock) stale(h *redHold, i int) int {
	before := l.guardOf(h, i)
	if before == nil || before.Err() == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := &h.nodes[i]
	owed := n.owed
	n.guard, n.owed = nil, 0
	return owed
}

// note notes that a node has granted one level, and returns whether that is wanted, and whether
// guard is the one that is looked at from now on.
func (l *redLock) note(h *redHold, i int, guard context.Context) (wanted, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := &h.nodes[i]
	if n.owed >= h.level {
		return false, false
	}
	if first = n.guard == nil; first {
		n.guard = guard
	}
	n.owed++
	return true, first
}

func (l *redLock) guardOf(h *redHold, i int) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	return h.nodes[i].guard
}

func (l *redLock) owed(h *redHold, i int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return h.nodes[i].owed
}

// alive is how many nodes can be trusted.
func (l *redLock) alive(h *redHold) int {
	n := 0
	for i := range h.nodes {
		if g := l.guardOf(h, i); g != nil && g.Err() == nil {
			n++
		}
	}
	return n
}

// nodeLost hears that the hold on one node has ended, and maybe with it the majority.
func (l *redLock) nodeLost(h *redHold) {
	if l.alive(h) >= l.needed {
		return
	}
	l.mu.Lock()
	lost := h.held && h.level > 0
	l.mu.Unlock()
	if lost {
		l.client.engine.loseField(l.name, h.owner, h.field, errParts)
	}
}

// lost gives back the nodes that are left of a hold: nobody may ever unlock it.
func (l *redLock) lost(field string) {
	if h := l.find(field); h != nil {
		l.lower(context.Background(), h, 0)
	}
}

// lower gives back all levels above level, on all nodes at the same time, and
// returns how many answers there will be.
func (l *redLock) lower(ctx context.Context, h *redHold, level int) (<-chan nodeAnswer, int) {
	ctx = h.owner.in(context.WithoutCancel(ctx))
	nodes := l.lowered(h, level)
	answers := make(chan nodeAnswer, len(l.locks))
	for i, levels := range nodes {
		_, answered := l.ask(h, i)
		l.client.engine.spawn(func() {
			defer answered()
			var err error
			for range levels {
				err = withoutPanic(func() error { return l.locks[i].Unlock(ctx) })
			}
			answers <- nodeAnswer{i, err}
		})
	}
	return answers, len(nodes)
}

// lowered notes that h is held at level from now on, and says how many levels each node is to give back.
func (l *redLock) lowered(h *redHold, level int) map[int]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.level = min(h.level, level)
	if level == 0 {
		delete(l.holds, h.field)
	}
	nodes := make(map[int]int)
	for i := range h.nodes {
		if n := &h.nodes[i]; n.owed > level {
			nodes[i] = n.owed - level
			n.owed = level
		}
	}
	return nodes
}

// grace is how long a node is waited for that is not needed.
func (l *redLock) grace() time.Duration { return slices.Max(l.timeouts) }

// limit is when all have answered who keep to their timeout.
func (l *redLock) limit() time.Duration { return l.grace() + answerTime/4 }

func (l *redLock) find(field string) *redHold {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holds[field]
}

func (l *redLock) release(ctx context.Context, field string, left int) (released, error) {
	h := l.find(field)
	if h == nil {
		return released{}, nil
	}
	result := l.noAnswers()
	for i := range h.nodes { // those that are as low as that, because they missed a level, are left as they are
		if g := l.guardOf(h, i); left > 0 && g != nil && g.Err() == nil && l.owed(h, i) <= left {
			result.Answers[i] = nil
			result.Granted++
		}
	}
	answers, n := l.lower(ctx, h, left)
	if n = l.collect(result, answers, n, l.grace(), nil); n > 0 {
		l.collect(result, answers, n, unlockTime, l.won)
	}
	failed := len(result.Unwrap()) - l.count(result, errNotAsked) - l.count(result, ErrNotHeld)
	if result.Granted < l.needed && failed > 0 {
		return released{}, result
	}
	return released{there: result.Granted >= l.needed}, nil
}

func (l *redLock) abandon(ctx context.Context, a attempt) (bool, error) {
	_, err := l.release(ctx, a.field, a.level-1)
	return true, err
}

// renewal is not asked for: the watchdogs of the locks renew them.
func (l *redLock) renewal(string, time.Duration, bool) call { panic("bug: a RedLock has no record") }

// renew takes nodes again that have lost their hold, or could not be had, as long as the others are enough.
func (l *redLock) renew(field string) bool {
	h := l.find(field)
	if h == nil || l.alive(h) < l.needed {
		return false
	}
	for i := range l.locks {
		if g := l.guardOf(h, i); g == nil || g.Err() != nil {
			l.client.engine.spawn(func() {
				_ = withoutPanic(func() error {
					return l.askNode(context.Background(), h, i, attempt{level: 1, lease: l.client.engine.watchdogTimeout, renewed: true})
				})
			})
		}
	}
	return true
}

// ask notes that node i is asked something for the owner of h, and returns what it
// has not answered yet.
func (l *redLock) ask(h *redHold, i int) (earlier []chan struct{}, answered func()) {
	q := question{l.name, h.owner, l.ids[i]}
	answer := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	earlier = slices.Clone(l.asked[q])
	l.asked[q] = append(l.asked[q], answer)
	return earlier, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.asked[q] = slices.DeleteFunc(l.asked[q], func(a chan struct{}) bool { return a == answer })
		if len(l.asked[q]) == 0 {
			delete(l.asked, q)
		}
		close(answer)
	}
}

func (l *redLock) trusted(field string) bool {
	h := l.find(field)
	return h != nil && l.alive(h) >= l.needed
}

// listen joins the channels of the nodes that refused: what the others announce
// is what this one has given back to them.
func (l *redLock) listen(g grant) []*listener {
	wake := make(chan struct{}, 1)
	var all []*listener
	for _, i := range g.nodes {
		for _, v := range l.voices[i] {
			all = append(all, v.pubsub.joinFor(wake, v.channel))
		}
	}
	return all
}

// inspect is what a majority says.
func (l *redLock) inspect(ctx context.Context, field string) (state, error) {
	views := make(chan state, len(l.locks))
	result := l.askAll(ctx, func(ctx context.Context, m Locker) (err error) {
		var v state
		if field != "" {
			v.held, err = m.IsHeld(ctx)
		} else if v.locked, err = m.IsLocked(ctx); err == nil && v.locked {
			v.ttl, err = m.TTL(ctx)
		}
		if err == nil {
			views <- v
		}
		return err
	})
	yes := 0
	var ttls []time.Duration
	for range result.Granted {
		v := <-views
		if v.held || v.locked {
			yes++
		}
		ttls = append(ttls, v.ttl)
	}
	if no := result.Granted - yes; yes < l.needed && no <= len(l.locks)-l.needed {
		return state{}, result // those that did not answer could make it either
	}
	s := state{locked: field == "" && yes >= l.needed, held: field != "" && yes >= l.needed}
	if s.locked {
		slices.Sort(ttls)
		s.ttl = ttls[len(ttls)-l.needed]
	}
	return s, nil
}

func (l *redLock) force(ctx context.Context) (bool, error) {
	var freed atomic.Bool
	result := l.askAll(ctx, func(ctx context.Context, m Locker) error {
		was, err := m.ForceUnlock(ctx)
		if was {
			freed.Store(true)
		}
		return err
	})
	if !l.won(result) {
		return false, result
	}
	return freed.Load(), nil
}

// askAll asks all nodes at the same time, each with its timeout, and collects what they say.
func (l *redLock) askAll(ctx context.Context, ask func(ctx context.Context, m Locker) error) *QuorumError {
	answers := make(chan nodeAnswer, len(l.locks))
	for i, m := range l.locks {
		l.client.engine.spawn(func() {
			within, cancel := context.WithTimeout(ctx, l.timeouts[i])
			defer cancel()
			err := withoutPanic(func() error { return ask(within, m) })
			if err != nil && within.Err() != nil && ctx.Err() == nil {
				err = errNodeTimeout
			}
			answers <- nodeAnswer{i, err}
		})
	}
	r := l.noAnswers()
	l.collect(r, answers, len(l.locks), l.limit(), nil)
	return r
}
