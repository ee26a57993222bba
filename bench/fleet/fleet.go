// Package fleet simulates many processes that want one lock all the time, by a
// clock of its own: there is no Redis, no network, and no real waiting.
package fleet

// Rules: a process does what queue.go, turns.go and acquire.go do, with the same
// constants. Redis does one thing at a time, in the order in which requests come.
// A hop is half a round trip and some noise, which is exponential. Left out are the
// processors of the processes, what gets lost, crashes, and all other work of Redis.

import (
	"math/rand/v2"
	"time"
)

// The constants of relock.
const (
	sliceTrips  = 16
	longSlice   = 100 * time.Millisecond
	leastWay    = time.Millisecond
	longestWay  = 20 * time.Millisecond
	mostYielded = 1024
	mostMissed  = 8
)

// A Fleet is what is simulated.
type Fleet struct {
	Processes  int
	Goroutines int           // of each process: they take the lock, stay for a section, and ask again at once
	Trip       time.Duration // to Redis and back at best, without the time of Redis
	Noise      time.Duration // how much longer a hop takes on average, be it on the way or until the process runs
	Section    time.Duration
	Slice      time.Duration // WithHandoverSlice
	WakeDelay  time.Duration // WithMaxWakeDelay

	// Time that Redis needs: for an attempt, for a release, and for each process that hears of one.
	Attempt, Release, Message time.Duration
}

// An Outcome is what has become of it.
type Outcome struct {
	Share    float64       // of the rate of a lock that costs nothing
	Requests float64       // a section
	Messages float64       // a section
	Load     float64       // how busy Redis was, of 1
	Busy     time.Duration // for a section
	Longest  time.Duration // wait, also of those who still wait in the end
	Even     float64       // the slowest process against the fastest
	Served   float64       // the part of all processes that had the lock at all
}

// Run simulates so much time. The same seed gives the same outcome.
func (f Fleet) Run(length time.Duration, seed uint64) Outcome {
	s := &simulation{Fleet: f, random: rand.New(rand.NewPCG(seed, 0)), processes: make([]process, f.Processes)}
	for i := range s.processes {
		p := &s.processes[i]
		p.since = none
		p.line = make([]time.Duration, f.Goroutines-1)
		s.at(time.Duration(s.random.Int64N(int64(f.Trip)+1)), p, (*simulation).contend)
	}
	for {
		e := s.events.next()
		if e.at > length {
			break
		}
		s.now = e.at
		e.do(s, e.of)
	}
	s.now = length
	return s.outcome()
}

const none = time.Duration(-1)

// A process has one contender, holder or releaser at a time; its other goroutines wait in the local queue.
type process struct {
	asked    time.Duration   // when its contender did
	line     []time.Duration // when those behind it did
	sections int

	subscribed bool
	listens    bool // its contender has been told that the lock is busy
	woken      bool // a wake-up that was not taken yet
	asleep     bool
	wakes      time.Duration // by itself
	timer      bool          // an event comes when it wakes, or sooner

	sent time.Duration // the last attempt
	trip time.Duration // about how long one takes

	// The streak of handover.go.
	since, way      time.Duration
	yielded, missed int
	offered         bool
}

type simulation struct {
	Fleet
	random    *rand.Rand
	now       time.Duration
	events    queue
	processes []process

	taken    bool          // the record is there
	idle     time.Duration // when Redis will have done all that has come
	hearers  []*process    // in the order in which they have subscribed, which is that of messages
	requests int
	messages int
	worked   time.Duration // Redis
	longest  time.Duration
}

func (s *simulation) at(t time.Duration, p *process, do func(*simulation, *process)) {
	s.events.add(event{at: t, of: p, do: do})
}

// hop is the way to Redis, or back.
func (s *simulation) hop() time.Duration {
	return s.Trip/2 + time.Duration(float64(s.Noise)*s.random.ExpFloat64())
}

// serve has Redis work for so long when it comes to it, and returns when it has.
func (s *simulation) serve(d time.Duration) time.Duration {
	s.idle = max(s.idle, s.now) + d
	s.worked += d
	return s.idle
}

// contend begins for the next in the local queue.
func (s *simulation) contend(p *process) {
	p.listens, p.woken = false, false
	s.ask(p)
}

// ask makes an attempt, after those who go first.
func (s *simulation) ask(p *process) {
	if p.way > s.now {
		s.at(p.way, p, (*simulation).send)
		return
	}
	s.send(p)
}

func (s *simulation) send(p *process) {
	p.sent = s.now
	s.requests++
	s.at(s.now+s.hop(), p, (*simulation).attempted)
}

func (s *simulation) attempted(p *process) {
	done := s.serve(s.Attempt) + s.hop()
	if s.taken {
		s.at(done, p, (*simulation).busy)
		return
	}
	s.taken = true
	s.at(done, p, (*simulation).held)
}

func (s *simulation) busy(p *process) {
	s.noteTrip(p)
	p.since, p.offered, p.missed = none, false, 0
	switch {
	case !p.subscribed:
		p.subscribed, p.listens = true, true
		s.hearers = append(s.hearers, p)
		s.at(s.now+s.hop()+s.hop(), p, (*simulation).ask)
	case !p.listens: // for a release before that
		p.listens = true
		s.ask(p)
	case p.woken:
		s.wake(p)
	default:
		p.asleep = true
		p.wakes = s.now + s.WakeDelay - time.Duration(s.random.Int64N(int64(s.WakeDelay)/5+1))
		s.setTimer(p)
	}
}

// setTimer has one event on its way for all naps of a process, which most messages cut short.
func (s *simulation) setTimer(p *process) {
	if !p.timer {
		p.timer = true
		s.at(p.wakes, p, (*simulation).timeUp)
	}
}

func (s *simulation) timeUp(p *process) {
	p.timer = false
	switch {
	case !p.asleep:
	case s.now < p.wakes:
		s.setTimer(p)
	default:
		p.asleep = false
		s.ask(p)
	}
}

func (s *simulation) heard(p *process) {
	if p.asleep {
		s.wake(p)
	} else {
		p.woken = p.listens
	}
}

func (s *simulation) wake(p *process) {
	p.asleep, p.woken = false, false
	if p.yielded > 0 {
		p.yielded--
		p.way = s.now + p.wayTime()
	}
	s.ask(p)
}

func (s *simulation) held(p *process) {
	s.noteTrip(p)
	p.listens = false
	if p.since == none {
		p.since = s.now
	}
	s.enter(p)
}

// enter begins the section of the contender.
func (s *simulation) enter(p *process) {
	s.longest = max(s.longest, s.now-p.asked)
	s.at(s.now+s.Section, p, (*simulation).unlock)
}

func (s *simulation) unlock(p *process) {
	p.sections++
	if len(p.line) > 0 && s.now-p.since < s.sliceTime(p) {
		s.turn(p)
		s.enter(p)
		return
	}
	s.requests++
	s.at(s.now+s.hop(), p, (*simulation).released)
}

// turn moves the contender to the end of the local queue.
func (s *simulation) turn(p *process) {
	p.line = append(p.line, s.now)
	p.asked = p.line[0]
	p.line = p.line[1:]
}

func (s *simulation) released(p *process) {
	s.taken = false
	written := s.serve(s.Release)
	for _, other := range s.hearers {
		written = s.serve(s.Message)
		s.at(written+s.hop(), other, (*simulation).heard)
	}
	s.messages += len(s.hearers)
	s.at(written+s.hop(), p, (*simulation).gaveBack)
}

func (s *simulation) gaveBack(p *process) {
	if others := len(s.hearers) - 1; s.now-p.since >= s.sliceTime(p) {
		p.since, p.way, p.yielded = none, 0, 0
		if others > 0 {
			if p.offered {
				p.missed = min(p.missed+1, mostMissed)
			}
			p.offered = true
			p.way = s.now + min(p.wayTime()<<p.missed, longestWay)
			p.yielded = min(others-1, mostYielded)
		}
	}
	s.turn(p)
	s.contend(p)
}

func (s *simulation) sliceTime(p *process) time.Duration {
	if s.Slice == 0 {
		return 0
	}
	return max(s.Slice, min(sliceTrips*p.trip, longSlice))
}

func (p *process) wayTime() time.Duration { return min(leastWay+p.trip, longestWay) }

func (s *simulation) noteTrip(p *process) {
	switch d := s.now - p.sent; {
	case p.trip == 0:
		p.trip = d
	case d < p.trip:
		p.trip -= (p.trip - d) / 4
	default:
		p.trip += min(d-p.trip, p.trip) / 16
	}
}

func (s *simulation) outcome() Outcome {
	sections, served, least, most := 0, 0, s.processes[0].sections, 0
	for i := range s.processes {
		p := &s.processes[i]
		sections += p.sections
		least, most = min(least, p.sections), max(most, p.sections)
		if p.sections > 0 {
			served++
		}
		if !s.taken || p.listens { // else it may be in its section
			s.longest = max(s.longest, s.now-p.asked)
		}
		for _, asked := range p.line {
			s.longest = max(s.longest, s.now-asked)
		}
	}
	n := float64(sections)
	return Outcome{
		Share:    n * s.Section.Seconds() / s.now.Seconds(),
		Requests: float64(s.requests) / n,
		Messages: float64(s.messages) / n,
		Load:     s.worked.Seconds() / s.now.Seconds(),
		Busy:     s.worked / time.Duration(max(1, sections)),
		Longest:  s.longest,
		Even:     float64(least) / float64(most),
		Served:   float64(served) / float64(len(s.processes)),
	}
}
