package relock

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

func TestOwnerIsTheGoroutineOrOfTheContext(t *testing.T) {
	ctx := context.Background()
	here, there := ownerOf(ctx), elsewhere(func() owner { return ownerOf(ctx) })
	assert.NotEqual(t, there, here, "two goroutines are two owners")
	assert.Positive(t, here, "a goroutine's owner is its id")
	assert.Positive(t, there, "a goroutine's owner is its id")
	assert.Equal(t, ownerOf(ctx), here, "a goroutine stays the same owner")
	one, two := WithOwner(ctx), WithOwner(ctx)
	a, b := ownerOf(one), ownerOf(two)
	assert.NotEqual(t, b, a, "each WithOwner makes a new owner")
	assert.Negative(t, a, "an owner of a ctx is no goroutine id")
	assert.Equal(t, elsewhere(func() owner { return ownerOf(one) }), a, "the owner of a ctx on another goroutine")
	assert.NotEqual(t, ownerOf(one), ownerOf(WithOwner(one)), "an owner inside an owner is a new one")
}

// net/http serves the requests of a keep-alive connection on one goroutine: a hold that one of them
// forgot is re-entered by the next one, and keeps out those of other connections.
func TestForgottenUnlockIsReenteredOnItsConnection(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { rdb.Close() })
	client, err := New(rdb)
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	lock := client.NewLock("lock:orders:42")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ok, err := lock.TryLock(r.Context(), 10*time.Millisecond, 0); !ok || err != nil {
			w.WriteHeader(http.StatusConflict)
		} // and no Unlock
	}))
	t.Cleanup(server.Close)
	get := func(browser *http.Client) int {
		answer, err := browser.Get(server.URL)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		return answer.StatusCode
	}
	one, other := &http.Client{Transport: &http.Transport{}}, &http.Client{Transport: &http.Transport{}}
	t.Cleanup(one.CloseIdleConnections)
	t.Cleanup(other.CloseIdleConnections)
	assert.Equal(t, http.StatusOK, get(one), "the first request")
	assert.Equal(t, http.StatusOK, get(one), "the next one of that connection")
	assert.Equal(t, http.StatusConflict, get(other), "one of another connection")
}
