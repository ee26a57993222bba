package locks

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOwnerIsTheGoroutineOrOfTheContext(t *testing.T) {
	ctx := context.Background()
	here, there := engine.OwnerOf(ctx), locktest.Elsewhere(func() engine.Owner { return engine.OwnerOf(ctx) })
	assert.NotEqual(t, there, here, "two goroutines are two owners")
	assert.Positive(t, here, "a goroutine's owner is its id")
	assert.Positive(t, there, "a goroutine's owner is its id")
	assert.Equal(t, engine.OwnerOf(ctx), here, "a goroutine stays the same owner")
	one, two := ContextWithOwner(ctx), ContextWithOwner(ctx)
	a, b := engine.OwnerOf(one), engine.OwnerOf(two)
	assert.NotEqual(t, b, a, "each ContextWithOwner makes a new owner")
	assert.Negative(t, a, "an owner of a ctx is no goroutine id")
	assert.Equal(
		t,
		locktest.Elsewhere(func() engine.Owner { return engine.OwnerOf(one) }),
		a,
		"the owner of a ctx on another goroutine",
	)
	assert.NotEqual(t, engine.OwnerOf(one), engine.OwnerOf(ContextWithOwner(one)), "an owner inside an owner is a new one")
}

// net/http serves the requests of a keep-alive connection on one goroutine. If one of them does not unlock a lock, the
// next one acquires it again, and requests of other connections cannot. A Hold that is not released keeps out all of
// them.
func TestForgottenUnlockIsReenteredOnItsConnection(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { rdb.Close() })
	client, err := New(rdb)
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	const wait = 3 * time.Second // longer than a busy machine takes to acquire a free lock
	for what, c := range map[string]struct {
		take func(context.Context, *Lock) (bool, error)
		next int
	}{
		"Unlock": {func(ctx context.Context, l *Lock) (bool, error) { return l.TryLock(ctx, wait, 0) }, http.StatusOK},
		"Release": {func(ctx context.Context, l *Lock) (bool, error) {
			_, ok, err := l.TryAcquire(ctx, wait, 0)
			return ok, err
		}, http.StatusConflict},
	} {
		lock := client.NewLock("lock:forgotten:" + what)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if ok, err := c.take(r.Context(), lock); !ok || err != nil {
				w.WriteHeader(http.StatusConflict)
			} // no call releases it
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
		assert.Equal(t, http.StatusOK, get(one), "%s: the first request", what)
		assert.Equal(t, c.next, get(one), "%s: the next one of that connection", what)
		assert.Equal(t, http.StatusConflict, get(other), "%s: one of another connection", what)
	}
}
