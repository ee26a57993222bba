package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A request whose charge is ended by Shutdown is answered with 503: its client sends it again, to another replica.
func TestServiceIsUnavailableWhileItStops(t *testing.T) {
	m := miniredis.RunT(t)
	m.ClockTTL(true)
	s, err := newService(&redis.Options{Addr: m.Addr()}, "test:", newDatabase())
	require.NoError(t, err)
	t.Cleanup(s.kill)
	s.wait, s.limit, s.db.takes = time.Minute, time.Hour, time.Hour
	ctx := context.Background()
	asks := func() int {
		w := httptest.NewRecorder()
		s.handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders/1/charge", nil))
		return w.Code
	}
	answer := make(chan int, 1)
	go func() { answer <- asks() }()
	require.Eventually(t, func() bool {
		locked, err := s.lock("1").IsLocked(ctx)
		return locked && err == nil
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, s.client.Shutdown(ctx))
	assert.Equal(t, http.StatusServiceUnavailable, <-answer, "a charge that has begun")
	assert.Equal(t, http.StatusServiceUnavailable, asks(), "a later request")
}
