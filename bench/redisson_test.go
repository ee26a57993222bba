package main

import (
	"context"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/bench/stats"
	"github.com/relock-go/relock/internal/testredis"
)

// A pretended program gets jobs and prints the given answers.
func pretendedProgram(t *testing.T, answers string) (*program, *strings.Builder) {
	t.Helper()
	var jobs strings.Builder
	p := &program{in: writer{&jobs}, answers: make(chan []byte, 1), kill: func() {}}
	p.read(strings.NewReader(answers), func() error { return nil })
	return p, &jobs
}

type writer struct{ io.Writer }

func (writer) Close() error { return nil }

func TestProgramDoesAWindowOfACrowd(t *testing.T) {
	p, jobs := pretendedProgram(
		t,
		`{"sections":[3, 4],"all":9,"stuck":1,"p50":1000000,"p99":2000000,"longest":3000000,"cpu":500000000}`,
	)
	c := crowd{clients: 2, workers: 1, names: 1, section: time.Millisecond}
	turn := turn{kind: kindOf("redisson"), served: new([]int), took: 500 * time.Millisecond}
	got, err := p.crowd(c)(t.Context(), turn)
	require.NoError(t, err)
	assert.Equal(t, "crowd 1 1 1000000 500000000 2000000000\n", jobs.String())
	assert.Equal(
		t,
		tally{[]int{3, 4}, 9, 1, time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond, time.Second / 2},
		got,
	)
	s := c.sum(got, turn, work{calls: map[string]float64{"evalsha": 18, "get": 100, "del": 36}, redis: 0.9})
	assert.Equal(t, float64(14), s[rate])
	assert.Equal(t, 0.003, s[longest])
	assert.Equal(t, 0.75, s[evenClient])
	assert.Equal(t, float64(4), s[requests], "scripts, and half of what is deleted")
	assert.InDelta(t, 0.1, s[redisCPU], 1e-9)
	assert.Equal(t, float64(1), s[stuckCount])
}

func TestProgramDoesAWindowOfHandoffs(t *testing.T) {
	p, jobs := pretendedProgram(t, `{"waits":[4000000, 5000000],"stuck":1}`)
	got, err := p.handoffs(handoff{far})(t.Context(), turn{took: time.Second})
	require.NoError(t, err)
	assert.Equal(t, "handoff 10000000 1000000000 2000000000\n", jobs.String())
	assert.Equal(t, handed{[]time.Duration{4 * time.Millisecond, 5 * time.Millisecond}, 1}, got)
}

func TestProgramDoesAWindowOfWokenReaders(t *testing.T) {
	p, jobs := pretendedProgram(t, `{"waits":[4000000, 5000000],"stuck":1}`)
	got, err := p.woken(woken{far, 3})(t.Context(), turn{took: time.Second})
	require.NoError(t, err)
	assert.Equal(t, "woken 208000000 1000000000 2000000000\n", jobs.String())
	assert.Equal(t, handed{[]time.Duration{4 * time.Millisecond, 5 * time.Millisecond}, 1}, got)
}

func TestProgramThatFailsIsAnError(t *testing.T) {
	c := crowd{clients: 1, workers: 1}
	for answers, want := range map[string]string{
		`{"error":"java.lang.Error: broken"}`: "java.lang.Error: broken",
		"Exception in thread":                 `"Exception in thread"`,
		`{"sections":[1, 2]}`:                 "2 workers, not 1",
		"":                                    "has ended",
	} {
		p, _ := pretendedProgram(t, answers)
		_, err := p.crowd(c)(t.Context(), turn{})
		assert.ErrorContains(t, err, want)
	}
	p := &program{in: writer{io.Discard}, answers: make(chan []byte)}
	assert.ErrorContains(t, p.ask(t.Context(), time.Millisecond, nil, "crowd"), "has not answered")
	ctx, stop := context.WithCancel(t.Context())
	stop()
	assert.ErrorIs(t, p.ask(ctx, time.Hour, nil, "crowd"), context.Canceled)
	close(p.answers)
	assert.ErrorIs(t, p.ask(ctx, time.Hour, nil, "crowd"), context.Canceled, "a terminal interrupts both")
}

// A program that hangs is killed.
func TestCloseEndsTheProgram(t *testing.T) {
	p := &program{in: writer{io.Discard}, answers: make(chan []byte)}
	p.kill = func() { close(p.answers) }
	p.close(time.Millisecond)
}

// With Java the program itself does a slice of each kind. It is skipped elsewhere.
func TestRedissonItself(t *testing.T) {
	if testing.Short() || !testredis.Available() {
		t.Skip("this test needs a redis-server, Java and Maven")
	}
	for _, tool := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("this test needs Java and Maven: ", err)
		}
	}
	dir, err := buildRedisson(t.Context())
	if err != nil {
		t.Skip("Maven does not build it here: ", err)
	}
	server, err := startServer(0)
	require.NoError(t, err)
	defer server.close()
	p, err := startRedisson(t.Context(), dir, setting{addr: server.addr, lease: 30 * time.Second}, 2, 10*time.Millisecond)
	require.NoError(t, err)
	turn := turn{
		server:  server,
		kind:    kindOf("redisson"),
		program: p,
		served:  new([]int),
		handed:  new(stats.Histogram),
		took:    500 * time.Millisecond,
	}
	got, err := crowd{clients: 2, workers: 2, names: 1}.slice(t.Context(), turn)
	require.NoError(t, err)
	assert.Positive(t, got[rate])
	assert.GreaterOrEqual(t, got[requests], 3.0, "one to lock and two to unlock")
	assert.Positive(t, got[ourCPU])
	counted, shown := requestsOf(t, server, "redisson", func() error {
		_, err := p.crowd(crowd{clients: 2, workers: 2, names: 1})(t.Context(), turn)
		return err
	})
	total := 0.0
	for _, n := range shown {
		total += n
	}
	assert.InEpsilon(t, total, counted, 0.01, "%v", shown)
	got, err = handoff{}.slice(t.Context(), turn)
	require.NoError(t, err)
	assert.Positive(t, got[handedOff])
	got, err = woken{readers: 1}.slice(t.Context(), turn)
	require.NoError(t, err)
	assert.Positive(t, got[handedOff])
	assert.Zero(t, got[stuckCount])
	p.close(shutdown)
	assert.NoError(t, p.ended, "it was not killed")
	keys, err := server.keys(t.Context())
	require.NoError(t, err)
	assert.Zero(t, keys, "its locks")
	assert.Eventually(t, func() bool {
		all, _, err := server.connections(t.Context())
		return err == nil && all <= 1
	}, 5*time.Second, 10*time.Millisecond, "its connections")
}
