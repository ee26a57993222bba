package relock_test

// The handler of docs/cookbook.md, and what it answers.

import (
	"context"
	"errors"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
)

func handleCharge(client *relock.Client) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second) // for the wait and the work
		defer cancel()
		lock := client.NewLock("lock:orders:" + r.PathValue("id"))
		var failed error // that of charge alone
		ran, err := lock.TryDo(ctx, 2*time.Second, func(ctx context.Context) error {
			failed = charge(ctx)
			return failed
		})
		if err != nil {
			log.Printf("charge: %v", err) // names the lock, and who has it
		}
		lost, closed := errors.Is(err, relock.ErrLockLost), errors.Is(err, relock.ErrClosed)
		switch {
		case ran && failed == nil && !lost: // if err is not nil, only the release of the lock is not confirmed
			w.WriteHeader(http.StatusOK)
		case r.Context().Err() != nil:
			w.WriteHeader(499) // the client has left: this is for the access log
		case !ran && (err == nil || errors.Is(err, relock.ErrBusy)):
			w.Header().Set("Retry-After", "1")
			http.Error(w, "another request for this order is running", http.StatusConflict)
		case ran && ctx.Err() == nil && !lost && !closed:
			http.Error(w, "the charge has failed", http.StatusInternalServerError) // or what the error of charge stands for
		default: // Redis cannot be asked, the work takes too long, the lock was lost, or this process stops
			w.Header().Set("Retry-After", "5")
			http.Error(w, "try again later", http.StatusServiceUnavailable)
		}
	}
}

// chargeKey is the key of the function that stands for charge in a test.
type chargeKey struct{}

func charge(ctx context.Context) error {
	if f, ok := ctx.Value(chargeKey{}).(func(context.Context) error); ok {
		return f(ctx)
	}
	return ctx.Err()
}

// The handler on the page is the one that is tested here.
func TestHandlerOfTheCookbookIsThisOne(t *testing.T) {
	page, err := os.ReadFile("docs/cookbook.md")
	require.NoError(t, err)
	source, err := os.ReadFile("cookbook_test.go")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(source), "\nfunc handleCharge(")
	body, _, _ := strings.Cut(rest, "\n}\n")
	assert.Contains(t, string(page), "```go\nfunc handleCharge("+body+"\n}\n```")
}

// The handler answers 200, 409 to a second request for the same order, 499 in the log if its client leaves, 500 to an
// error of the work, and 503 if Redis cannot be asked, the lock was lost or the Client is shut down.
func TestHandlerOfTheCookbookTellsBusyFromBroken(t *testing.T) {
	rdb, done := newRedis()
	client, err := relock.New(rdb)
	require.NoError(t, err)
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			done()
		}
	}
	defer stop()
	defer client.Close()
	ask := func(ctx context.Context, work func(context.Context) error) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(context.WithValue(ctx, chargeKey{}, work), http.MethodPost, "/", nil)
		r.SetPathValue("id", "42")
		handleCharge(client)(w, r)
		return w
	}
	ctx := context.Background()
	fine := func(context.Context) error { return nil }
	assert.Equal(t, http.StatusOK, ask(ctx, fine).Code)
	assert.Equal(t, http.StatusInternalServerError, ask(ctx, func(context.Context) error { return os.ErrInvalid }).Code)

	lock, owner := client.NewLock("lock:orders:42"), relock.ContextWithOwner(ctx)
	require.NoError(t, lock.Lock(owner))
	busy := ask(ctx, fine)
	assert.Equal(t, http.StatusConflict, busy.Code)
	assert.Equal(t, "1", busy.Header().Get("Retry-After"))
	leaving, leave := context.WithCancel(ctx)
	time.AfterFunc(50*time.Millisecond, leave)
	assert.Equal(t, 499, ask(leaving, fine).Code)
	require.NoError(t, lock.Unlock(owner))

	lost := ask(ctx, func(ctx context.Context) error {
		_, err := client.NewLock("lock:orders:42").ForceUnlock(ctx)
		return errors.Join(err, ctx.Err())
	})
	assert.Equal(t, http.StatusServiceUnavailable, lost.Code)

	ended := make(chan error, 1)
	closing := ask(ctx, func(ctx context.Context) error {
		go func() { ended <- client.Shutdown(context.WithoutCancel(ctx)) }()
		<-ctx.Done()
		return ctx.Err()
	})
	assert.Equal(t, http.StatusServiceUnavailable, closing.Code, "the process stops")
	require.NoError(t, <-ended)
	assert.Equal(t, http.StatusServiceUnavailable, ask(ctx, fine).Code, "the process has stopped")

	client, err = relock.New(rdb)
	require.NoError(t, err)
	defer client.Close()
	stop()
	assert.Equal(t, http.StatusServiceUnavailable, ask(ctx, fine).Code)
}
