package main

// How run supervises the command: what has happened so far decides what to do next.
//
// Rules: the command is told to end, and all that is left is killed, at times that count back from the end of the
// validity of the hold, however late relockctl notices something. Once the command has been told, a renewal that
// succeeds does not save it. What the command has started ends with it, unless the command ended by itself while the
// lock was held. A course decides, and does nothing; supervise does what it decides, in one goroutine, and waits for
// nothing else than the next event, so that it writes to a patient only.

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/relock-go/relock/internal/waitgroup"
)

// A step is what to do next about the processes of the command.
type step int

const (
	wait step = iota
	terminate
	kill
	leave
)

const (
	moment    = 50 * time.Millisecond // how often to look for what is left
	mostKills = 100                   // how often to kill what is left, once the command has ended
)

// A course is what has happened to the lock and the command so far.
type course struct {
	grace  time.Duration
	until  time.Time // when the command is killed: the end of the validity, or sooner after a loss
	cause  error     // why the lock cannot be relied on then
	lost   error     // why the lock can no longer be relied on, or nil
	told   bool      // all processes were asked to end, with a signal
	ended  time.Time // when the command has ended, or zero
	broken bool      // by a signal
	rest   bool      // what the command has started still runs
	kills  int       // how often that was killed, since the command has ended
}

// renewed is called after an attempt to renew the lease.
func (s *course) renewed(r renewal, silent error) {
	if s.lost == nil {
		if s.cause = cmp.Or(r.err, silent); r.err == nil {
			s.until = r.until
		}
	}
}

// lose is called when the lock is known to be lost.
func (s *course) lose(cause error, now time.Time) {
	if end := now.Add(s.grace); s.lost == nil {
		s.cause = cause
		if end.Before(s.until) {
			s.until = end
		}
	}
}

// next returns what to do now, and when to ask again if nothing happens before.
func (s *course) next(now time.Time) (do step, again time.Time) {
	ended := !s.ended.IsZero()
	if ended && (!s.rest || s.lost == nil && !s.told && !s.broken) {
		return leave, now
	}
	tellAt, killAt, again := s.until.Add(-s.grace), s.until, s.until
	if ended { // what is left, as the program of a shell, has the grace, too, as far as the lock allows
		killAt = earlier(killAt, s.ended.Add(s.grace))
		again = earlier(killAt, now.Add(moment))
	}
	if s.lost == nil && !now.Before(tellAt) {
		s.lost, s.told = s.cause, s.told && ended // a command that goes on in spite of a signal is told again
	}
	switch {
	case s.lost == nil && !ended:
		return wait, tellAt
	case now.Before(killAt) && !s.told:
		s.told = true
		return terminate, again
	case now.Before(killAt):
		return wait, again
	case !ended:
		return kill, now.Add(moment)
	case s.kills < mostKills: // no time: a pause may have been longer
		s.kills++
		return kill, now.Add(moment)
	}
	return leave, now
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// supervise waits until the command has ended, forwards signals to it, and ends it if the lock can no longer be relied
// on. Then it returns why.
func (p *program) supervise(ctx context.Context, k *keeper, c *child, signals <-chan os.Signal) error {
	ctx, stop := context.WithCancel(ctx)
	var renewing sync.WaitGroup
	defer renewing.Wait()
	defer stop()
	outcomes := make(chan renewal)
	silent := fmt.Errorf("%s: no renewal of its lease was confirmed in time", quote(p.job.name))
	s := course{grace: k.grace, until: k.until, cause: silent}
	if k.renews {
		waitgroup.Go(&renewing, func() { k.renew(ctx, outcomes) })
	} else {
		s.cause = fmt.Errorf("%s: its lease of %v ends soon", quote(p.job.name), k.lease)
	}
	lost := k.hold.Context()
	over, ended, deaths := lost.Done(), c.ended, c.deaths
	var reap <-chan time.Time
	for {
		now, held := time.Now(), s.lost == nil
		do, again := s.next(now)
		switch do {
		case terminate:
			c.signal(syscall.SIGTERM)
		case kill:
			c.signal(syscall.SIGKILL)
		case leave:
			return s.lost
		}
		if held && s.lost != nil {
			left := max(0, s.until.Sub(now)+time.Second-1).Truncate(time.Second) // of the grace, after a pause
			fmt.Fprintf(p.notes, "relockctl: %s; the command has %v to end\n", plain(s.lost), min(k.grace, left))
		}
		select {
		case <-ended:
			ended = nil
			s.ended, s.broken = time.Now(), c.cmd.ProcessState.ExitCode() < 0
		case signal := <-signals:
			s.told = c.forward(signal) || s.told
		case r := <-outcomes:
			s.renewed(r, silent)
		case <-over:
			over = nil // a channel that is closed is always ready
			s.lose(context.Cause(lost), time.Now())
		case <-deaths: // many at a time, because a look costs the more the more processes there are
			deaths, reap = nil, time.After(moment)
		case <-reap:
			c.left()
			deaths = c.deaths
		case <-time.After(time.Until(again)):
		}
		if ended == nil {
			s.rest = len(c.left()) > 0
		}
	}
}

// warn tells of the processes that go on without the lock, as kill(1) takes them. Those that end with the command may
// take a moment.
func (c *child) warn(notes io.Writer) {
	left := c.left()
	for looks := 0; looks < 4 && left != nil; looks++ {
		time.Sleep(moment)
		left = c.left()
	}
	if left != nil {
		fmt.Fprintf(notes, "relockctl: warning: the command has left processes running, without the lock: %d\n", left)
	}
}

// A patient writes texts in the order in which it gets them, in its own goroutine, because a pipe that no process
// reads blocks. It drops them while many are unwritten.
type patient struct {
	texts chan []byte
	ended chan struct{} // closed when all is written
}

func newPatient(to io.Writer) *patient {
	w := &patient{make(chan []byte, 100), make(chan struct{})}
	go func() {
		defer close(w.ended)
		for text := range w.texts {
			if text == nil { // from end
				return
			}
			_, _ = to.Write(text)
		}
	}()
	return w
}

func (w *patient) Write(text []byte) (int, error) {
	select {
	case w.texts <- bytes.Clone(text):
	default:
	}
	return len(text), nil
}

// end waits until all is written, for a second at most.
func (w *patient) end() {
	_, _ = w.Write(nil)
	select {
	case <-w.ended:
	case <-time.After(time.Second):
	}
}
