package send

// How long a caller that does not wait stays for an answer.
//
// Rules: such a caller is told soon that Redis does not answer. How soon depends on how long answers take at present,
// so that a Redis server that is slow or far away can still grant or refuse a lock. An answer that arrives too late
// for its caller counts, too, so that the next caller stays longer.

import (
	"cmp"
	"sync/atomic"
	"time"
)

const (
	leastPatience = 2 * MinWait
	mostPatience  = 4 * MinWait // also before the first answer, when there may be no connection yet

	boundShare    = 8 // calls are bounded while the slowest of the recent answers took an eighth of the bound at most
	leastSlowness = time.Millisecond
)

// Slack is added to the patience of every caller. It is 0 except in tests on machines that are too busy to answer in
// time, which set it before they start.
var Slack time.Duration

// A slowness estimates how long the slowest of the recent answers took. It has a least value, so that fast answers do
// not write it. 0 means that there was no answer yet.
type slowness struct{ d atomic.Int64 }

func (s *slowness) get() time.Duration {
	return cmp.Or(time.Duration(s.d.Load()), mostPatience/2)
}

// observe records that an answer took d. A slower answer replaces the estimate, and a faster one lowers it by a
// quarter of the difference.
func (s *slowness) observe(d time.Duration) {
	d = max(d, leastSlowness)
	old := s.get()
	switch {
	case d == old:
		return
	case d < old && old-d > time.Millisecond:
		d = old - (old-d)/4
	}
	s.d.Store(int64(d))
}

// patience returns how long a caller that does not wait stays for an answer: twice as long as the slowest of the
// recent answers took, within limits.
func (s *slowness) patience() time.Duration {
	return max(leastPatience, min(2*s.get(), mostPatience))
}

// Patience returns how long a caller that does not wait stays for the answer to one request. It includes the time
// that replicas are given to confirm.
func (s *Sender) Patience() time.Duration { return s.slowness.patience() + s.config.Confirm + Slack }
