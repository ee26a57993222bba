package main

// What a course decides, in all orders of what may happen.

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/permute"
)

// A played is a course with a command, and something that it has started, in the time of the test.
type played struct {
	course
	now     time.Duration
	running bool // the command
	left    bool // what it has started
	tough   bool // neither ends with TERM
	log     string
}

var (
	playBegun = time.Now()
	errPlayed = errors.New("lost")
)

const (
	playLease = 10 * time.Second
	playGrace = 4 * time.Second
)

func play(tough bool) *played {
	c := course{grace: playGrace, until: playBegun.Add(playLease), cause: errPlayed}
	return &played{course: c, running: true, left: true, tough: tough}
}

func (p *played) time() time.Time { return playBegun.Add(p.now) }

// ends is the end of the command.
func (p *played) ends(bySignal bool) {
	if p.running {
		p.running, p.ended, p.broken = false, p.time(), bySignal
	}
}

// obey does what the course says until then, and reports whether that was to leave.
func (p *played) obey(then time.Duration) bool {
	for {
		p.rest = p.left && !p.running
		do, again := p.next(p.time())
		if do != wait {
			p.log += fmt.Sprintf("%v %s, ", p.now, []string{"", "TERM", "KILL", "leave"}[do])
		}
		switch {
		case do == leave:
			return true
		case do == kill, do == terminate && !p.tough:
			p.ends(true)
			p.left = false
			continue
		case again.Sub(playBegun) > then:
			p.now = max(p.now, then)
			return false
		}
		p.now = max(p.now, again.Sub(playBegun)) // which is at once if it is over
	}
}

func TestCourseCountsBackFromTheEndOfTheValidity(t *testing.T) {
	for _, c := range []struct {
		tough bool
		do    func(p *played)
		want  string
	}{
		{false, func(*played) {}, "6s TERM, 6s leave, "},
		{true, func(*played) {}, "6s TERM, 10s KILL, 10s leave, "},
		{true, func(p *played) { p.now = 9 * time.Second }, "9s TERM, 10s KILL, 10s leave, "}, // after a pause
		{true, func(p *played) { p.now = 15 * time.Second }, "15s KILL, 15s leave, "},
		{true, func(p *played) {
			p.obey(5 * time.Second)
			p.renewed(renewal{until: p.time().Add(playLease)}, errPlayed)
		}, "11s TERM, 15s KILL, 15s leave, "},
		{true, func(p *played) {
			p.obey(7 * time.Second)
			p.renewed(renewal{until: p.time().Add(playLease)}, errPlayed)
		}, "6s TERM, 10s KILL, 10s leave, "}, // a renewal that comes too late
		{true, func(p *played) {
			p.obey(time.Second)
			p.lose(errPlayed, p.time())
		}, "1s TERM, 5s KILL, 5s leave, "},
		{true, func(p *played) {
			p.now = 8 * time.Second
			p.lose(errPlayed, p.time())
		}, "8s TERM, 10s KILL, 10s leave, "},
		{true, func(p *played) {
			p.obey(7 * time.Second)
			p.ends(false)
		}, "6s TERM, 10s KILL, 10s leave, "}, // what is left has the rest of the grace, as the program of a shell
		{true, func(p *played) {
			p.now = 8 * time.Second
			p.ends(true)
		}, "8s TERM, 10s KILL, 10s leave, "},
		{true, func(p *played) {
			p.obey(4 * time.Second)
			p.ends(true)
		}, "4s TERM, 8s KILL, 8s leave, "},
		{true, func(p *played) { p.ends(false) }, "0s leave, "},
		{false, func(p *played) { p.ends(true) }, "0s TERM, 0s leave, "},
		{true, func(p *played) { p.ends(true) }, "0s TERM, 4s KILL, 4s leave, "},
		{true, func(p *played) {
			p.told = true
			p.obey(time.Second)
			p.ends(false)
		}, "5s KILL, 5s leave, "}, // after 1s + grace, without a second signal
		{true, func(p *played) {
			p.ends(true)
			p.obey(time.Second)
			p.lose(errPlayed, p.time())
		}, "0s TERM, 4s KILL, 4s leave, "},
	} {
		p := play(c.tough)
		c.do(p)
		require.True(t, p.obey(time.Minute))
		assert.Equal(t, c.want, p.log)
	}
}

// A process that cannot be killed does not keep relockctl for ever once the command has ended.
func TestCourseGivesUpWhatCannotBeKilled(t *testing.T) {
	p := play(true)
	p.ends(true)
	p.rest = true
	var kills int
	do, now := wait, p.time()
	for ; do != leave; do, now = p.next(now) {
		if do == kill {
			kills++
		}
	}
	assert.Equal(t, playGrace+mostKills*moment, now.Sub(playBegun))
	assert.Equal(t, mostKills, kills)
}

// Whatever happens, in which order, and however late relockctl notices it: nothing runs when another owner may have
// the lock, except what a command that ended by itself has left on purpose, and nothing is ended without a reason.
func TestCourseInAllOrders(t *testing.T) {
	for _, bySignal := range []bool{false, true} {
		for _, tough := range []bool{false, true} {
			for _, pause := range []time.Duration{0, 5 * time.Second, 7 * time.Second, 12 * time.Second, time.Minute} {
				for _, step := range []time.Duration{0, 10 * time.Millisecond, time.Second, 3 * time.Second} {
					permute.All(5, func(order []int) {
						what := fmt.Sprint(order, ", by signal: ", bySignal, ", tough: ", tough, ", ", pause, " + ", step)
						p := play(tough)
						p.now = pause
						valid := p.happens(order, bySignal, step)
						require.True(t, p.obey(p.now+time.Minute), what)
						require.False(t, p.running, what)
						if p.lost != nil || p.told || p.broken {
							require.False(t, p.left, what)
							require.LessOrEqual(t, p.now, max(valid, pause)+moment, what)
						} else {
							require.True(t, p.left, what)
							require.NotContains(t, p.log, "TERM", what)
							require.NotContains(t, p.log, "KILL", what)
						}
					})
				}
			}
		}
	}
}

// happens lets one thing happen after the other, in steps, and returns until when something may run.
func (p *played) happens(order []int, bySignal bool, step time.Duration) (valid time.Duration) {
	valid = playLease
	for _, event := range order {
		held := p.lost == nil
		switch event {
		case 0:
			if held {
				valid = p.now + playLease
			}
			p.renewed(renewal{until: p.time().Add(playLease)}, errPlayed)
		case 1:
			p.renewed(renewal{err: errors.New("no answer")}, errPlayed)
		case 2:
			if held {
				valid = min(valid, p.now+playGrace)
			}
			p.lose(errPlayed, p.time())
		case 3:
			p.told = true // with a signal that was forwarded, and that the command ignores
		case 4:
			p.ends(bySignal)
		}
		if p.obey(p.now + step) {
			break
		}
	}
	return valid
}
