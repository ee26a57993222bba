package relock

// The lock of a majority: of independent Redis servers, some of which may be down.
//
// Rules: this is the published Redlock algorithm. A round asks all nodes at the same time,
// and each node has a short timeout of its own. The lock is held when a majority granted it
// and more of the lease is left than clocks may differ. A lost round is given back at all
// nodes, and a grant that comes late is given back too. A hold is trusted as long as a
// majority of the holds at its nodes are trusted.
//
// A RedLock sends nothing itself: it takes, gives back and inspects its nodes as Lockers. A redHold
// knows the levels that one hold has at the nodes, and is the keeper of that hold. The rest of a hold
// works as for every lock, by these functions of the package:
//   - lockHold, unlockHold: callers of one owner come one at a time.
//   - enterQueue, leaveQueue: callers of one process come one at a time.
//   - prepare, confirm, inTime: the contents of an attempt, and of its grant.
//   - giveBack, endRelease, lose: the end of levels and holds.
//   - startSpan, noteObstacle, withHolder, observeRelease, observeEnd: events, and texts of errors.

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
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

const (
	// redPause is about how long a RedLock waits after it lost a round in which some nodes granted. The pause is
	// random, so that the same rivals do not meet again.
	redPause = 30 * time.Millisecond

	// blindPoll is how often a RedLock asks nodes that announce no release: dead nodes, and foreign Lockers.
	blindPoll = 250 * time.Millisecond
)

var (
	errTaken       = errors.New("another owner holds it")
	errNodeTimeout = errors.New("no answer within the node timeout")
	errNotAsked    = errors.New("it was not held there, or did not answer")
)

// errParts is the cause of a hold that too few nodes keep.
var errParts = errors.New("too few of its locks are held")

// A RedLock is held when a majority of its locks are held, each on a Redis of its own. It
// survives the loss of the other servers, and does not depend on replication.
//
// A RedLock is safe as long as no node forgets a lock that it granted. A node that was
// restarted without its data must stay away for at least one lease before it is asked
// again: the longest lease that callers ask for, and at least the watchdog timeout. A node
// that keeps its data with appendfsync always need not stay away. A holder takes a restarted node
// again at its next renewal, as long as a majority without that node can be trusted.
//
// TryLock returns false when other owners hold a majority, and a [*QuorumError] when dead
// nodes made a majority impossible. Lock goes on until ctx ends, and joins the last
// QuorumError to the error of ctx. Unlock returns nil when a majority confirmed. After Close
// the Clients of the locks go on renewing the locks that are held. Close these Clients too, and
// afterwards, so that attempts under way can still be given back. Every node has
// its [WithNodeTimeout] to answer each call, and a third of the lease at most.
// IsLocked, IsHeld and TTL return the view of a majority; ForceUnlock frees all locks.
//
// Redisson: RedissonRedLock (deprecated), which does not ask its servers at the same time
// and ignores how much of the lease is left.
type RedLock struct{ handle }

// NewRedLock returns the lock of a majority of locks: three of five, and three of four
// too, which is no better than two of three. The methods return ErrInvalid for fewer than
// three locks, for nil, and for two locks on one Redis, which would have two votes.
// NewRedLock sends nothing. The name of a RedLock consists of the names of its locks.
//
// The locks may be of any kind; fair locks are taken without queueing.
//
// Redisson: getRedLock.
func (c *Client) NewRedLock(locks ...Locker) *RedLock {
	l := &redLock{facts: facts{kind: TypeRed}, client: c, needed: len(locks)/2 + 1}
	components, err := componentsOf(c, locks)
	if err == nil && len(components) < 3 {
		err = invalid("%d locks: at least 3", len(components))
	}
	if err == nil {
		err = checkNodes(components)
	}
	if err == nil {
		l.describe(components)
	}
	return &RedLock{handle{client: c, name: l.lock.name, lock: l, bad: err}}
}

// checkNodes says whether a node would have two votes, or no time to cast one.
func checkNodes(components []component) error {
	votes := make(map[any]int)
	for i, c := range components {
		for _, r := range c.records() {
			if r.record.limits() != (limits{}) {
				return invalid("%s has MaxHold or AtLeast: a RedLock repairs and undoes the holds at its nodes by its own rules", shortName(c.Name()))
			}
			client := r.client
			if s := client.synced; s.Replicas > 0 && s.Within >= client.nodeTimeout {
				return invalid("%s has WithSyncedReplicas(%d, %v): its Client needs a longer WithNodeTimeout than %v",
					shortName(c.Name()), s.Replicas, s.Within, client.nodeTimeout)
			}
			address, _, _ := strings.Cut(r.server, "/")
			for _, node := range []any{client, address} {
				if voter, ok := votes[node]; ok && voter != i && node != "" {
					return invalid("two locks on one Redis, the second one is %s: a node has one vote", shortName(c.Name()))
				}
				votes[node] = i
			}
		}
	}
	return checkTwice(components)
}

// redLock is the identity and the taker of a RedLock.
type redLock struct {
	facts
	client *Client
	nodes  []*redNode
	needed int    // a majority
	place  string // of the records, by server and name: the same in every process, as far as the servers are known
}

// A redNode is one of the locks that a RedLock consists of.
type redNode struct {
	Locker
	id        string
	timeout   time.Duration
	channels  []releaseChannel // none: its releases are not announced
	unhealthy atomic.Bool      // the node did not answer the last time
}

// A releaseChannel is a channel on which a node announces releases.
type releaseChannel struct {
	pubsub *wake.Hub
	name   string
}

// describe sets the fields that follow from the components.
func (l *redLock) describe(components []component) {
	l.admits = shared
	var names, ids, places []string
	for _, c := range components {
		n := &redNode{Locker: c.Locker, id: fmt.Sprintf("%p", c.Locker), timeout: l.client.nodeTimeout, channels: releaseChannels(c)}
		if c.record != nil {
			n.id, n.timeout = fmt.Sprint(c.client.engine.id, c.id), c.client.nodeTimeout
		}
		if c.record == nil || c.record.admission() == exclusive {
			l.admits = exclusive
		}
		l.nodes = append(l.nodes, n)
		names, ids = append(names, c.Name()), append(ids, n.id)
		for _, r := range c.records() {
			places = append(places, fmt.Sprint(r.server, r.id))
		}
	}
	slices.Sort(places)
	l.place = strings.Join(places, ",")
	l.lock = lockID{strings.Join(slices.Compact(names), ","), strings.Join(slices.Sorted(slices.Values(ids)), ",")}
}

// releaseChannels are the channels on which a release of c is announced; nil if a part of c does not announce releases.
func releaseChannels(c component) (channels []releaseChannel) {
	all, _ := flattenMulti([]component{c})
	for _, c := range all {
		if c.record == nil {
			return nil
		}
		name := c.record.channel(attempt{noWait: true})
		if name == "" {
			return nil
		}
		channels = append(channels, releaseChannel{c.client.engine.pubsub, name})
	}
	return channels
}

// take takes one level for o. It returns false when r.wait is over.
func (l *redLock) take(ctx context.Context, o owner, r request) (bool, error) {
	e := l.client.engine
	e.workers.Begin()
	defer e.workers.End()
	p := &waitOptions{Wait: send.Wait{Ctx: o.in(ctx), Closed: e.refused, NoWait: r.wait == 0}}
	if err := p.Over(); err != nil {
		return false, err
	}
	if r.wait > 0 {
		p.Deadline = time.Now().Add(r.wait)
	}
	self := []description{l}
	p.span = startSpan(e, p.Ctx, self, o)
	n := e.use(l.lock.name)
	defer n.done()
	err := errBeginAgain
	for err == errBeginAgain {
		err = l.takeOnce(p, n, o, r)
	}
	err = withHolder(e, *p, self, o, r, err)
	p.span.finish(err)
	if err == errTimeUp {
		return false, nil
	}
	return err == nil, err
}

// takeOnce is take. It returns errBeginAgain where another caller of o gave back the hold that was to be re-entered.
func (l *redLock) takeOnce(p *waitOptions, n *name, o owner, r request) error {
	h, err := n.lockHold(p, l, o, true)
	if err != nil {
		return err
	}
	defer h.unlockHold()
	wants := []want{{hold: h}}
	if err := wants[0].prepare(r); err != nil {
		return err
	}
	if length := wants[0].lease; lease.Trust(length) <= 0 {
		return invalid("lease %v: less than clocks may differ, it would be over at once", length)
	}
	p.span.asked(wants)
	granted := false
	defer func() {
		if k := redHoldOf(h); k != nil && !granted { // also when a ctx of the user has panicked
			_ = k.lower(p.Ctx, wants[0].level-1)
		}
	}()
	res, err := l.acquire(p, wants)
	if err = confirm(names{n}, wants, res, err); err != nil {
		return err
	}
	granted = true
	redHoldOf(h).nodeLost() // a node may have lost its hold before h was confirmed
	return nil
}

// acquire makes rounds until one is won, the hold is found gone, or the caller leaves.
func (l *redLock) acquire(p *waitOptions, wants []want) (res result, err error) {
	var last refusal
	w := redWaiter{lock: l}
	defer w.subscription.leave()
	for rounds := 1; ; rounds++ {
		if err := l.client.engine.enterQueue(p, wants); err != nil {
			return res, send.WithLast(err, last.cause)
		}
		res, refused, err := l.attempt(p, wants[0])
		switch {
		case err == errTimeUp && rounds == 1: // no round has said that the lock is busy
			return res, errNoAnswer
		case err != nil:
			return res, send.WithLast(err, last.cause)
		case res.state != busy:
			return res, nil
		case p.NoWait:
			return res, send.WithLast(errTimeUp, refused.cause)
		}
		last = refused
		if err := w.sleep(p, wants, last); err != nil {
			return res, send.WithLast(err, last.cause)
		}
	}
}

// attempt makes a round. Where the round is won so late that too little of the lease is left, attempt makes another
// one, a few times: a round restores the leases of the nodes.
func (l *redLock) attempt(p *waitOptions, w want) (res result, refused refusal, err error) {
	for asked := range mostAsked {
		res, refused, err = l.round(p, w)
		if err != nil || res.state != held || l.client.engine.inTime([]want{w}, res.sent, asked+1) {
			return res, refused, err
		}
	}
	res.state = busy
	_ = redHoldOf(w.hold).lower(p.Ctx, w.level-1).collect(&send.Wait{Ctx: context.Background()}, send.MinWait, nil)
	return res, refused, lossError(errLate)
}

// round asks all nodes for the level of w at the same time, and gives back a round that is not won.
func (l *redLock) round(p *waitOptions, w want) (res result, refused refusal, err error) {
	res.sent = time.Now()
	if why := p.Over(); why != nil && why != errTimeUp { // wait 0 asks for one round
		return res, refused, why
	}
	k := l.raise(w)
	if k == nil {
		res.state = gone
		return res, refused, nil
	}
	patient := p.WithMinWait(time.Now())
	v := l.newVote()
	for i := range l.nodes {
		v.ask(i, func() error { return k.askNode(p.Ctx, i, w.attempt) })
	}
	if err := v.collect(&patient, l.limit(), v.won); err != nil {
		return res, refused, err
	}
	if v.won() {
		// A node whose answer comes a little later would stay free for a rival. So the missing nodes get as much
		// time again, except for nodes that did not answer the last time either.
		late := v.unhealthy()
		err := v.collect(&patient, time.Since(res.sent)+l.grace()/8, func() bool { return v.missing <= late })
		if err != nil {
			return res, refused, err
		}
		if time.Since(res.sent) < lease.Trust(w.lease) && k.check() == nil {
			res.state = held
			return res, refused, nil
		}
	}
	if err := k.lower(p.Ctx, w.level-1).collect(&patient, l.grace(), nil); err != nil {
		return res, refused, err
	}
	res.state, refused, err = l.refused(w, v)
	if err != nil && p.Ctx.Err() != nil {
		err = send.WithLast(ctxError(p.Ctx), err)
	}
	return res, refused, err
}

// A refusal is why a round was lost, and when to ask again.
type refusal struct {
	taken []int         // nodes that other owners hold, and that announce releases
	pause time.Duration // ask no sooner
	wait  time.Duration // ask no later; negative: when a release is announced
	cause error         // too many nodes failed; nil: other owners hold too many
}

// refused evaluates the answers to a lost round. The error is final.
func (l *redLock) refused(w want, v *vote) (grantState, refusal, error) {
	spare := len(l.nodes) - l.needed // so many may be missing, and the lock can still be acquired
	if w.level > 1 && v.count(ErrLockLost) > spare {
		return gone, refusal{}, nil
	}
	failed, final := 0, 0
	r := refusal{wait: -1}
	for i, err := range v.Answers {
		switch {
		case err == nil:
		case err == errTaken && len(l.nodes[i].channels) > 0:
			r.taken = append(r.taken, i)
		case err == errTaken:
			r.wait = blindPoll
		default:
			failed++
			r.wait = blindPoll
			if !transient(err) || errors.Is(err, ErrClosed) {
				final++
			}
		}
	}
	if final > spare {
		return busy, r, v.failed()
	}
	if v.Granted > 0 {
		r.pause = redPause/2 + rand.N(redPause) // rivals may be as unlucky,
		if len(r.taken) <= spare {
			r.wait = r.pause // and hold only some
		}
	}
	if failed > spare {
		r.cause = v.QuorumError
	}
	return busy, r, nil
}

// A redWaiter sleeps between two rounds.
type redWaiter struct {
	lock         *redLock
	subscription subscription
	taken        []int // the nodes that subscription listens to
	notified     bool  // a release has ended the last sleep
}

// sleep waits until a node announces a release, or until it is time to ask again.
func (w *redWaiter) sleep(p *waitOptions, wants []want, r refusal) error {
	e := w.lock.client.engine
	p.noteObstacle(wants[0].hold, &obstacle{
		lock: w.lock, at: time.Now(),
		who: "other owners hold too many of its locks", known: r.cause != nil,
	})
	wants[0].hold.interrupt()
	if !slices.Equal(w.taken, r.taken) {
		w.taken = r.taken
		w.subscription.listenTo(w.lock.listen(r.taken))
	}
	wake, ready := w.subscription.awaited()
	p.span.waits()
	p.span.ends(PathPolled)
	delay := e.pollDelay(r.wait)
	if w.notified { // a node may announce a release before the process of the holder has noted it
		delay = min(delay, reserveTime)
	}
	w.notified = false
	if r.pause > 0 {
		if err := p.sleep(nil, nil, r.pause); err != nil {
			return err
		}
	}
	if delay > r.pause {
		slept := time.Now()
		if err := p.sleep(wake, ready, delay); err != nil {
			return err
		}
		if w.notified = time.Since(slept) < delay; w.notified {
			p.span.ends(PathNotified)
		}
	}
	w.subscription.confirm()
	return nil
}

// listen joins the release channels of nodes, with one wake channel for all. Nodes that granted are not among them:
// they announce the levels that this process has given back.
func (l *redLock) listen(nodes []int) []*wake.Listener {
	signal := make(chan struct{}, 1)
	var all []*wake.Listener
	for _, i := range nodes {
		for _, c := range l.nodes[i].channels {
			all = append(all, c.pubsub.JoinFor(signal, c.name))
		}
	}
	return all
}

// giveBack gives back one level of o. It ignores the end of ctx, and works after Close.
func (l *redLock) giveBack(ctx context.Context, o owner) error {
	e := l.client.engine
	e.workers.Begin()
	defer e.workers.End()
	n := e.use(l.lock.name)
	defer n.done()
	// Each node takes up to unlockTime, and then reports its error.
	p := &waitOptions{Wait: send.Wait{Ctx: o.in(context.WithoutCancel(ctx)), Deadline: time.Now().Add(unlockTime + send.MinWait)}}
	back, err := n.giveBack(p, l, o)
	h, left := back.hold, back.left
	switch {
	case err != nil:
		return l.giveBackAside(p, n, o, unconfirmed(err))
	case h == nil:
		return n.notHeldError(l.id(), o)
	case back.done:
		return nil
	case back.loss != nil: // redHold.lost has given back the rest
		h.unlockHold()
		return back.loss
	}
	there, err := l.setLevels(p, h, left)
	switch {
	case err != nil:
		err = unconfirmed(err)
	case !there && left > 0:
		h.lose(errGone)
		return lossError(errGone)
	case !there:
		h.observeEnd(errGone)()
		return lossError(errGone)
	}
	e.observeRelease(ctx, h, left, err)
	return err
}

// giveBackAside is giveBack where another caller of o keeps the owner mutex all the time.
func (l *redLock) giveBackAside(p *waitOptions, n *name, o owner, err error) error {
	e := l.client.engine
	h := n.find(l.id(), o)
	if h == nil {
		return err
	}
	left, last := h.giveBack()
	if last {
		e.workers.Spawn(func() {
			_ = redHoldOf(h).lower(p.Ctx, 0).collect(&send.Wait{Ctx: p.Ctx}, unlockTime, nil)
			h.leaveQueue()
		})
	}
	e.observeRelease(p.Ctx, h, left, err)
	return err
}

// setLevels makes all nodes give back the levels of h above left, and says whether a majority had them. It unlocks
// the owner mutex of h.
func (l *redLock) setLevels(p *waitOptions, h *hold, left int) (there bool, err error) {
	defer h.endRelease(left, 0, 0)
	k := redHoldOf(h)
	low := k.nodesAt(left)
	v := k.lower(p.Ctx, left)
	for _, i := range low {
		v.set(i, nil)
	}
	patient := p.WithMinWait(time.Now())
	if v.collect(&patient, l.grace(), nil) == nil {
		_ = v.collect(&patient, unlockTime, v.won) // the answers of the nodes explain more than errTimeUp
	}
	failed := v.missing + len(v.Unwrap()) - v.count(errNotAsked) - v.count(ErrNotHeld)
	if !v.won() && failed > 0 {
		return false, v.failed()
	}
	return v.won(), nil
}

// extend asks the nodes that have the hold of o. It needs a majority.
func (l *redLock) extend(ctx context.Context, o owner, lease time.Duration) error {
	return l.client.engine.extend(ctx, l, o, lease, func(_ *waitOptions, h *hold) (sent time.Time, err error) {
		k, sent := redHoldOf(h), time.Now()
		v, err := l.askAll(o.in(ctx), func(ctx context.Context, i int) error {
			if !k.at(i).alive() {
				return errNotAsked
			}
			return extendLocker(ctx, l.nodes[i].Locker, lease)
		})
		if err != nil || v.won() {
			return sent, err
		}
		k.nodeLost()
		return sent, v.failed()
	})
}

// look is the state that a majority of the nodes reports. A field that is not "" asks for the hold of the caller.
func (l *redLock) look(ctx context.Context, field string) (state, error) {
	views := make([]state, len(l.nodes)) // each element is written before its node's answer is sent
	v, err := l.askAll(ctx, func(ctx context.Context, i int) (err error) {
		s, n := &views[i], l.nodes[i]
		if field != "" {
			s.held, err = n.IsHeld(ctx)
		} else if s.locked, err = n.IsLocked(ctx); err == nil && s.locked {
			s.ttl, err = n.TTL(ctx)
		}
		return err
	})
	if err != nil {
		return state{}, err
	}
	yes := 0
	var ttls []time.Duration
	for i, err := range v.Answers {
		if err == nil {
			ttls = append(ttls, views[i].ttl)
		}
		if err == nil && (views[i].held || views[i].locked) {
			yes++
		}
	}
	switch no := v.Granted - yes; {
	case yes >= l.needed:
		slices.Sort(ttls)
		return state{locked: field == "", held: field != "", ttl: ttls[len(ttls)-l.needed]}, nil
	case no <= len(l.nodes)-l.needed:
		return state{}, v.failed() // the missing answers could decide either way
	}
	return state{}, nil
}

// free frees all nodes, and ends the holds of this process.
func (l *redLock) free(ctx context.Context) (bool, error) {
	before := l.client.engine.recordsOf(l.id())
	var freed atomic.Bool
	v, err := l.askAll(ctx, func(ctx context.Context, i int) error {
		was, err := l.nodes[i].ForceUnlock(ctx)
		if was {
			freed.Store(true)
		}
		return err
	})
	switch {
	case err != nil:
		return false, err
	case !v.won():
		return false, v.failed()
	case freed.Load():
		endForced(before)
	}
	return freed.Load(), nil
}

// askAll asks all nodes at the same time, each with its timeout, and collects their answers.
func (l *redLock) askAll(ctx context.Context, ask func(ctx context.Context, i int) error) (*vote, error) {
	ctx = ownerOf(ctx).in(ctx)
	p := &send.Wait{Ctx: ctx, Closed: l.client.engine.closed}
	if err := p.Over(); err != nil {
		return nil, err
	}
	v := l.newVote()
	for i, n := range l.nodes {
		v.ask(i, func() error {
			within, cancel := context.WithTimeout(ctx, n.timeout)
			defer cancel()
			err := send.CatchPanic(func() error { return ask(within, i) })
			if err != nil && within.Err() != nil && ctx.Err() == nil {
				err = errNodeTimeout
			}
			return err
		})
	}
	return v, v.collect(p, l.limit(), nil)
}

// grace is how long a round waits for the answer of a node that it does not need.
func (l *redLock) grace() time.Duration {
	var most time.Duration
	for _, n := range l.nodes {
		most = max(most, n.timeout)
	}
	return most
}

// limit is when every node that keeps to its timeout has answered.
func (l *redLock) limit() time.Duration { return l.grace() + send.MinWait/4 }

// A vote is a request to nodes, and their answers so far. It belongs to one goroutine.
type vote struct {
	*QuorumError
	lock    *redLock
	answers chan nodeAnswer
	missing int // nodes that were asked and have not answered
}

// A nodeAnswer is the answer of one node.
type nodeAnswer struct {
	node int
	err  error // nil: the node granted the request
}

func (l *redLock) newVote() *vote {
	return &vote{
		QuorumError: &QuorumError{Asked: len(l.nodes), Needed: l.needed, Answers: slices.Repeat([]error{errNotAsked}, len(l.nodes))},
		lock:        l,
		answers:     make(chan nodeAnswer, len(l.nodes)),
	}
}

// ask asks a node, on a goroutine of its own.
func (v *vote) ask(i int, f func() error) {
	v.missing++
	v.lock.client.engine.workers.Spawn(func() { v.answers <- nodeAnswer{i, send.CatchPanic(f)} })
}

// collect waits for answers until enough returns true (nil: until all answers are there), and no longer than limit.
// The error says why the wait of p is over.
func (v *vote) collect(p *send.Wait, limit time.Duration, enough func() bool) error {
	if !p.Deadline.IsZero() {
		limit = min(limit, time.Until(p.Deadline))
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for v.missing > 0 && (enough == nil || !enough()) {
		select {
		case a := <-v.answers:
			v.missing--
			v.set(a.node, a.err)
		case <-timer.C:
			return p.Over()
		case <-p.Ctx.Done():
			return ctxError(p.Ctx)
		case <-p.Closed:
			return ErrClosed
		}
	}
	return nil
}

// set notes the answer of node i.
func (v *vote) set(i int, err error) {
	if v.Answers[i] = err; err == nil {
		v.Granted++
	}
}

func (v *vote) won() bool { return v.Granted >= v.Needed }

// count is how many nodes answered with target.
func (v *vote) count(target error) int {
	n := 0
	for _, err := range v.Answers {
		if errors.Is(err, target) {
			n++
		}
	}
	return n
}

// unhealthy is how many nodes have not answered, and did not answer the last time either.
func (v *vote) unhealthy() int {
	n := 0
	for i, err := range v.Answers {
		if err == errNotAsked && v.lock.nodes[i].unhealthy.Load() {
			n++
		}
	}
	return n
}

// failed is v as an error. It logs a panic among the answers, because the panic of the caller has another stack.
func (v *vote) failed() error {
	send.LogPanic(v.lock.client.engine.log, v.QuorumError)
	return v.QuorumError
}

// A redHold has the levels of one hold at the nodes. It is the keeper of that hold.
type redHold struct {
	lock *redLock
	hold *hold

	mu    sync.Mutex // guards below; nothing is called with it held
	level int        // the most levels at a node; 0: the hold is given back, or lost
	nodes []nodeHold
}

// A nodeHold has the levels of a redHold at one node.
type nodeHold struct {
	levels int
	guard  context.Context // of the hold there, or nil
}

// alive says whether the hold at the node can be trusted. The guard of a foreign Locker may panic, on a goroutine of
// this package.
func (n nodeHold) alive() bool { return n.guard != nil && send.CatchPanic(n.guard.Err) == nil }

func redHoldOf(h *hold) *redHold {
	k, _ := h.keeper.(*redHold)
	return k
}

// raise notes that nodes are going to be held at the level of w. It returns nil if the hold to be re-entered is over.
// A fresh hold that gave back its last round has a new redHold, so that late answers to that round are given back.
func (l *redLock) raise(w want) *redHold {
	k := redHoldOf(w.hold)
	if w.level == 1 && (k == nil || k.over()) {
		k = &redHold{lock: l, hold: w.hold, nodes: make([]nodeHold, len(l.nodes))}
		w.hold.keeper = k
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if w.level > 1 && k.level == 0 {
		return nil
	}
	k.level = w.level
	return k
}

// askNode asks node i for one level. A level that the node grants is noted in k or given back, also when the round
// is over by then.
func (k *redHold) askNode(ctx context.Context, i int, a attempt) error {
	n := k.lock.nodes[i]
	earlier, answered := k.asks(i)
	defer answered()
	owned := k.hold.key.owner.in(context.WithoutCancel(ctx))
	if err := k.tryNode(owned, i, a, earlier); err != nil {
		return err
	}
	guard, err := n.Guard(owned)
	if err != nil {
		guard = ended{owned}
	}
	wanted, first := k.note(i, guard)
	switch {
	case !wanted:
		_ = n.Unlock(owned) // a level that cannot be given back lapses with its lease
	case first: // for a re-entry, the first guard of this node calls nodeLost
		context.AfterFunc(guard, k.nodeLost)
	}
	return err
}

// tryNode tries node i after the node has answered the earlier requests for the same owner.
func (k *redHold) tryNode(ctx context.Context, i int, a attempt, earlier []chan struct{}) error {
	n := k.lock.nodes[i]
	ctx, cancel := context.WithTimeout(patiently(ctx), min(n.timeout, max(a.lease/3, time.Millisecond)))
	defer cancel()
	for _, answer := range earlier {
		select {
		case <-answer:
		case <-ctx.Done():
			return errNodeTimeout
		}
	}
	lease := a.lease
	if a.renewed {
		lease = 0
	}
	for range k.outdated(i) { // if the node is a MultiLock, some of its locks may still be held
		_ = n.Unlock(ctx)
	}
	ok, err := n.TryLock(ctx, 0, lease)
	if a.level == 1 && errors.Is(err, ErrLockLost) { // the node reports the loss of an earlier hold, once
		ok, err = n.TryLock(ctx, 0, lease)
	}
	n.unhealthy.Store(err != nil)
	switch said := redis.Error(nil); {
	case err == nil && !ok:
		return errTaken
	case err == nil || ctx.Err() == nil:
		return err
	case errors.As(err, &said): // Redis answered with an error before the time was up
		return fmt.Errorf("%w: %w", errNodeTimeout, said)
	}
	return errNodeTimeout
}

// ended is a ctx that has ended.
type ended struct{ context.Context }

func (ended) Err() error { return context.Canceled }

// outdated returns how many levels a node still has of a hold that it has lost, and forgets them.
func (k *redHold) outdated(i int) int {
	if before := k.at(i); before.guard == nil || before.alive() {
		return 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	levels := k.nodes[i].levels
	k.nodes[i] = nodeHold{}
	return levels
}

// note notes that a node has granted one level. It returns whether the level is wanted, and whether
// guard is the first guard of this node, which is checked from now on.
func (k *redHold) note(i int, guard context.Context) (wanted, first bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := &k.nodes[i]
	if n.levels >= k.level {
		return false, false
	}
	if first = n.guard == nil; first {
		n.guard = guard
	}
	n.levels++
	return true, first
}

// lower makes all nodes give back their levels above level, at the same time.
func (k *redHold) lower(ctx context.Context, level int) *vote {
	ctx = k.hold.key.owner.in(context.WithoutCancel(ctx))
	v := k.lock.newVote()
	for i, levels := range k.lowered(level) {
		_, answered := k.asks(i)
		v.ask(i, func() (err error) {
			defer answered()
			for range levels {
				err = send.CatchPanic(func() error { return k.lock.nodes[i].Unlock(ctx) })
			}
			return err
		})
	}
	return v
}

// lowered notes that nodes are held at level from now on, and returns how many levels each node has to give back.
func (k *redHold) lowered(level int) map[int]int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.level = min(k.level, level)
	above := make(map[int]int)
	for i := range k.nodes {
		if n := &k.nodes[i]; n.levels > level {
			above[i] = n.levels - level
			n.levels = level
		}
	}
	return above
}

// nodesAt are the nodes that are held with at most left levels, because they did not grant a later level.
func (k *redHold) nodesAt(left int) (nodes []int) {
	for i := range k.nodes {
		if n := k.at(i); left > 0 && n.levels <= left && n.alive() {
			nodes = append(nodes, i)
		}
	}
	return nodes
}

// at is the hold of k at node i.
func (k *redHold) at(i int) nodeHold {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.nodes[i]
}

// over says whether k was given back, or lost.
func (k *redHold) over() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.level == 0
}

// check says whether a majority of the nodes can be trusted.
func (k *redHold) check() error {
	n := 0
	for i := range k.nodes {
		if k.at(i).alive() {
			n++
		}
	}
	if n < k.lock.needed {
		return errParts
	}
	return nil
}

// nodeLost is called when the hold at one node has ended. It ends the hold of k if the majority is gone.
func (k *redHold) nodeLost() {
	if !k.over() && k.check() != nil {
		k.hold.loseIfDue()
	}
}

// renew takes nodes again that have lost their hold, or did not grant one, as long as a majority is left.
func (k *redHold) renew() bool {
	if k.check() != nil {
		return false
	}
	e := k.lock.client.engine
	for i := range k.nodes {
		if !k.at(i).alive() {
			e.workers.Spawn(func() {
				_ = send.CatchPanic(func() error {
					return k.askNode(context.Background(), i, attempt{level: 1, lease: e.watchdogTimeout, renewed: true})
				})
			})
		}
	}
	return true
}

// lost gives back what the nodes still have: the owner may never unlock it.
func (k *redHold) lost() { _ = k.lower(context.Background(), 0) }

// A nodeRequest is a request to a node for one owner. The next acquire waits for its answer: an Unlock under
// way could take back the level that the node grants to that acquire.
type nodeRequest struct {
	name  lockID
	owner owner
	node  string // its id
}

// pendingRequests are the requests that nodes have not answered yet. All RedLocks of a Client share them.
type pendingRequests struct {
	mu  sync.Mutex // guards below
	all map[nodeRequest][]chan struct{}
}

func newPendingRequests() *pendingRequests {
	return &pendingRequests{all: make(map[nodeRequest][]chan struct{})}
}

// asks notes a request to node i for the owner of k, and returns the earlier ones that node i has not answered yet.
func (k *redHold) asks(i int) (earlier []chan struct{}, answered func()) {
	p, r := k.lock.client.pending, nodeRequest{k.lock.lock, k.hold.key.owner, k.lock.nodes[i].id}
	answer := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	earlier = slices.Clone(p.all[r])
	p.all[r] = append(p.all[r], answer)
	return earlier, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.all[r] = slices.DeleteFunc(p.all[r], func(a chan struct{}) bool { return a == answer })
		if len(p.all[r]) == 0 {
			delete(p.all, r)
		}
		close(answer)
	}
}
