package lease

// The watchdog decides when leases are renewed and when they end.
//
// Rules:
//   - A renewal has one of three outcomes. It succeeds; or the record is gone, which ends the lease at once; or it
//     fails with an error, and is repeated at shorter and shorter intervals while the lease is valid.
//   - One timer watches all leases: it looks at them in turns, one after the other. A turn never waits for Redis.
//     Renewals are sent in pipelines on other goroutines, so that a slow pipeline delays no other one, and no lease
//     outlives its validity. All leases of a pipeline belong to one server.
//   - A renewal without an answer is sent once more after renewTime, because its connection may hang. At that time the
//     routes of a Redis Cluster are loaded again, too.
//   - A lease with MostRenewals requests under way is not due, whatever its times say. It is due again as soon as one of
//     them has ended, however it ended.
//   - A check of a lease is its next renewal, sent sooner than it is due. Of a lease that no renewal makes longer it is
//     a request that only looks for the record, and has an effect only if it finds none. See check.go.
//   - A Holder is called without the mutex held, once for each lease, and not by the turn: see tell.

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/each"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/waitgroup"
)

// MostRenewals is the maximum number of renewals and checks of one lease that are under way. It is small because a
// server that was unreachable runs all of them later.
const MostRenewals = 2

const (
	renewBatch = 1024            // leases in one pipeline
	renewTime  = send.ResendTime // a renewal without an answer is sent again after this time, over another connection
)

// A Renewal is the answer to the renewal of one lease.
type Renewal struct {
	Held   bool          // the record exists, and has a new lease unless Looked is set
	Looked bool          // the request has only looked for the record, because the lease is not IsRenewable
	Length time.Duration // the lease that was asked for; 0: the length of the Lease
	Err    error         // nil when Redis has answered
}

// Never is later than every time on the clock of the watchdog.
const Never = time.Duration(math.MaxInt64)

// A Config holds the functions with which a Watchdog renews leases.
type Config struct {
	// Renew renews leases in one pipeline, and returns one answer for each of them. It looks for the records of those
	// that are not IsRenewable.
	Renew func(ctx context.Context, leases []*Lease) []Renewal
	// Group returns the group of a lease. Only leases of the same group share a pipeline.
	Group func(*Lease) string
	// Silent is called when a pipeline has not been answered after renewTime.
	Silent func()
	// LimitReached is the cause with which a lease ends at its limit.
	LimitReached error
	// Old is called when a lease has become old, and again, with false, some time after none is old any more: see
	// check.go. It must not block. It may be nil.
	Old func(old bool)
}

// A Watchdog renews leases and ends them.
type Watchdog struct {
	config Config
	epoch  time.Time

	ctx  context.Context // canceled when the watchdog is stopped
	stop context.CancelFunc
	work sync.WaitGroup // the turn, and the pipelines that are under way

	mu      sync.Mutex // guards the fields below and those of leases; nothing is called with it held
	leases  leaseHeap
	armed   time.Duration // when the next turn is due
	timer   *time.Timer   // begins a turn then; nil: it was never needed
	turning bool          // a turn is under way, and sets the timer at its end
	stopped bool
	toldOld bool // what Config.Old was called with; only turns use it
}

// NewWatchdog returns a Watchdog without leases.
func NewWatchdog(config Config) *Watchdog {
	ctx, stop := context.WithCancel(context.Background())
	return &Watchdog{
		config: config,
		epoch:  time.Now(),
		ctx:    ctx,
		stop:   stop,
		armed:  Never,
	}
}

// Now returns the time on the clock of the watchdog.
func (w *Watchdog) Now() time.Duration { return time.Since(w.epoch) }

// At converts t to the clock of the watchdog.
func (w *Watchdog) At(t time.Time) time.Duration { return t.Sub(w.epoch) }

// Watch starts to watch l, which was granted by a request sent at the time sent. A first lease that is not 0 lasts
// until the first renewal, and may be shorter than length, which renewals ask for.
func (w *Watchdog) Watch(l *Lease, sent time.Time, length time.Duration, renewed bool, first time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l.index = -1
	w.confirmLocked(l, w.At(sent), cmp.Or(first, length), renewed)
	l.length = length
	if w.stopped {
		return
	}
	heap.Push(&w.leases, l)
	w.wakeLocked(l.next())
}

// Extend updates a lease, after Redis confirmed that its owner acquired the lock again. A lease that is renewed by the
// watchdog once is renewed until it is removed. Extend does nothing, and returns false, if l is not watched any more:
// then its Holder is about to be told that it has ended.
func (w *Watchdog) Extend(l *Lease, sent time.Time, length time.Duration, renewed bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.watchesLocked(l) {
		return false
	}
	w.confirmLocked(l, w.At(sent), length, l.renewed.Load() || renewed)
	w.movedLocked(l)
	return true
}

// Renew makes the watchdog renew l, by length, from now on.
func (w *Watchdog) Renew(l *Lease, length time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.watchesLocked(l) || l.renewed.Load() {
		return
	}
	l.renewed.Store(true)
	l.length, l.renewAt = length, min(l.renewAt, l.sent+length/3)
	w.limitLocked(l)
	w.movedLocked(l)
}

// End returns the time until which l is valid.
func (w *Watchdog) End(l *Lease) time.Time { return w.epoch.Add(time.Duration(l.until.Load())) }

// Left returns how much longer l is valid. The result is negative after the lease has ended.
func (w *Watchdog) Left(l *Lease) time.Duration { return l.LeftAt(w.Now()) }

// Watches reports whether l is watched, which means that it was not removed and has not ended. After Close it always
// returns true.
func (w *Watchdog) Watches(l *Lease) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watchesLocked(l)
}

func (w *Watchdog) watchesLocked(l *Lease) bool { return l.index >= 0 || w.stopped }

// Renews reports whether the watchdog renews l. If not, the lease runs out.
func (w *Watchdog) Renews(l *Lease) bool { return l.renewed.Load() }

// IsRenewing reports whether a renewal of l is under way.
func (w *Watchdog) IsRenewing(l *Lease) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return l.underWay > 0
}

// Remove stops watching l. A renewal that is under way may still run in Redis; it then finds no record to renew.
func (w *Watchdog) Remove(l *Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removeLocked(l)
}

// Close ends the turns and waits for the pipelines that are under way.
func (w *Watchdog) Close() {
	w.mu.Lock()
	w.stopped = true
	if w.timer != nil {
		w.timer.Stop()
	}
	w.mu.Unlock()
	w.stop()
	w.work.Wait()
}

// IsValid reports, by the local clock alone, whether l is still valid.
func (w *Watchdog) IsValid(l *Lease) bool {
	return w.Left(l) > 0
}

func (w *Watchdog) confirmLocked(l *Lease, sent, length time.Duration, renewed bool) {
	whole := Validity(length)
	l.whole.Store(int64(whole))
	l.until.Store(min(max(l.until.Load(), int64(sent+whole)), int64(l.Limit())))
	l.renewed.Store(renewed)
	l.length, l.sent, l.asked, l.failed = length, sent, false, nil
	l.renewAt = sent + length/3
	w.limitLocked(l)
}

// limitLocked stops renewing l, whose lease was set by the last confirmed request, if the next renewal would not
// extend it by anything worth a request. Drift is added once because the validity is shorter than the lease, and once
// because a request asks for the time that is left until the limit a moment after the time at which it counts as sent.
func (w *Watchdog) limitLocked(l *Lease) {
	l.last.Store(l.sent+l.WholeValidity()+2*Drift(l.length) >= l.Limit())
	if l.last.Load() {
		l.renewAt = Never
	}
}

// RestOf returns the lease that a request sent now may ask for: length, or the time until the limit of l if that is
// shorter.
func (w *Watchdog) RestOf(l *Lease, length time.Duration) time.Duration {
	return min(length, max(time.Millisecond, l.Limit()-w.Now()))
}

// WhyOver returns the reason why l has ended by the local clock.
func (w *Watchdog) WhyOver(l *Lease) error {
	if l.renewed.Load() && l.last.Load() {
		return w.config.LimitReached
	}
	return ErrExpired
}

func (w *Watchdog) removeLocked(l *Lease) {
	if l.index >= 0 {
		heap.Remove(&w.leases, l.index)
	}
}

// movedLocked is called when the time at which l needs attention may have changed.
func (w *Watchdog) movedLocked(l *Lease) {
	if l.index >= 0 {
		heap.Fix(&w.leases, l.index)
		w.wakeLocked(l.next())
	}
}

// wakeLocked brings the next turn forward if something needs attention at the time at, before it.
func (w *Watchdog) wakeLocked(at time.Duration) {
	if at < w.armed {
		w.armed = at
		w.setLocked()
	}
}

// setLocked sets the timer to the time at which the next turn is due.
func (w *Watchdog) setLocked() {
	switch wait := w.armed - w.Now(); {
	case w.turning || w.stopped || w.armed == Never:
	case w.timer == nil:
		w.timer = time.AfterFunc(wait, w.turn)
	default:
		w.timer.Reset(wait)
	}
}

func (w *Watchdog) turn() {
	if !w.begin() {
		return
	}
	defer w.end()
	due, ended, old := w.collect()
	w.tell(ended)
	w.send(due, &w.work)
	if old != w.toldOld && w.config.Old != nil {
		w.toldOld = old
		w.config.Old(old)
	}
}

// begin begins a turn, unless one is under way, or w is stopped.
func (w *Watchdog) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.turning || w.stopped {
		return false
	}
	w.turning = true
	w.work.Add(1)
	return true
}

func (w *Watchdog) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turning = false
	w.setLocked()
	w.work.Done()
}

// tell tells the holders that their leases have ended, but not on the goroutine of the turn: an error of the user may not
// return, or may end the goroutine.
func (w *Watchdog) tell(ended []*Lease) {
	for some := range slices.Chunk(ended, renewBatch) {
		waitgroup.Go(&w.work, func() { each.Do(some, w.tellHolder) })
	}
}

// tellHolder tells the holder of l, also if an error of the user panics meanwhile, or ends the goroutine. The text of the
// failed renewal may be made by the user's code.
func (w *Watchdog) tellHolder(l *Lease) {
	why, told := w.WhyOver(l), false
	defer func() {
		if !told {
			l.Holder.LeaseEnded(why)
		}
	}()
	cause := why
	if l.failed != nil {
		cause = fmt.Errorf("%w: the last renewal failed: %w", why, l.failed)
	}
	l.Holder.LeaseEnded(cause)
	told = true
}

// collect removes the leases that have ended, and returns the leases to renew now. It includes renewals that are due
// a little later (slack), so that the leases of a busy client share pipelines. old reports whether a lease is old.
func (w *Watchdog) collect() (due, ended []*Lease, old bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.Now()
	for len(w.leases) > 0 { // it ends, because each turn takes a lease out of the heap, asks for it, or makes it old
		l := w.leases[0]
		if time.Duration(l.until.Load()) <= now {
			ended = append(ended, l)
			heap.Pop(&w.leases)
		} else if l.isDueLocked(now) {
			l.askLocked(now)
			due = append(due, l)
			heap.Fix(&w.leases, 0)
		} else if l.next() > now {
			break
		} else {
			l.old = true // which is what is left
			heap.Fix(&w.leases, 0)
		}
	}
	switch {
	case len(w.leases) > 0:
		w.armed = w.leases[0].next()
	case w.armed <= now:
		w.armed = Never // there is nothing to do until a lease is added
	default:
		// Short holds come and go. There is one turn, at the time when the last of them would have been due, instead
		// of one for each of them.
	}
	return due, ended, slices.ContainsFunc(w.leases, func(l *Lease) bool { return l.old })
}

// isDueLocked reports whether a renewal or a check of l is due, or a renewal nearly so. After askLocked no request
// for l is due at the same time any more.
func (l *Lease) isDueLocked(now time.Duration) bool {
	switch {
	case l.hasMostRenewals():
		return false
	case l.checkAt > 0 && l.checkAt <= now:
		return true
	}
	return l.renewed.Load() && (l.renewAt <= now || !l.asked && l.renewAt <= now+l.slack())
}

// askLocked notes that a renewal or a check of l, which is due, is sent.
func (l *Lease) askLocked(now time.Duration) {
	if l.checkAt > 0 {
		l.checkAt, l.checkFrom = 0, now+checkPause
	}
	l.underWay++
	until := time.Duration(l.until.Load())
	if l.IsRenewable() {
		// After an error, the renewal is repeated when a quarter of the remaining validity has passed, so each time
		// sooner. Without any answer it is repeated after renewTime, because its connection may hang.
		l.asked = true
		l.retryAt = now + max((until-now)/4, l.length/200)
		l.renewAt = min(l.retryAt, now+renewTime)
	}
}

// send renews leases in pipelines, and returns before they are answered: all counts them.
func (w *Watchdog) send(due []*Lease, all *sync.WaitGroup) {
	groups := make(map[string][]*Lease)
	for _, l := range due {
		g := w.config.Group(l)
		groups[g] = append(groups[g], l)
	}
	for _, group := range groups {
		waitgroup.Go(all, func() {
			for batch := range slices.Chunk(group, renewBatch) {
				w.sendWithin(batch)
			}
		})
	}
}

// sendWithin calls sendOne, and waits at most renewTime for the answer, so that the following batches do not wait for
// a connection that hangs.
func (w *Watchdog) sendWithin(batch []*Lease) {
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
		w.config.Silent()
	case <-w.ctx.Done():
	}
}

func (w *Watchdog) sendOne(batch []*Lease) {
	// Without this limit go-redis would spend a long time dialing an unreachable host.
	ctx, cancel := context.WithTimeout(w.ctx, renewTime)
	defer cancel()
	sent, answers := w.Now(), []Renewal(nil)
	defer func() {
		if answers == nil { // a hook of the Redis client has ended the goroutine
			answers = slices.Repeat([]Renewal{{Err: send.ErrHookExited}}, len(batch))
		}
		for _, holder := range w.answered(batch, sent, answers) {
			holder.LeaseEnded(ErrGone)
		}
	}()
	answers = w.config.Renew(send.Undated(ctx), batch)
}

// answered notes the answers to the requests for the leases of batch, which were sent at sent. It returns the Holders
// of those that are gone.
func (w *Watchdog) answered(batch []*Lease, sent time.Duration, answers []Renewal) (gone []Holder) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, l := range batch {
		l.underWay--
		switch {
		case l.index < 0: // removed meanwhile
		case answers[i].Looked && (answers[i].Held || answers[i].Err != nil): // a check changes no validity
		case answers[i].Err != nil:
			l.failed = answers[i].Err
			w.retryLocked(l)
		case !answers[i].Held:
			w.removeLocked(l)
			gone = append(gone, l.Holder)
		case sent < l.sent: // a later request was confirmed first
			w.retryLocked(l)
		default:
			w.confirmLocked(l, sent, cmp.Or(answers[i].Length, l.length), true)
		}
		w.movedLocked(l) // whatever the answer was, l has fewer requests under way
	}
	return gone
}

// retryLocked schedules the next renewal of l after one has ended without a new lease. If a request was confirmed after
// the last renewal was sent, the next one is scheduled already.
func (w *Watchdog) retryLocked(l *Lease) {
	if l.asked && !l.last.Load() {
		l.renewAt = max(l.retryAt, w.Now())
	}
}

// Len returns the number of leases that are watched. It is for tests.
func (w *Watchdog) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.leases)
}

// leaseHeap orders leases by the time at which they need attention.
type leaseHeap []*Lease

func (h leaseHeap) Len() int           { return len(h) }
func (h leaseHeap) Less(i, j int) bool { return h[i].next() < h[j].next() }
func (h leaseHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *leaseHeap) Push(x any) {
	l := x.(*Lease)
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
