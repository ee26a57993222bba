// Package fleet simulates many processes that want one lock all the time, by a
// clock of its own: there is no Redis, no network, and no real waiting.
package fleet

// Rules: a process does what internal/engine, internal/poller and internal/turns do for a
// plain lock, or fair.go for a fair one, with the same constants. Redis does one thing
// at a time, in the order in which requests come. A hop is half a round trip and some
// noise, which is exponential. Left out are the processors of the processes, lost
// messages, crashes, renewals of whole leases, pings, callers without a place in the line, and all
// other work of Redis.

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

// A Fleet is what is simulated.
type Fleet struct {
	Processes  int
	Goroutines int           // of each process: they take the lock, stay for a section, and ask again at once
	Fair       bool          // a FairLock, of processes with one goroutine
	Trip       time.Duration // to Redis and back at best, without the time of Redis
	Noise      time.Duration // how much longer a hop takes on average, be it on the way or until the process runs
	Connect    time.Duration // how much longer the first request of a process takes
	Section    time.Duration
	Arrival    time.Duration // within which all processes ask for the first time
	Slice      time.Duration // WithHandoffWindow
	WakeDelay  time.Duration // WithPollInterval

	// Time that Redis needs: for an attempt, a release that grants, the message of a grant, and a look at the lock.
	Attempt, Release, Message, Look time.Duration
}

// An Outcome is what has become of it.
type Outcome struct {
	Share     float64       // of the rate of a lock that costs nothing
	Requests  float64       // a section, without looks: attempts, confirmations, renewals of grants, releases, and what is sent to subscribe and unsubscribe
	Looks     float64       // a section
	Load      float64       // how busy Redis was, of 1
	Busy      time.Duration // for a section
	Longest   time.Duration // wait, also of goroutines that still wait in the end
	Even      float64       // the slowest process against the fastest
	Served    float64       // the part of all processes that had the lock at all
	Overtaken int           // grants out of the order of the places in the line
}

// Run simulates so much time, and counts after a warm-up. The same seed gives the same outcome.
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
	queue      []time.Duration // when those behind it did
	holds      bool            // the contender has the lock, as far as it knows
	since      time.Duration   // when the process was granted the lock
	brief      bool            // the lease is that of a grant
	sections   int
	subscribed bool

	sent  time.Duration // the last request for the lock
	seen  time.Duration // when the last one was sent that Redis has run
	trip  time.Duration // about how long one takes
	trips int           // how many were measured
	place int           // in the line: how many joined before, and this one; 0: none
	ahead int           // places in front of it when it joined
	told  bool          // the message of the grant has come

	asleep bool
	wakes  time.Duration // by itself
	looks  bool          // its lookout runs
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
	idle     time.Duration // when Redis will have done all that has come
	tally    tally
	longest  time.Duration
	overtook int
}

// A tally is what is counted.
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

// forget leaves out what was counted so far. A goroutine that waits has waited since it asked.
func (s *simulation) forget() {
	s.tally, s.longest, s.overtook = tally{}, 0, 0
	for i := range s.processes {
		s.processes[i].sections = 0
	}
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
	s.tally.worked += d
	return s.idle
}

// ask sends an attempt. A grant that is not fresh is confirmed by one.
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

// attempted is the script of an attempt. A place in the line of a plain lock is for processes that hear of a grant.
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

// grant gives the lock, which is free, to the first place in the line.
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

// timeUp may be of a sleep that is over.
func (s *simulation) timeUp(p *process) {
	if p.asleep && s.now >= p.wakes {
		s.ask(p)
	}
}

// look is one request of the lookout, which goes on while the process waits. Far back in the line it is not made each
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

// take relies on the grant that the process was told of, or confirms it.
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

// renew makes the lease of a grant whole, if the process still has it.
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

// enter begins the first section of a hold.
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

// released is the script of a release. The message and the answer leave together.
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

// hear reads the message of a grant. The answer to a request may have said the same before.
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
