package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

func TestClusterHasTheAddressesOfItsMasters(t *testing.T) {
	if !testredis.Available() {
		require.NotEqual(t, "true", os.Getenv("CI"), "this test needs a redis-server")
		t.Skip("this test needs a redis-server")
	}
	s, err := startCluster(3)
	require.NoError(t, err)
	defer s.close()
	addrs := strings.Split(s.addr, ",")
	assert.Len(t, addrs, 3)
	for _, addr := range addrs {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		assert.NoError(t, rdb.Ping(t.Context()).Err())
		assert.NoError(t, rdb.Close())
	}
	assert.Len(t, s.nodes, 3)
}

func TestOnlyWhatTestredisSaysIsAnError(t *testing.T) {
	start := func(fails func(s *server)) (err error) {
		s := &server{}
		defer s.orNot(&err)
		fails(s)
		return nil
	}
	assert.NoError(t, start(func(*server) {}))
	closed := false
	assert.EqualError(t, start(func(s *server) {
		s.Cleanup(func() { closed = true })
		s.Fatal("no port")
	}), "no Redis to measure with: no port")
	assert.True(t, closed)
	mistake := errors.New("a mistake")
	assert.PanicsWithValue(t, mistake, func() { _ = start(func(*server) { panic(mistake) }) })
	assert.Panics(t, func() { _ = start(func(s *server) { s.Setenv("HOME", "") }) }, "a house has no such method")
}

// The lines of progress overwrite each other, which only a terminal does.
func TestProgressIsForATerminal(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	defer file.Close()
	assert.False(t, isTerminal(file))
	_, pipe, err := os.Pipe()
	require.NoError(t, err)
	defer pipe.Close()
	assert.False(t, isTerminal(pipe))
	if terminal, err := os.Open("/dev/ptmx"); err == nil {
		defer terminal.Close()
		assert.True(t, isTerminal(terminal))
	}
}
