package growth_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/growth"
)

// The watchdog renews a lease of 30 seconds when 20 seconds are left of it.
func TestRenewedLeaseIsSeenToGrow(t *testing.T) {
	const lease = 30 * time.Second
	for left := lease; left >= 2*lease/3; left -= time.Second {
		untilRenewal := left - 2*lease/3
		assert.LessOrEqual(t, untilRenewal, growth.Within(left), left)
	}
	assert.True(t, growth.Grows(10*time.Second))
	assert.False(t, growth.Same(10*time.Second))
}

// The times of two answers differ by little.
func TestLeaseThatRunsOutDoesNotGrow(t *testing.T) {
	for _, later := range []time.Duration{-50 * time.Millisecond, 0, 50 * time.Millisecond} {
		assert.False(t, growth.Grows(later), later)
		assert.True(t, growth.Same(later), later)
	}
	assert.False(t, growth.Same(-time.Second), "it has shrunk")
	assert.False(t, growth.Grows(-time.Second))
}
