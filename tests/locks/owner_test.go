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
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
