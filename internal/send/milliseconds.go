package send

// Times as Redis counts them.

import (
	"math"
	"time"
)

// Milliseconds is d as Redis counts it, rounded up where that is still a Duration.
func Milliseconds(d time.Duration) int64 {
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 && ms < math.MaxInt64/int64(time.Millisecond) {
		ms++
	}
	return ms
}

// FromMilliseconds is a PTTL as a duration; negative ones stay negative.
func FromMilliseconds(ms int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	switch {
	case ms > most:
		return math.MaxInt64
	case ms < -most:
		return math.MinInt64
	}
	return time.Duration(ms) * time.Millisecond
}
