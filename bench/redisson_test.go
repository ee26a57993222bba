package main

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/bench/stats"
	"github.com/relock-go/relock/internal/testredis"
)

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
