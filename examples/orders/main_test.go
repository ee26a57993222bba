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

	"github.com/relock-go/relock"
)

// The service answers 200 and 202, 409 if another request has the order, 499 in the log if the client has left, and 503
// if the work takes too long, or Redis cannot be asked.
func TestServiceTellsBusyFromBroken(t *testing.T) {
	m := miniredis.RunT(t)
	m.ClockTTL(true)
	s, err := newService(&redis.Options{Addr: m.Addr()}, "test:", newDatabase())
	require.NoError(t, err)
	s.wait = time.Second
	t.Cleanup(s.kill)
	asks := func(ctx context.Context, path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		s.handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, path, nil))
		return w
	}
	ctx := context.Background()
	assert.Equal(t, http.StatusOK, asks(ctx, "/orders/1/charge").Code)
	assert.Equal(t, http.StatusOK, asks(ctx, "/orders/1/charge").Code, "charged before")
	assert.Equal(t, 1, s.db.charges["1"])
	assert.Equal(t, http.StatusAccepted, asks(ctx, "/orders/1/ship").Code)

	for _, path := range []string{"/orders/1/charge", "/orders/1/ship"} { // the job has the lock
		w := asks(ctx, path)
		assert.Equal(t, http.StatusConflict, w.Code, path)
		assert.Equal(t, "1", w.Header().Get("Retry-After"), path)
	}
	s.wait = time.Minute
	leaving, leave := context.WithCancel(ctx)
	time.AfterFunc(50*time.Millisecond, leave)
	assert.Equal(t, clientLeft, asks(leaving, "/orders/1/charge").Code)
	require.NoError(t, (<-s.jobs).hold.Release(ctx))

	s.limit, s.db.takes = time.Second, time.Minute
	assert.Equal(t, http.StatusServiceUnavailable, asks(ctx, "/orders/2/charge").Code, "the charge takes too long")
	lock, owner := s.lock("3"), relock.ContextWithOwner(ctx)
	require.NoError(t, lock.Lock(owner))
	require.NoError(t, lock.Unlock(owner))
	m.Close()
	for _, path := range []string{"/orders/3/charge", "/orders/3/ship"} {
		assert.Equal(t, http.StatusServiceUnavailable, asks(ctx, path).Code, path)
	}
}

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
