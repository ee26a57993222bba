package send

// How long a caller that does not wait stays for an answer.
//
// Rules: such a caller is told soon that Redis does not answer. How soon depends on how long answers take at present,
// so that a Redis that is slow, or far away, can still say yes or no. An answer that comes too late for its caller
// counts, too: the next caller stays for longer.

import (
	"cmp"
	"sync/atomic"
	"time"
)

const (
	leastPatience = 2 * MinWait
	mostPatience  = 4 * MinWait // also before Redis has answered: there may be no connection yet
)

// Slack is added to the patience of every caller. It is 0, except in tests on a machine that is too busy to answer in
// time, which set it before they begin.
var Slack time.Duration

// A slowness is about how long the slowest of the last answers took. It is never less than half of leastPatience, so
// that answers that are quick enough write nothing. 0: there was no answer.
type slowness struct{ d atomic.Int64 }

func (s *slowness) get() time.Duration {
	return cmp.Or(time.Duration(s.d.Load()), mostPatience/2)
}

// observe notes that an answer took d. It counts at once where it is slower than those before, and else by a quarter.
func (s *slowness) observe(d time.Duration) {
	d = max(d, leastPatience/2)
	old := s.get()
	switch {
	case d == old:
		return
	case d < old && old-d > time.Millisecond:
		d = old - (old-d)/4
	}
	s.d.Store(int64(d))
}

// patience is how long a caller that does not wait stays for an answer: twice as long as the slowest of the last ones
// took.
func (s *slowness) patience() time.Duration {
	return max(leastPatience, min(2*s.get(), mostPatience))
}

// Patience is how long a caller that does not wait stays for the answer to one request. Replicas may take the time to
// confirm that they are given.
func (s *Sender) Patience() time.Duration { return s.slowness.patience() + s.config.Confirm + Slack }
