// Package fleet simulates many processes that compete for one lock all the time, with a clock of its own: there is no
// Redis, no network, and no real waiting.
package fleet

// Rules: a process behaves like internal/engine, internal/poller and internal/handoff do for a plain lock, or fair.go
// for a fair one, with the same constants. Redis does one thing at a time, in the order in which requests arrive. A hop
// is half a round trip and some noise, which is exponential. Left out are the processors of the processes, lost
// messages, crashes, renewals of whole leases, pings, callers without an entry in the queue, and all other work of
// Redis.

import (
	"math/rand/v2"
	"time"
)

// The constants of relock.
const (
	sliceTrips    = 16
	longSlice     = 100 * time.Millisecond
	rareAsk       = 100 * time.Second
	fairHeartbeat = time.Second
	nearHead      = 32

	// A grant has a lease of 5s, which is valid for 1% and 2ms less from the request on that the grant names. If a
	// tenth is left of that, the grant need not be confirmed, and the lock may be handed over. A third of the lease
	// after the request it is renewed, which makes the lease whole.
	grantLease = 5 * time.Second
	grantTrust = grantLease - 52*time.Millisecond
	freshGrant = grantTrust * 9 / 10
)

// A Fleet has the parameters of a simulation.
type Fleet struct {
	Processes int
	// Goroutines of each process: they acquire the lock, hold it for a critical section, and ask again at once.
	Goroutines int
	Fair       bool          // whether the lock is a FairLock, of processes with one goroutine
	Trip       time.Duration // the shortest round trip to Redis, without the time of Redis
	Noise      time.Duration // how much longer a hop takes on average, in the network or until the process runs
	Connect    time.Duration // how much longer the first request of a process takes
	Section    time.Duration
	Arrival    time.Duration // the time within which all processes ask for the first time
	Slice      time.Duration // WithHandoffWindow
	WakeDelay  time.Duration // WithPollInterval

	// The time that Redis needs: for an attempt, a release that grants, the message of a grant, and a poll of the lock.
	Attempt, Release, Message, Look time.Duration
}

// An Outcome has the results of a simulation.
type Outcome struct {
	Share float64 // the rate, as a fraction of that of a lock that takes no time
	// Per critical section, without polls: attempts, confirmations, renewals of grants, releases, subscribing and
	// unsubscribing.
	Requests  float64
	Looks     float64       // polls per critical section
	Load      float64       // the fraction of the time in which Redis was busy
	Busy      time.Duration // the time of Redis per critical section
	Longest   time.Duration // the longest wait, including goroutines that still wait at the end
	Even      float64       // the slowest process compared with the fastest
	Served    float64       // the fraction of processes that held the lock at all
	Overtaken int           // grants that are not in the order of the queue
}

// Run simulates a span of time, and counts after a warm-up. The same seed gives the same outcome.
func (f Fleet) Run(warmUp, length time.Duration, seed uint64) Outcome {
	s := &simulation{Fleet: f, random: rand.New(rand.NewPCG(seed, 0)), processes: make([]process, f.Processes)}
	for i := range s.processes {
		p := &s.processes[i]
		p.queue = make([]time.Duration, f.Goroutines-1)
		s.at(time.Duration(s.random.Int64N(int64(f.Arrival+f.Trip)+1)), p, (*simulation).ask)
	}
	s.runUntil(warmUp)
	s.forget()
	s.runUntil(warmUp + length)
	return s.outcome(length)
}

// A process has one contender, holder or releaser at a time; its other goroutines wait in the local queue.
type process struct {
	asked      time.Duration   // when its contender called Lock
	queue      []time.Duration // when the callers behind it called Lock
	holds      bool            // the contender has the lock, as far as it knows
	since      time.Duration   // when the process was granted the lock
	brief      bool            // the lease is that of a grant
	sections   int
	subscribed bool

	sent  time.Duration // when the last request for the lock was sent
	seen  time.Duration // when the last request was sent that Redis has run
	trip  time.Duration // about how long a request takes
	trips int           // how many round trips were measured
	place int           // its entry in the queue: how many entered before, including this one; 0 for none
	ahead int           // number of entries ahead of it when it entered
	told  bool          // the message of the grant has arrived

	asleep bool
	wakes  time.Duration // when it wakes up by itself
	looks  bool          // its poller runs
}

type simulation struct {
	Fleet
	random    *rand.Rand
	now       time.Duration
	events    queue
	processes []process

	holder   *process   // of the record
	line     []*process // in the order in which they are granted the lock
	joined   int
	granted  int
	idle     time.Duration // when Redis will have processed all requests that have arrived
	tally    tally
	longest  time.Duration
	overtook int
}

// A tally has the counters.
type tally struct {
	requests, looks int
	worked          time.Duration // Redis
}

func (s *simulation) runUntil(end time.Duration) {
	for s.events.nextAt() <= end {
		e := s.events.next()
		s.now = e.at
		e.do(s, e.of)
	}
	s.now = end
}

// forget resets the counters. A goroutine that waits has waited since it asked.
func (s *simulation) forget() {
	s.tally, s.longest, s.overtook = tally{}, 0, 0
	for i := range s.processes {
		s.processes[i].sections = 0
	}
}

func (s *simulation) at(t time.Duration, p *process, do func(*simulation, *process)) {
	s.events.add(event{at: t, of: p, do: do})
}

// hop returns the time of the way to Redis, or back.
func (s *simulation) hop() time.Duration {
	return s.Trip/2 + time.Duration(float64(s.Noise)*s.random.ExpFloat64())
}

// serve makes Redis work for a time as soon as it is idle, and returns when it has finished.
func (s *simulation) serve(d time.Duration) time.Duration {
	s.idle = max(s.idle, s.now) + d
	s.tally.worked += d
	return s.idle
}

// ask sends an attempt. A grant that is not recent is confirmed by an attempt.
func (s *simulation) ask(p *process) {
	p.asleep = false
	connect := s.Connect
	if p.trip > 0 {
		connect = 0
	}
	p.sent = s.now
	s.tally.requests++
	s.at(s.now+connect+s.hop(), p, (*simulation).attempted)
}

// attempted is the script of an attempt. Only subscribed processes have an entry in the queue of a plain lock.
func (s *simulation) attempted(p *process) {
	p.seen = p.sent
	done := s.serve(s.Attempt) + s.hop()
	if p.place == 0 && (s.holder == nil || p.subscribed || s.Fair) {
		s.join(p)
	}
	if s.holder == nil {
		s.grant()
	}
	if s.holder == p {
		s.at(done, p, (*simulation).held)
	} else {
		s.at(done, p, (*simulation).busy)
	}
}

func (s *simulation) join(p *process) {
	s.joined++
	p.place, p.ahead = s.joined, s.joined-s.granted-1
	s.line = append(s.line, p)
}

// grant grants the lock, which is free, to the first entry in the queue.
func (s *simulation) grant() *process {
	p := s.line[0]
	s.line = s.line[1:]
	s.holder = p
	s.granted++
	if p.place != s.granted {
		s.overtook++
	}
	return p
}

func (s *simulation) busy(p *process) {
	s.noteTrip(p)
	switch {
	case p.told:
		s.take(p)
	case !p.subscribed:
		p.subscribed = true
		s.tally.requests++
		s.at(s.now+s.hop()+s.hop(), p, (*simulation).ask)
	default:
		s.sleep(p)
	}
}

func (s *simulation) sleep(p *process) {
	p.asleep = true
	delay := rareAsk
	if s.Fair {
		delay = min(s.WakeDelay, fairHeartbeat)
	}
	p.wakes = s.now + delay - time.Duration(s.random.Int64N(int64(delay)/5+1))
	s.at(p.wakes, p, (*simulation).timeUp)
	if !s.Fair && !p.looks {
		p.looks = true
		s.at(s.now+s.WakeDelay, p, (*simulation).look)
	}
}

// timeUp may belong to a sleep that has already ended.
func (s *simulation) timeUp(p *process) {
	if p.asleep && s.now >= p.wakes {
		s.ask(p)
	}
}

// look is one request of the poller, which continues while the process waits. Far back in the queue it is not sent each
// time.
func (s *simulation) look(p *process) {
	if p.ahead >= nearHead && s.random.IntN(p.ahead/nearHead+1) != 0 {
		p.ahead -= p.ahead / 8
		if p.looks = p.asleep; p.looks {
			s.at(s.now+s.WakeDelay, p, (*simulation).look)
		}
		return
	}
	s.tally.looks++
	s.at(s.now+s.hop(), p, (*simulation).looked)
}

func (s *simulation) looked(p *process) {
	done := s.serve(s.Look) + s.hop()
	if p.looks = p.asleep; p.looks {
		s.at(done+s.WakeDelay, p, (*simulation).look)
	}
}

// take uses the grant of which the process was notified, or confirms it.
func (s *simulation) take(p *process) {
	if s.now-p.seen >= freshGrant {
		s.ask(p)
		return
	}
	p.brief = true
	place := p.place
	s.at(max(s.now, p.seen+grantLease/3), p, func(s *simulation, p *process) { s.renew(p, place) })
	s.enter(p)
}

// renew extends the lease of a grant to a whole lease, if the process still holds it.
func (s *simulation) renew(p *process, place int) {
	if p.place != place || !p.brief {
		return
	}
	s.tally.requests++
	s.at(s.now+s.hop(), p, func(s *simulation, p *process) {
		s.at(s.serve(s.Attempt)+s.hop(), p, func(_ *simulation, p *process) { p.brief = p.brief && p.place != place })
	})
}

func (s *simulation) held(p *process) {
	s.noteTrip(p)
	s.enter(p)
}

// enter begins the first critical section of a hold.
func (s *simulation) enter(p *process) {
	p.asleep, p.holds, p.since = false, true, s.now
	s.section(p)
}

func (s *simulation) section(p *process) {
	s.longest = max(s.longest, s.now-p.asked)
	s.at(s.now+s.Section, p, (*simulation).unlock)
}

func (s *simulation) unlock(p *process) {
	p.sections++
	if len(p.queue) > 0 && s.now-p.since < s.sliceTime(p) && (!p.brief || s.now-p.seen < freshGrant) {
		s.turn(p)
		s.section(p)
		return
	}
	p.brief = false
	s.tally.requests++
	s.at(s.now+s.hop(), p, (*simulation).released)
}

// turn moves the contender to the end of the local queue.
func (s *simulation) turn(p *process) {
	p.queue = append(p.queue, s.now)
	p.asked = p.queue[0]
	p.queue = p.queue[1:]
}

// released is the script of a release. The message and the answer are sent together.
func (s *simulation) released(p *process) {
	s.holder = nil
	p.place = 0
	done := s.serve(s.Release)
	if len(s.line) > 0 {
		next := s.grant()
		done = s.serve(s.Message)
		place := next.place
		s.at(done+s.hop(), next, func(s *simulation, p *process) { s.hear(p, place) })
	}
	s.at(done+s.hop(), p, (*simulation).gaveBack)
}

// hear reads the message of a grant. The answer to a request may have contained the grant before.
func (s *simulation) hear(p *process, place int) {
	if p.place != place || p.holds {
		return
	}
	p.told = true
	if p.asleep {
		s.take(p)
	}
}

func (s *simulation) gaveBack(p *process) {
	p.holds, p.told = false, false
	s.turn(p)
	s.ask(p)
}

func (s *simulation) sliceTime(p *process) time.Duration {
	if s.Slice == 0 {
		return 0
	}
	return max(s.Slice, min(sliceTrips*p.trip, longSlice))
}

func (s *simulation) noteTrip(p *process) {
	p.trips++
	switch d := s.now - p.sent; {
	case p.trip == 0, p.trips == 2 && d < p.trip: // the first one connects
		p.trip = d
	case d < p.trip:
		p.trip -= (p.trip - d) / 4
	default:
		p.trip += min(d-p.trip, p.trip) / 16
	}
}

func (s *simulation) outcome(length time.Duration) Outcome {
	sections, served, least, most := 0, 0, s.processes[0].sections, 0
	for i := range s.processes {
		p := &s.processes[i]
		sections += p.sections
		least, most = min(least, p.sections), max(most, p.sections)
		if p.sections > 0 {
			served++
		}
		if !p.holds {
			s.longest = max(s.longest, s.now-p.asked)
		}
		for _, asked := range p.queue {
			s.longest = max(s.longest, s.now-asked)
		}
	}
	n := float64(sections)
	return Outcome{
		Share:     n * s.Section.Seconds() / length.Seconds(),
		Requests:  float64(s.tally.requests) / n,
		Looks:     float64(s.tally.looks) / n,
		Load:      s.tally.worked.Seconds() / length.Seconds(),
		Busy:      s.tally.worked / time.Duration(max(1, sections)),
		Longest:   s.longest,
		Even:      float64(least) / float64(most),
		Served:    float64(served) / float64(len(s.processes)),
		Overtaken: s.overtook,
	}
}
