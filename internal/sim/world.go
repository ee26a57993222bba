//go:build go1.25

package sim

// The world: processes with a Client each, the servers that they share, and the links between them.
//
// Rules: everything is created in the bubble. A process that is killed sends nothing any more. Its Client is closed
// nevertheless, behind links that lead nowhere, so that its goroutines end. A new process replaces it when the fault
// ends.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/bubble"
)

const eventsKept = 40 // of each process

// A world is the environment of a run.
type world struct {
	plan    Plan
	start   time.Time
	redis   []*bubble.Redis
	witness *witness
	closing sync.WaitGroup // of the Clients of processes that have gone

	mu     sync.Mutex // guards below
	procs  []*process // the current processes; the last one belongs to an operator, and its network has no faults
	ran    int        // processes so far
	paused map[int]chan struct{}
	pauses []pause
	ending bool // the workers of the phase are to finish: sections are cut short, and take no time
	// unlined is set if a process may have been refused the keys of the line, and continues without it: see
	// docs/security.md.
	unlined bool
	events  map[string][]string
	active  int         // faults
	trouble time.Time   // when a fault last began or ended
	since   time.Time   // when the first of the active faults began
	phase   Phase       // the current one
	began   time.Time   // when it began
	ghosts  []time.Time // when processes vanished whose subscriptions Redis still keeps
	held    []string    // the data of the servers when the violation was found

	// prolonged is until when leases may last that would have expired before, because clocks went back.
	prolonged time.Time

	closed bool
}

// A pause is a period in which a process was paused.
type pause struct {
	number   int       // of the process
	from, to time.Time // to is zero until it has ended
}

// A stop is a hook of a go-redis client. It stops the goroutines of a paused process before they send a script, and
// when they have its answer.
type stop struct {
	world  *world
	number int
}

func (stop) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s stop) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.gate(cmd)
		defer s.gate(cmd)
		return next(ctx, cmd)
	}
}

func (s stop) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.gate(cmds[0])
		defer s.gate(cmds[0])
		return next(ctx, cmds)
	}
}

// gate lets a script pass when the process is not paused. Other commands pass at once, because go-redis may hold a
// mutex.
func (s stop) gate(cmd redis.Cmder) {
	if name := cmd.Name(); name == "evalsha" || name == "eval" {
		s.world.gate(s.number)
	}
}

// A process is a simulated process, which dies as a whole.
type process struct {
	number  int // its index in the plan
	name    string
	links   []*bubble.Link
	rdbs    []*redis.Client
	clients []*relock.Client // of each server
	gone    atomic.Bool      // it was killed, or is being closed
}

func newWorld(plan Plan) *world {
	w := &world{plan: plan, start: time.Now(), paused: map[int]chan struct{}{}, events: map[string][]string{}}
	w.witness = newWitness(w)
	for range plan.Servers {
		w.redis = append(w.redis, bubble.Start())
	}
	for i := range plan.Processes + 1 {
		w.procs = append(w.procs, w.newProcess(i))
	}
	return w
}

func (w *world) newProcess(number int) *process {
	w.mu.Lock()
	w.ran++
	ran := w.ran
	w.mu.Unlock()
	p := &process{number: number, name: fmt.Sprintf("p%d.%d", number, ran)}
	for i, r := range w.redis {
		l := r.Link(p.name, w.plan.Seed+uint64(100*ran+i))
		l.Set(func(c *bubble.Conditions) {
			c.Latency, c.Jitter, c.Opaque = w.plan.Latency, w.plan.Jitter, w.plan.Opaque
		})
		if number == w.plan.Poor && w.plan.Lacks != "" {
			l.Deny(lacking[w.plan.Lacks])
		}
		rdb := redis.NewClient(&redis.Options{
			Addr: bubble.Addr(i), Dialer: l.Dial, DialerRetries: 1, // it would sleep between retries with a mutex held
			ReadTimeout: w.plan.ReadTimeout, PoolSize: bubble.PoolSize,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		rdb.AddHook(stop{w, number})
		opts := []relock.Option{relock.WithWatchdogTimeout(w.plan.Watchdog), relock.WithPollInterval(w.plan.WakeDelay),
			relock.WithHandoffWindow(w.plan.Slice), relock.WithLogger(slog.New(slog.DiscardHandler))}
		if number%2 == 1 {
			opts = append(opts, relock.WithLabel(p.name))
		}
		c, err := relock.New(rdb, opts...)
		if err != nil {
			panic(err) // the options are ours
		}
		p.links, p.rdbs, p.clients = append(p.links, l), append(p.rdbs, rdb), append(p.clients, c)
	}
	return p
}

// process returns the current process with this number.
func (w *world) process(number int) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.procs[number]
}

func (w *world) operator() *process { return w.process(w.plan.Processes) }

// chosen returns the processes that a fault affects.
func (w *world) chosen(f Fault) []*process {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.Process >= 0 {
		return []*process{w.procs[f.Process]}
	}
	return slices.Clone(w.procs[:w.plan.Processes])
}

func (w *world) linksOf(f Fault) (all []*bubble.Link) {
	for _, p := range w.chosen(f) {
		all = append(all, p.links[f.Server])
	}
	return all
}

// killThem kills processes. When the fault ends, new processes replace them.
func (w *world) killThem(f Fault, silently bool) (end func()) {
	killed := w.chosen(f)
	for _, p := range killed {
		p.gone.Store(true)
		for _, l := range p.links {
			l.Vanish(silently)
		}
		if silently {
			w.mu.Lock()
			w.ghosts = append(w.ghosts, time.Now())
			w.mu.Unlock()
		}
		w.witness.killed(p)
		w.leave(p, nil)
	}
	return func() {
		for _, p := range killed {
			w.replace(p)
		}
	}
}

// ghostly returns for how long locks may be granted to processes that have vanished, one after the other. mu is held.
func (w *world) ghostly() (sum time.Duration) {
	for _, at := range w.ghosts {
		if time.Since(at) < 2*bubble.KeepAlive { // and the lines in which they wait
			sum += grantLife + time.Second
		}
	}
	return sum
}

// closeThem stops processes in an orderly way.
func (w *world) closeThem(f Fault, shutdown bool) {
	for _, p := range w.chosen(f) {
		w.replace(p)
		p.gone.Store(true)
		w.leave(p, func() {
			for _, c := range p.clients {
				ctx, cancel := context.WithTimeout(context.Background(), max(f.For, time.Millisecond))
				what := "Close"
				bound := 15 * time.Second
				if shutdown {
					what, bound = "Shutdown", f.For+15*time.Second
				}
				call := w.witness.begin(p, nil, what, bound)
				if shutdown {
					_ = c.Shutdown(ctx)
				}
				_ = c.Close()
				call.end(nil)
				cancel()
			}
		})
	}
}

// leave closes the Clients of a process in the background.
func (w *world) leave(p *process, orderly func()) {
	w.closing.Go(func() {
		if orderly != nil {
			orderly()
		}
		for i := range p.clients {
			_ = p.clients[i].Close()
			_ = p.rdbs[i].Close()
		}
	})
}

// replace replaces a process that has gone with a new one.
func (w *world) replace(p *process) {
	fresh := w.newProcess(p.number)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.procs[p.number] == p {
		w.procs[p.number] = fresh
		return
	}
	w.closing.Go(func() {
		for i := range fresh.clients {
			_ = fresh.clients[i].Close()
			_ = fresh.rdbs[i].Close()
		}
	})
}

// pause stops the goroutines of some processes at a gate: workers between two calls, and those of relock before and
// after each request. Timers continue, so that a guard is canceled on time, as it is for a goroutine that checks the
// clock.
func (w *world) pause(f Fault) (resume func()) {
	gate := make(chan struct{})
	var paused []int
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.plan.Processes {
		if (f.Process == i || f.Process < 0) && w.paused[i] == nil {
			w.paused[i] = gate
			w.pauses = append(w.pauses, pause{number: i, from: time.Now()})
			paused = append(paused, i)
		}
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, i := range paused {
			delete(w.paused, i)
		}
		for i, p := range w.pauses {
			if p.to.IsZero() && slices.Contains(paused, p.number) {
				w.pauses[i].to = time.Now()
			}
		}
		close(gate)
	}
}

// pausedFor returns for how long a process was paused since then.
func (w *world) pausedFor(p *process, since time.Time) (sum time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.pauses {
		to := o.to
		if to.IsZero() {
			to = time.Now()
		}
		if o.number == p.number && to.After(since) {
			sum += to.Sub(later(o.from, since))
		}
	}
	return sum
}

// gate returns when the process is not paused.
func (w *world) gate(number int) {
	w.mu.Lock()
	gate := w.paused[number]
	w.mu.Unlock()
	if gate != nil {
		<-gate
	}
}

// inflict applies a fault until its time is up or the phase ends.
func (w *world) inflict(f Fault, over <-chan struct{}) {
	select {
	case <-over:
		return
	case <-time.After(f.At):
	}
	w.stir(1)
	w.note(nil, "%v begins", f)
	end := beginOf(f.Kind)(w, f)
	defer w.stir(-1)
	if end == nil {
		return
	}
	select {
	case <-over:
	case <-time.After(f.For):
	}
	end()
	w.note(nil, "%s ends", f.Kind)
}

// prolong records that the clock of Redis is set back, so that leases last longer by this time.
func (w *world) prolong(by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.prolonged = later(w.prolonged, time.Now().Add(w.plan.longestLease()+slack)).Add(by)
}

func (w *world) stir(faults int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active == 0 && faults > 0 {
		w.since = time.Now()
	}
	w.active += faults
	w.trouble = time.Now()
}

// calm reports whether no fault was active since then.
func (w *world) calm(since time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.active == 0 && w.trouble.Before(since)
}

// ridesOut reports whether a call that has waited for a while must continue to wait although a fault has begun.
func (w *world) ridesOut(c *call, err error) bool {
	var net net.Error
	if !errors.As(err, &net) && !errors.Is(err, io.EOF) || c.p.gone.Load() {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.phase.Workers {
		if o.ID != c.worker.ID && o.Process == c.worker.Process && o.shares(*c.worker) {
			return false // it may wait behind that one, without having sent a request to Redis
		}
	}
	return w.active > 0 && c.began.Before(w.since.Add(-callBound)) && time.Since(w.since) < w.plan.Watchdog/2
}

// note records an event of a process, or of the world if p is nil.
func (w *world) note(p *process, format string, args ...any) {
	name := "world"
	if p != nil {
		name = p.name
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	at := time.Since(w.start).Round(time.Microsecond)
	all := append(w.events[name], fmt.Sprintf("%12v %s", at, fmt.Sprintf(format, args...)))
	if len(all) > 2*eventsKept {
		all = slices.Clone(all[eventsKept:])
	}
	w.events[name] = all
}

// capture saves the data of the servers for a report.
func (w *world) capture() {
	for _, r := range w.redis {
		text := r.Save().String() + listeners(r)
		w.mu.Lock()
		w.held = append(w.held, text)
		w.mu.Unlock()
	}
}

// close ends all processes and servers.
func (w *world) close() {
	w.mu.Lock()
	procs := slices.Clone(w.procs)
	closed := w.closed
	w.closed = true
	w.mu.Unlock()
	if closed {
		return
	}
	for _, p := range procs {
		p.gone.Store(true)
		w.leave(p, nil)
	}
	w.closing.Wait()
	for _, r := range w.redis {
		r.Close()
	}
	time.Sleep(2 * time.Second) // go-redis checks once a second whether a server is back, until its client is closed
}

// listeners returns the number of subscriptions of each channel, with one line for each.
func listeners(r *bubble.Redis) string {
	var b strings.Builder
	r.Look(func(m *miniredis.Miniredis) {
		for _, channel := range m.PubSubChannels("*") {
			fmt.Fprintf(&b, "channel %s: %d listen\n", channel, m.PubSubNumSub(channel)[channel])
		}
	})
	return b.String()
}

func newRand(seed uint64, id int) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(id)+1000)) }
