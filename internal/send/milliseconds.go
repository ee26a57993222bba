package send

// Conversions between durations and the milliseconds that Redis uses.

import (
	"math"
	"time"
)

// Milliseconds returns d in milliseconds, rounded up unless the result would no longer fit into a Duration.
func Milliseconds(d time.Duration) int64 {
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 && ms < math.MaxInt64/int64(time.Millisecond) {
		ms++
	}
	return ms
}

// FromMilliseconds returns the result of PTTL as a duration. Negative results stay negative.
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
