package report

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Losses are reported first. Renewals beyond the limit of the reporter are dropped.
func TestReporterKeepsLossesAndSomeRenewals(t *testing.T) {
	t.Parallel()
	var run func()
	r := New(func(f func()) { run = f })
	var order []string
	renewals := make([]func(), mostReports/2)
	for i := range renewals {
		renewals[i] = func() { order = append(order, "renewed") }
	}
	for range 3 {
		r.Renewals(renewals)
	}
	r.Later(func() { order = append(order, "lost") })
	assert.True(t, r.Busy())
	run()
	assert.False(t, r.Busy())
	assert.Len(t, order, 1+mostReports)
	assert.Equal(t, "lost", order[0])
	run = nil
	r.Renewals(renewals)
	assert.NotNil(t, run)
}
