//go:build go1.25

package send

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// A caller that does not wait gives up soon if Redis does not answer, and stays longer if answers take long.
func TestPatienceFollowsTheAnswers(t *testing.T) {
	var s slowness
	assert.Equal(t, mostPatience, s.patience(), "before the first answer")
	s.observe(time.Millisecond)
	assert.Equal(t, 600500*time.Microsecond, s.patience(), "after a quick answer")
	for range 100 {
		s.observe(time.Millisecond)
	}
	assert.Equal(t, leastPatience, s.patience(), "after many quick answers")
	s.observe(300 * time.Millisecond)
	assert.Equal(t, 600*time.Millisecond, s.patience(), "after a slow answer")
	s.observe(time.Hour)
	assert.Equal(t, mostPatience, s.patience(), "after an answer to a request that hung")
	for range 100 {
		s.observe(time.Millisecond)
	}
	assert.Equal(t, leastPatience, s.patience(), "after many quick answers")
}

// takes makes every answer take d.
func (b *bench) takes(d time.Duration) {
	b.fake.setRun(after(d, nil))
	b.fake.setBefore(func(context.Context) error { time.Sleep(d); return nil })
}

// The request of a caller that does not wait is abandoned when its patience has run out, also in a batch, and its
// outcome becomes an orphan. An orphan that was answered makes the next caller stay longer.
func TestCallerThatDoesNotWaitGivesUpSoon(t *testing.T) {
	for name, change := range map[string]func(*Config){"goroutine": func(*Config) {},
		"batch": func(c *Config) { c.Batch = true }} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, change)
				b.BatchAll()
				try := func(patient bool) (Answer, time.Duration, *orphans) {
					heard := &orphans{}
					w := b.wait(context.Background())
					w.NoWait, w.OnCaller, w.Patient = true, true, patient
					start := time.Now()
					a := b.Do(w, Request{Call: Call{Keys: []string{"k"}}, OnOrphan: heard}, time.Time{})
					return a, time.Since(start), heard
				}
				for range 100 {
					a, _, _ := try(false)
					answers(t, "k", a)
				}
				b.takes(3 * time.Second / 5)
				a, took, heard := try(false)
				assert.ErrorIs(t, a.Err, ErrTimeUp)
				assert.True(t, a.Abandoned)
				assert.Equal(t, leastPatience, took)
				time.Sleep(time.Second)
				assert.Len(t, heard.all(), 1, "orphans")
				a, _, _ = try(false)
				answers(t, "k", a)
				b.takes(3 * time.Second / 2)
				a, took, _ = try(false)
				assert.ErrorIs(t, a.Err, ErrTimeUp)
				assert.Equal(t, mostPatience, took)
				a, _, _ = try(true)
				answers(t, "k", a)
				time.Sleep(time.Minute)
				b.idle()
			})
		})
	}
}
