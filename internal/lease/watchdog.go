package lease

// The watchdog: when leases are renewed, and end.
//
// Rules:
//   - A renewal has three outcomes: renewed; gone, which ends the lease now;
//     an error, which means try again, sooner and sooner, while the lease is valid.
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
	"fmt"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/waitgroup"
)

// MostRenewals is how many renewals of one lease are under way at most: a server that was unreachable runs them all
// later.
const MostRenewals = 2

const (
	renewBatch   = 256             // leases in one pipeline
	renewWorkers = 4               // pipelines of one group and round under way at a time
	renewTime    = send.ResendTime // a renewal without an answer for this long is sent again, over another connection
)

// A Renewal is the answer for one lease.
type Renewal struct {
	Held   bool          // the record is there, and has a new lease
	Length time.Duration // that was asked for; 0: that of the lease
	Err    error         // nil when Redis has answered
}

// never is later than all times of the watchdog.
const never = time.Duration(1 << 62)

// A Config says what a Watchdog needs of those whose leases it keeps.
type Config struct {
	// Renew renews leases in one pipeline, and returns an answer for each of them.
	Renew func(ctx context.Context, leases []*Lease) []Renewal
	// Group is the group of a lease. Leases of one group may share a pipeline.
	Group func(*Lease) string
	// Silent is called when a pipeline has no answer within the time after which it is sent again.
	Silent func()
	// LimitReached is the cause of the end of a lease that ends at its limit.
	LimitReached error
}

// A Watchdog keeps leases.
type Watchdog struct {
	config Config
	epoch  time.Time

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

// NewWatchdog returns a Watchdog without leases.
func NewWatchdog(config Config) *Watchdog {
	ctx, stop := context.WithCancel(context.Background())
	return &Watchdog{
		config: config,
		epoch:  time.Now(),
		ctx:    ctx,
		stop:   stop,
		kick:   make(chan struct{}, 1),
	}
}

// Now is the time on the clock of the watchdog.
func (w *Watchdog) Now() time.Duration { return time.Since(w.epoch) }

// At is t on the clock of the watchdog.
func (w *Watchdog) At(t time.Time) time.Duration { return t.Sub(w.epoch) }

// Watch begins to keep l, which was granted by a request sent at sent. The first lease may be shorter than length,
// until the first renewal; 0: it is not.
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
	if !w.running {
		w.running = true
		w.armed = 0
		w.work.Add(1)
		go w.loop()
	}
	w.wakeLocked(l)
}

// Extend is Watch for a lease that is watched already: a re-entry was confirmed.
// A lease that was ever renewed is renewed until it is removed.
func (w *Watchdog) Extend(l *Lease, sent time.Time, length time.Duration, renewed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.confirmLocked(l, w.At(sent), length, l.renewed.Load() || renewed)
	if l.index >= 0 {
		heap.Fix(&w.leases, l.index)
		w.wakeLocked(l)
	}
}

// Settle sets the end of a lease that is not renewed. Only if exact is set, the new end may
// be sooner than before.
func (w *Watchdog) Settle(l *Lease, end time.Time, exact bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.renewed.Load() {
		return // by now
	}
	until := l.withinLimit(int64(w.At(end)))
	if !exact {
		until = max(until, l.until.Load())
	}
	l.until.Store(until)
	if l.index >= 0 {
		heap.Fix(&w.leases, l.index)
		w.wakeLocked(l)
	}
}

// End is until when l is valid.
func (w *Watchdog) End(l *Lease) time.Time { return w.epoch.Add(time.Duration(l.until.Load())) }

// Left is how long l is valid from now on; negative: it has ended.
func (w *Watchdog) Left(l *Lease) time.Duration { return l.LeftAt(w.Now()) }

// Watches reports whether l is watched: it was not removed, and has not ended.
func (w *Watchdog) Watches(l *Lease) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return l.index >= 0 || w.stopped
}

// Renews reports whether l is renewed, or left to run out.
func (w *Watchdog) Renews(l *Lease) bool { return l.renewed.Load() }

// IsRenewing reports whether a renewal of l is under way.
func (w *Watchdog) IsRenewing(l *Lease) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return l.underWay > 0
}

// Remove forgets l. A renewal that is under way may still run; it then finds no record to renew.
func (w *Watchdog) Remove(l *Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removeLocked(l)
}

// Close ends the loop and waits for the pipelines under way.
func (w *Watchdog) Close() {
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	w.stop()
	w.work.Wait()
}

// IsValid says by the clock alone whether l may still be relied on.
func (w *Watchdog) IsValid(l *Lease) bool {
	return w.Left(l) > 0
}

func (w *Watchdog) confirmLocked(l *Lease, sent, length time.Duration, renewed bool) {
	whole := Validity(length)
	l.whole.Store(int64(whole))
	l.until.Store(l.withinLimit(max(l.until.Load(), int64(sent+whole))))
	l.renewed.Store(renewed)
	l.length, l.sent, l.asked, l.failed = length, sent, false, nil
	l.renewAt = sent + length/3
	w.limitLocked(l)
}

// limitLocked ends the renewals of l, whose last confirmed request has set its lease, if another one would gain nothing
// worth a request: a request asks for what was left of the limit a moment after it was said to be sent.
func (w *Watchdog) limitLocked(l *Lease) {
	limit := time.Duration(l.limit.Load())
	l.last.Store(limit > 0 && l.sent+l.length+Drift(l.length) >= limit)
	if l.last.Load() {
		l.renewAt = never
	}
}

// Relimit gives l, which is handed over, another limit; 0: none.
func (w *Watchdog) Relimit(l *Lease, limit time.Duration) {
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

// RestOf is the lease that a request sent now may ask for, which would ask for length.
func (w *Watchdog) RestOf(l *Lease, length time.Duration) time.Duration {
	if limit := time.Duration(l.limit.Load()); limit > 0 {
		return max(time.Millisecond, min(length, limit-w.Now()))
	}
	return length
}

// WhyOver is why l has ended by the clock.
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

// retryLocked plans the next renewal of l, after a renewal of l has ended.
func (w *Watchdog) retryLocked(l *Lease) {
	if l.last.Load() {
		return
	}
	l.renewAt = max(l.retryAt, w.Now())
	heap.Fix(&w.leases, l.index)
	w.wakeLocked(l)
}

// wakeLocked wakes the loop if l needs attention before the loop would look by itself.
func (w *Watchdog) wakeLocked(l *Lease) {
	if l.next() < w.armed {
		w.armed = l.next()
		select {
		case w.kick <- struct{}{}:
		default:
		}
	}
}

func (w *Watchdog) loop() {
	defer w.work.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		due, ended, wait := w.collect()
		for _, e := range ended {
			e.holder.LeaseEnded(e.because())
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
	holder Holder
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
func (w *Watchdog) collect() (due []*Lease, ended []endedLease, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.Now()
	for len(w.leases) > 0 {
		l := w.leases[0]
		until := time.Duration(l.until.Load())
		switch {
		case until <= now:
			heap.Pop(&w.leases)
			ended = append(ended, endedLease{l.Holder, w.WhyOver(l), l.failed})
			continue
		case l.renewed.Load() && (l.renewAt <= now || !l.asked && l.renewAt <= now+l.length/30):
			if l.underWay >= MostRenewals {
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
func (w *Watchdog) send(due []*Lease) {
	groups := make(map[string][]*Lease)
	for _, l := range due {
		g := w.config.Group(l)
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
	ctx, cancel := context.WithTimeout(w.ctx, renewTime) // limits dialling: go-redis would dial an unreachable host for long
	defer cancel()
	sent := w.Now()
	answers := w.config.Renew(send.Undated(ctx), batch)

	var gone []Holder
	w.mu.Lock()
	for i, l := range batch {
		l.underWay--
		switch {
		case l.index < 0: // removed meanwhile
		case answers[i].Err != nil:
			l.failed = answers[i].Err
			w.retryLocked(l)
		case !answers[i].Held:
			w.removeLocked(l)
			gone = append(gone, l.Holder)
		case sent < l.sent: // a later request was confirmed before
			if l.asked {
				w.retryLocked(l)
			}
		default:
			w.confirmLocked(l, sent, cmp.Or(answers[i].Length, l.length), true)
			heap.Fix(&w.leases, l.index)
			w.wakeLocked(l) // the loop is armed for a retry, which may be much later than the next renewal
		}
	}
	w.mu.Unlock()
	for _, holder := range gone {
		holder.LeaseEnded(ErrGone)
	}
}

// Len is how many leases are watched. It is for tests.
func (w *Watchdog) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.leases)
}

// Mutex is the mutex of w, for tests that no code of the user is called with it held.
func (w *Watchdog) Mutex() *sync.Mutex { return &w.mu }

// leaseHeap orders leases by when they need attention.
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
