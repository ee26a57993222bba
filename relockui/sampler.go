package relockui

// The sampler, which reads the locks of Redis for all who look at the page.
//
// Rules: there is one sample at a time, and at most one in each interval. All that asks for one while it is fresh, or
// while it is taken, gets the same. A goroutine takes samples while there are watchers, and ends with the last of them:
// without watchers and requests nothing is sent to Redis. A sample has bounds, whatever the keyspace is, and Redis is
// then left alone for four times as long as it has worked for it: see effort. A watcher is never waited for: it gets
// the latest sample when it asks for the next one. A request for the page of one lock takes no sample, but what it has
// seen is a look, which counts for how long a hold was seen, and for whether its lease grows.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/discover"
)

const (
	mostScans    = 50              // SCAN requests of one sample, on each master
	mostLocks    = 5000            // locks that one sample inspects
	mostAtOnce   = 256             // of them, those that discover.Inspect gets at once: see effort
	mostWatchers = 200             // streams, and names that are inspected for them
	mostLooks    = 200             // names whose looks are remembered
	restRatio    = 4               // how much longer Redis is left alone than it works for a sample
	mostRest     = 5 * time.Second // the same after a sample that has failed: Redis may have been away
	sampleTime   = 30 * time.Second
	mostWork     = 250 * time.Millisecond // what a time without an answer counts as work of Redis at most
)

var errTooMany = errors.New("too many people watch this page")

// A sample is the state of the locks of a Redis. It does not change.
type sample struct {
	at      time.Time // when Redis was read
	next    time.Time // when another one may be taken
	due     time.Time // when that should be there
	locks   []lock    // sorted: see compare
	leftOut int       // keys that could not be inspected
	beyond  bool      // there are more than mostLocks
	partial bool      // the scan has not gone through the whole keyspace yet
	watched map[string]*lock
	problem error // why there is no newer one; locks are those of the last sample
	since   map[holding]time.Time
	lapses  map[holding]lapse
	events  *events
}

// events are the events that were made of a sample: one for all who look at the same.
type events struct {
	mu    sync.Mutex                       // guards texts; a leaf
	texts map[shown]func() (string, error) // by what the stream shows
}

// What a stream shows is one lock, or those of a choice.
type shown struct {
	name string
	choice
}

// get returns the event of a stream. The first caller makes it.
func (e *events) get(name string, c choice, make func() (string, error)) (string, error) {
	e.mu.Lock()
	key := shown{name, c}
	text, made := e.texts[key]
	if !made {
		text = sync.OnceValues(make)
		e.texts[key] = text
	}
	e.mu.Unlock()
	return text()
}

// A holding identifies a hold, among all holds of all locks.
type holding struct{ name, field string }

// A look is what a request has seen of one lock. It does not change.
type look struct {
	at    time.Time
	since map[string]time.Time // when a hold was seen first, by its field
	lapse map[string]lapse
}

// An effort is for how long Redis has worked for a sample, as far as its answers show it. If it has not answered at all
// for longer than mostWork, the rest was a hang of Redis or of the network, and not work.
type effort struct {
	last time.Time // when Redis has answered last
	work time.Duration
}

// answered notes an answer of Redis at that time, or the end of the sample.
func (e *effort) answered(now time.Time) {
	e.work += min(now.Sub(e.last), mostWork)
	e.last = now
}

type sampler struct {
	client   *relock.Client
	interval time.Duration
	closing  context.Context
	end      context.CancelFunc
	all      sync.WaitGroup // the goroutines

	mu       sync.Mutex // guards what follows; a leaf
	closed   bool
	watchers int
	names    map[string]int // the names that watchers look at, and how many do
	looks    map[string]look
	stop     context.CancelFunc
	latest   *sample
	changed  chan struct{} // closed when latest changes
	running  chan struct{} // closed when the sample that is being taken is there; nil: none is
	taken    int           // how many there were

	// These belong to the goroutine that takes a sample.
	scan    *discover.Scan
	pass    int            // which pass through the keyspace it is
	whole   bool           // a pass was finished
	known   map[string]int // the names that may be locks, and the pass that has found them last
	skipped bool           // there were more names than mostLocks
}

func newSampler(client *relock.Client, rdb redis.UniversalClient, pattern string, interval time.Duration) *sampler {
	s := &sampler{
		client: client, interval: interval, names: make(map[string]int), changed: make(chan struct{}),
		known: make(map[string]int), looks: make(map[string]look),
	}
	s.scan = discover.NewScan(rdb, pattern, func(name string) bool { _, known := s.known[name]; return known })
	s.closing, s.end = context.WithCancel(context.Background())
	return s
}

// close ends the goroutines, and wakes all who wait.
func (s *sampler) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.all.Wait()
}

// sample returns the latest sample, or takes another one if it is time for it.
func (s *sampler) sample(ctx context.Context) (*sample, error) {
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return nil, fmt.Errorf("relockui: %w", relock.ErrClosed)
		}
		if s.latest != nil && time.Now().Before(s.latest.next) {
			latest := s.latest
			s.mu.Unlock()
			return latest, nil
		}
		running := s.beginLocked()
		s.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.closing.Done():
		}
	}
}

// beginLocked begins a sample, unless one is being taken, and returns a channel that is closed when it is there.
func (s *sampler) beginLocked() chan struct{} {
	if s.running == nil {
		done := make(chan struct{})
		s.running = done
		names := make([]string, 0, len(s.names))
		for name := range s.names {
			names = append(names, name)
		}
		last, looks := s.latest, maps.Clone(s.looks)
		s.all.Add(1)
		go func() {
			defer s.all.Done()
			taken := s.take(last, names, looks)
			s.mu.Lock()
			s.latest, s.running, s.taken = taken, nil, s.taken+1
			close(s.changed)
			s.changed = make(chan struct{})
			s.mu.Unlock()
			close(done)
		}()
	}
	return s.running
}

// take takes a sample. If Redis cannot be read, it has the locks of the last one.
func (s *sampler) take(last *sample, names []string, looks map[string]look) *sample {
	spent := effort{last: time.Now()}
	ctx, cancel := context.WithTimeout(s.closing, sampleTime)
	defer cancel()
	if last == nil {
		last = new(sample)
	}
	now, err := s.read(ctx, last, names, looks, &spent)
	spent.answered(time.Now())
	rest := restRatio * spent.work
	if err != nil {
		failed := *last
		failed.problem = err
		now, rest = &failed, min(rest, mostRest)
	}
	now.events = &events{texts: make(map[shown]func() (string, error))}
	now.next = time.Now().Add(max(s.interval, rest))
	now.due = now.next.Add(2*spent.work + s.interval)
	return now
}

// read reads the locks.
func (s *sampler) read(
	ctx context.Context, last *sample, watched []string, looks map[string]look, spent *effort,
) (*sample, error) {
	if err := s.find(ctx, spent); err != nil {
		return nil, err
	}
	names := make([]string, 0, len(s.known)+len(watched))
	for name := range s.known {
		names = append(names, name)
	}
	for _, name := range watched {
		if _, known := s.known[name]; !known {
			names = append(names, name)
		}
	}
	now := &sample{
		at: time.Now(), beyond: s.skipped, partial: !s.whole,
		watched: make(map[string]*lock), since: make(map[holding]time.Time),
		lapses: make(map[holding]lapse),
	}
	var mu sync.Mutex // guards locks and spent
	var locks []lock
	for some := range slices.Chunk(names, mostAtOnce) {
		found, err := discover.Inspect(ctx, s.client, some, func(i *relock.Inspection) {
			l := newLock(*i)
			mu.Lock()
			defer mu.Unlock()
			locks = append(locks, l)
			spent.answered(time.Now())
			*i = relock.Inspection{} // the rest of it is not needed
		})
		if err != nil {
			return nil, err
		}
		now.leftOut += len(found.LeftOut)
		spent.answered(time.Now()) // also if none of them is a lock
	}
	held := make(map[string]bool)
	for n := range locks {
		l := &locks[n]
		held[l.Name] = len(l.Holders) > 0
		for _, h := range l.Holders {
			id := holding{l.Name, h.Field}
			now.since[id] = earliest(now.at, last.since[id], looks[l.Name].since[h.Field])
			l.lapses[h.Field] = seen(h, l.At, last.lapses[id], looks[l.Name].lapse[h.Field])
			now.lapses[id] = l.lapses[h.Field]
		}
		if _, known := s.known[l.Name]; known && held[l.Name] {
			now.locks = append(now.locks, *l)
		}
	}
	for name := range s.known {
		if !held[name] { // it was released, or has become something else
			delete(s.known, name)
		}
	}
	now.sort()
	for _, name := range watched {
		if n := slices.IndexFunc(locks, func(l lock) bool { return l.Name == name }); n >= 0 {
			now.watched[name] = &locks[n]
		}
	}
	return now, nil
}

// find goes on with the scan, and forgets names that a whole pass has not found. If the scan fails, the names that it
// has found before are known, too.
func (s *sampler) find(ctx context.Context, spent *effort) (err error) {
	var names []string
	done := false
	for n := 0; n < mostScans && !done && err == nil; n++ {
		var found []string
		found, done, err = s.scan.Step(ctx, 1)
		names = append(names, found...)
		spent.answered(time.Now())
	}
	for _, name := range names {
		if _, known := s.known[name]; known || len(s.known) < mostLocks {
			s.known[name] = s.pass
		} else {
			s.skipped = true
		}
	}
	if done {
		for name, pass := range s.known {
			if pass < s.pass {
				delete(s.known, name)
			}
		}
		s.whole, s.pass = true, s.pass+1
		s.skipped = s.skipped && len(s.known) >= mostLocks
	}
	return err
}

// last returns the latest sample, however old it is, with the reason why there is no newer one.
func (s *sampler) last(problem error) *sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := sample{partial: true}
	if s.latest != nil {
		last = *s.latest
	}
	last.problem = problem
	return &last
}

// earliest returns the earliest of now and of those times that are not zero.
func earliest(now time.Time, times ...time.Time) time.Time {
	for _, t := range times {
		if !t.IsZero() && t.Before(now) {
			now = t
		}
	}
	return now
}

// look notes that a request has seen l, and returns the times at which its holds were seen first. It sets the lapses of
// l.
func (s *sampler) look(l *lock) map[holding]time.Time {
	now := time.Now()
	one := look{now, make(map[string]time.Time), l.lapses}
	since := make(map[holding]time.Time)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(l.Holders) == 0 { // otherwise visitors could have any names remembered
		delete(s.looks, l.Name)
		return since
	}
	var sampled sample
	if s.latest != nil {
		sampled = *s.latest
	}
	for _, h := range l.Holders {
		id := holding{l.Name, h.Field}
		first := earliest(now, s.looks[l.Name].since[h.Field], sampled.since[id])
		one.since[h.Field], since[id] = first, first
		one.lapse[h.Field] = seen(h, l.At, s.looks[l.Name].lapse[h.Field], sampled.lapses[id])
	}
	s.looks[l.Name] = one
	if len(s.looks) > mostLooks {
		oldest := l.Name
		for name, other := range s.looks {
			if other.at.Before(s.looks[oldest].at) {
				oldest = name
			}
		}
		delete(s.looks, oldest)
	}
	return since
}

// watch adds a watcher, of one lock if name is not empty. The caller calls leave at the end.
func (s *sampler) watch(name string) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, fmt.Errorf("relockui: %w", relock.ErrClosed)
	case s.watchers == mostWatchers:
		return nil, errTooMany
	}
	if s.watchers++; s.watchers == 1 {
		ctx, cancel := context.WithCancel(s.closing)
		s.stop = cancel
		s.all.Add(1)
		go func() {
			defer s.all.Done()
			s.run(ctx)
		}()
	}
	if name != "" {
		s.names[name]++
	}
	return func() { s.leave(name) }, nil
}

func (s *sampler) leave(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watchers--; s.watchers == 0 {
		s.stop()
	}
	if name == "" {
		return
	}
	if s.names[name]--; s.names[name] == 0 {
		delete(s.names, name)
	}
}

// run takes samples until ctx is done.
func (s *sampler) run(ctx context.Context) {
	for {
		latest, err := s.sample(ctx)
		if err != nil {
			return
		}
		rest := time.NewTimer(time.Until(latest.next))
		select {
		case <-rest.C:
		case <-ctx.Done():
			rest.Stop()
			return
		}
	}
}

// next waits for a sample other than last that a watcher may show. It is nil if ctx is done, or the sampler is closed.
func (s *sampler) next(ctx context.Context, last *sample) *sample {
	for {
		s.mu.Lock()
		latest, changed := s.latest, s.changed
		s.mu.Unlock()
		if latest != nil && latest != last && time.Now().Before(latest.next.Add(s.interval)) {
			return latest
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		case <-s.closing.Done():
			return nil
		}
	}
}
