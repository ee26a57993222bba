package relock

// The watchdog keeps the leases of all holds of a client: it renews the leases that
// are not explicit, and ends the leases that can no longer be trusted.
//
// Rules:
//   - Trust is counted from before a request was sent: sent + length - drift.
//     Only a confirmed answer moves the end of the trust, and never back.
//   - A renewal has three outcomes: renewed; gone, which ends the lease now;
//     an error, which means try again, sooner and sooner, while the lease is trusted.
//   - One goroutine watches all leases, and it never waits for Redis: renewals
//     go out in pipelines on other goroutines, so that a slow pipeline delays no other and
//     no lease outlives its trust. One pipeline never has leases of different servers.
//   - A renewal without an answer is sent again after renewTime, once: it may hang on
//     its connection. Then the routes of a Cluster are asked for anew, too.
//   - Holders are called without the mutex held, once for each lease.

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/waitgroup"
)

const (
	renewBatch   = 256             // leases in one pipeline
	renewWorkers = 4               // pipelines of one group and round under way at a time
	renewTime    = send.ResendTime // a renewal without an answer for this long is sent again, over another connection
	mostRenewals = 2               // of one lease under way: a server that was unreachable runs them all later
)

// errGone is the cause of a lease whose record is no longer there.
var errGone = errors.New("the record in Redis is gone")

// errForced is the cause of a lease whose lock was forced open by this client.
var errForced = fmt.Errorf("%w: the lock was forced open", errGone)

// errLapsed is the cause of a lease that ran out without having been renewed.
var errLapsed = errors.New("the lease has run out")

// errUnrenewed goes with errLapsed where the watchdog had to renew the lease: such an end is a loss.
var errUnrenewed = errors.New("it could not be renewed")

// drift is how much a clock may gain on the clock of Redis, and how late a timer may be, during one lease.
func drift(lease time.Duration) time.Duration {
	return lease/100 + 2*time.Millisecond
}

// trust is how long a lease is trusted. It is limited to 100 years, so that times can be added to it.
func trust(lease time.Duration) time.Duration {
	lease = min(lease, 100*365*24*time.Hour)
	return lease - drift(lease)
}

// lasts says whether enough of the whole trust is left to return a hold to its owner. If not, another request restores
// it. Of an explicit lease half must be left: the owner has asked for the whole. A hold that the watchdog renews needs
// the time for a renewal that takes as long as one may take before it is sent again, and a tenth at least. Where half
// of the trust is shorter than that, half must be left: then a renewal that takes as long as this answer still comes in
// time. Leases that are too short for any trust are over at once, as documented.
func lasts(left, whole time.Duration, renewed bool) bool {
	least := whole / 2
	if renewed {
		least = max(min(least, renewTime), whole/10)
	}
	return whole <= 0 || left > least
}

// suffices says whether an explicit lease, of which no more than half is left once again, is returned all the same:
// Redis always takes long, and another request would bring no more. Of a lease that has less than a quarter left its
// owner has hardly any use.
func suffices(left, whole time.Duration, renewed bool) bool { return !renewed && left > whole/4 }

// A leaseHolder is called when its lease has ended before it was removed.
type leaseHolder interface {
	leaseEnded(cause error)
}

// A lease is the time for which one hold is trusted. Times are counted from the start of the watchdog.
type lease struct {
	holder leaseHolder

	// Written with watchdog.mu held:
	until   atomic.Int64 // trusted until then
	whole   atomic.Int64 // for so long the last confirmed request was trusted from when it was sent
	renewed atomic.Bool  // by the watchdog; false: the lease runs out
	limit   atomic.Int64 // MaxHold: no request may ask for a lease that ends later; 0: none
	last    atomic.Bool  // the lease ends at its limit: a renewal would gain nothing

	// guarded by watchdog.mu
	length   time.Duration // that a renewal asks for
	sent     time.Duration // when the last confirmed request was sent
	renewAt  time.Duration
	retryAt  time.Duration // when to renew again if the last renewal fails
	asked    bool          // a renewal was sent and has not been confirmed
	underWay int           // renewals that were sent, or are about to be sent, and have not ended
	failed   error         // of the last renewal, if it failed
	index    int           // in the heap; -1 when not watched
}

// setLimit gives l, which is not watched yet, a limit on the clock of the watchdog; 0: none.
func (l *lease) setLimit(limit time.Duration) { l.limit.Store(int64(limit)) }

// isLimited says whether l has a limit.
func (l *lease) isLimited() bool { return l.limit.Load() > 0 }

// endsAtLimit says whether l is not renewed any more, because a renewal would gain nothing.
func (l *lease) endsAtLimit() bool { return l.last.Load() }

// wholeTrust is for how long the last confirmed request was trusted from when it was sent.
func (l *lease) wholeTrust() time.Duration { return time.Duration(l.whole.Load()) }

// trustUntil sets until when l is trusted, and tells nobody. It is for tests.
func (l *lease) trustUntil(until time.Duration) { l.until.Store(int64(until)) }

// next is when the lease needs attention.
func (l *lease) next() time.Duration {
	until := time.Duration(l.until.Load())
	if l.renewed.Load() {
		return min(l.renewAt, until)
	}
	return until
}

// A renewal is the answer for one lease.
type renewal struct {
	held   bool
	length time.Duration // that was asked for; 0: that of the lease
	err    error         // nil when Redis has answered
}

// never is later than all times of the watchdog.
const never = time.Duration(1 << 62)

// A watchdogConfig says what a watchdog needs of those whose leases it keeps.
type watchdogConfig struct {
	renew        func(ctx context.Context, leases []*lease) []renewal // one pipeline
	group        func(*lease) string                                  // leases of one group may share a pipeline
	silent       func()                                               // called when a pipeline has no answer within renewTime
	limitReached error                                                // the cause of a lease that ends at its limit
}

type watchdog struct {
	watchdogConfig
	epoch time.Time

	ctx  context.Context // ends when the watchdog is stopped
	stop context.CancelFunc
	work sync.WaitGroup // the loop and the pipelines under way
	kick chan struct{}  // makes the loop look again

	mu      sync.Mutex // guards below, and the fields of leases that say so; a leaf: nothing is called with it held
	leases  leaseHeap
	armed   time.Duration // when the loop looks again by itself
	running bool
	stopped bool
}

func newWatchdog(config watchdogConfig) *watchdog {
	ctx, stop := context.WithCancel(context.Background())
	return &watchdog{
		watchdogConfig: config,
		epoch:          time.Now(),
		ctx:            ctx,
		stop:           stop,
		kick:           make(chan struct{}, 1),
	}
}

// now is the time on the clock of the watchdog.
func (w *watchdog) now() time.Duration { return time.Since(w.epoch) }

// at is t on the clock of the watchdog.
func (w *watchdog) at(t time.Time) time.Duration { return t.Sub(w.epoch) }

// watch begins to keep l, which was granted by a request sent at sent. The first lease may be shorter than length,
// until the first renewal; 0: it is not.
func (w *watchdog) watch(l *lease, sent time.Time, length time.Duration, renewed bool, first time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l.index = -1
	w.confirmLocked(l, w.at(sent), cmp.Or(first, length), renewed)
	l.length = length
	if w.stopped {
		return
	}
	heap.Push(&w.leases, l)
	if !w.running {
		w.running = true
		w.armed = 0
		w.work.Add(1)
		go w.loop()
	}
	w.wakeLocked(l)
}

// extend is watch for a lease that is watched already: a re-entry was confirmed.
// A lease that was ever renewed is renewed until it is removed.
func (w *watchdog) extend(l *lease, sent time.Time, length time.Duration, renewed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.confirmLocked(l, w.at(sent), length, l.renewed.Load() || renewed)
	if l.index >= 0 {
		heap.Fix(&w.leases, l.index)
		w.wakeLocked(l)
	}
}

// settle sets the end of a lease that is not renewed. Only if exact is set, the new end may
// be sooner than before.
func (w *watchdog) settle(l *lease, end time.Time, exact bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.renewed.Load() {
		return // by now
	}
	until := l.withinLimit(int64(w.at(end)))
	if !exact {
		until = max(until, l.until.Load())
	}
	l.until.Store(until)
	if l.index >= 0 {
		heap.Fix(&w.leases, l.index)
		w.wakeLocked(l)
	}
}

// end is until when l is trusted.
func (w *watchdog) end(l *lease) time.Time { return w.epoch.Add(time.Duration(l.until.Load())) }

// left is how long l is trusted from now on; negative: it has ended.
func (w *watchdog) left(l *lease) time.Duration { return l.leftAt(w.now()) }

// leftAt is how long l is trusted from now on, where now was read from the watchdog.
func (l *lease) leftAt(now time.Duration) time.Duration { return time.Duration(l.until.Load()) - now }

// watches says whether l is watched: it was not removed, and has not ended.
func (w *watchdog) watches(l *lease) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return l.index >= 0 || w.stopped
}

// renews says whether l is renewed, or left to run out.
func (w *watchdog) renews(l *lease) bool { return l.renewed.Load() }

// isRenewing says whether a renewal of l is under way.
func (w *watchdog) isRenewing(l *lease) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return l.underWay > 0
}

// remove forgets l. A renewal that is under way may still run; it then finds no record to renew.
func (w *watchdog) remove(l *lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removeLocked(l)
}

// close ends the loop and waits for the pipelines under way.
func (w *watchdog) close() {
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	w.stop()
	w.work.Wait()
}

// trusted says by the clock alone whether l may still be relied on.
func (w *watchdog) trusted(l *lease) bool {
	return w.left(l) > 0
}

func (w *watchdog) confirmLocked(l *lease, sent, length time.Duration, renewed bool) {
	whole := trust(length)
	l.whole.Store(int64(whole))
	l.until.Store(l.withinLimit(max(l.until.Load(), int64(sent+whole))))
	l.renewed.Store(renewed)
	l.length, l.sent, l.asked, l.failed = length, sent, false, nil
	l.renewAt = sent + length/3
	w.limitLocked(l)
}

// withinLimit is until, or the limit of l if that is sooner.
func (l *lease) withinLimit(until int64) int64 {
	if limit := l.limit.Load(); limit > 0 {
		return min(until, limit)
	}
	return until
}

// limitLocked ends the renewals of l, whose last confirmed request has set its lease, if another one would gain nothing
// worth a request: a request asks for what was left of the limit a moment after it was said to be sent.
func (w *watchdog) limitLocked(l *lease) {
	limit := time.Duration(l.limit.Load())
	l.last.Store(limit > 0 && l.sent+l.length+drift(l.length) >= limit)
	if l.last.Load() {
		l.renewAt = never
	}
}

// relimit gives l, which is handed over, another limit; 0: none.
func (w *watchdog) relimit(l *lease, limit time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l.limit.Store(int64(limit))
	if !l.last.Load() || l.index < 0 {
		return
	}
	l.renewAt = l.sent + l.length/3 // it may be over: then the lease is renewed now
	w.limitLocked(l)
	heap.Fix(&w.leases, l.index)
	w.wakeLocked(l)
}

// restOf is the lease that a request sent now may ask for, which would ask for length.
func (w *watchdog) restOf(l *lease, length time.Duration) time.Duration {
	if limit := time.Duration(l.limit.Load()); limit > 0 {
		return max(time.Millisecond, min(length, limit-w.now()))
	}
	return length
}

// whyOver is why l has ended by the clock.
func (w *watchdog) whyOver(l *lease) error {
	if l.renewed.Load() && l.last.Load() {
		return w.limitReached
	}
	return errLapsed
}

func (w *watchdog) removeLocked(l *lease) {
	if l.index >= 0 {
		heap.Remove(&w.leases, l.index)
	}
}

// retryLocked plans the next renewal of l, after a renewal of l has ended.
func (w *watchdog) retryLocked(l *lease) {
	if l.last.Load() {
		return
	}
	l.renewAt = max(l.retryAt, w.now())
	heap.Fix(&w.leases, l.index)
	w.wakeLocked(l)
}

// wakeLocked wakes the loop if l needs attention before the loop would look by itself.
func (w *watchdog) wakeLocked(l *lease) {
	if l.next() < w.armed {
		w.armed = l.next()
		select {
		case w.kick <- struct{}{}:
		default:
		}
	}
}

func (w *watchdog) loop() {
	defer w.work.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		due, ended, wait := w.collect()
		for _, e := range ended {
			e.holder.leaseEnded(e.because())
		}
		w.send(due)
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-w.kick:
		case <-w.ctx.Done():
			return
		}
	}
}

type endedLease struct {
	holder leaseHolder
	why    error
	failed error // of the last renewal, if it failed
}

// because is why the lease has ended. The failed error may call code of the user, so no mutex is held.
func (e endedLease) because() error {
	if e.failed != nil {
		return fmt.Errorf("%w: the last renewal failed: %w", e.why, e.failed)
	}
	return e.why
}

// collect takes out the leases that have ended and lists the leases to be renewed
// now. Renewals that would be due a little later come along, so that the leases
// of a busy client go out together.
func (w *watchdog) collect() (due []*lease, ended []endedLease, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	for len(w.leases) > 0 {
		l := w.leases[0]
		until := time.Duration(l.until.Load())
		switch {
		case until <= now:
			heap.Pop(&w.leases)
			ended = append(ended, endedLease{l.holder, w.whyOver(l), l.failed})
			continue
		case l.renewed.Load() && (l.renewAt <= now || !l.asked && l.renewAt <= now+l.length/30):
			if l.underWay >= mostRenewals {
				l.renewAt = until // or when a renewal under way has ended
				heap.Fix(&w.leases, 0)
				continue
			}
			due = append(due, l)
			l.underWay++
			// The retry comes after a quarter of the trust that is left, so sooner each time. Where there is no
			// answer at all, it comes after renewTime: the renewal may hang on its connection.
			l.asked = true
			l.retryAt = now + max((until-now)/4, l.length/200)
			l.renewAt = min(l.retryAt, now+renewTime)
			heap.Fix(&w.leases, 0)
			continue
		}
		break
	}
	switch {
	case len(w.leases) > 0:
		w.armed = w.leases[0].next()
	case w.armed <= now:
		w.armed = never // no lease to watch until one is added
	default:
		// Short holds come and go: the loop looks once when the last of them
		// would have been due, and is not woken for each of them.
	}
	return due, ended, w.armed - now
}

// send renews leases, in pipelines, and returns before the answers come.
func (w *watchdog) send(due []*lease) {
	groups := make(map[string][]*lease)
	for _, l := range due {
		g := w.group(l)
		groups[g] = append(groups[g], l)
	}
	for _, group := range groups {
		for lane := 0; lane < renewWorkers && lane*renewBatch < len(group); lane++ {
			waitgroup.Go(&w.work, func() {
				for at := lane * renewBatch; at < len(group); at += renewWorkers * renewBatch {
					w.sendWithin(group[at:min(at+renewBatch, len(group))])
				}
			})
		}
	}
}

// sendWithin is sendOne that waits for the answer no longer than renewTime: the batches
// that follow must not wait for a connection that hangs.
func (w *watchdog) sendWithin(batch []*lease) {
	if w.ctx.Err() != nil {
		return
	}
	answered := make(chan struct{})
	waitgroup.Go(&w.work, func() {
		defer close(answered)
		w.sendOne(batch)
	})
	late := time.NewTimer(renewTime)
	defer late.Stop()
	select {
	case <-answered:
	case <-late.C:
		w.silent()
	case <-w.ctx.Done():
	}
}

func (w *watchdog) sendOne(batch []*lease) {
	ctx, cancel := context.WithTimeout(w.ctx, renewTime) // limits dialling: go-redis would dial an unreachable host for long
	defer cancel()
	sent := w.now()
	answers := w.renew(send.Undated(ctx), batch)

	var gone []leaseHolder
	w.mu.Lock()
	for i, l := range batch {
		l.underWay--
		switch {
		case l.index < 0: // removed meanwhile
		case answers[i].err != nil:
			l.failed = answers[i].err
			w.retryLocked(l)
		case !answers[i].held:
			w.removeLocked(l)
			gone = append(gone, l.holder)
		case sent < l.sent: // a later request was confirmed before
			if l.asked {
				w.retryLocked(l)
			}
		default:
			w.confirmLocked(l, sent, cmp.Or(answers[i].length, l.length), true)
			heap.Fix(&w.leases, l.index)
			w.wakeLocked(l) // the loop is armed for a retry, which may be much later than the next renewal
		}
	}
	w.mu.Unlock()
	for _, holder := range gone {
		holder.leaseEnded(errGone)
	}
}

// count is how many leases are watched. It is for tests.
func (w *watchdog) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.leases)
}

// mutex is the mutex of w, for tests that no code of the user is called with it held.
func (w *watchdog) mutex() *sync.Mutex { return &w.mu }

// leaseHeap orders leases by when they need attention.
type leaseHeap []*lease

func (h leaseHeap) Len() int           { return len(h) }
func (h leaseHeap) Less(i, j int) bool { return h[i].next() < h[j].next() }
func (h leaseHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *leaseHeap) Push(x any) {
	l := x.(*lease)
	l.index = len(*h)
	*h = append(*h, l)
}

func (h *leaseHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	l.index = -1
	*h = old[:len(old)-1]
	return l
}
