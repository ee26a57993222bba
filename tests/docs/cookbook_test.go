package docs

// The handler of docs/cookbook.md, and what it answers; and its leader, and when it stops.

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
	"github.com/relock-go/relock/internal/testredis"
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

func leadForever(ctx context.Context, client *relock.Client) error {
	election := client.NewElection("election:billing")
	for ctx.Err() == nil {
		err := election.Lead(ctx, func(ctx context.Context) error {
			// The token is greater in each term: the resource can reject an earlier leader.
			token, err := election.Token(ctx)
			if err != nil {
				return err
			}
			return save(ctx, token) // until ctx is canceled
		})
		if errors.Is(err, relock.ErrClosed) {
			return err // the process stops
		}
		if err != nil && ctx.Err() == nil {
			log.Printf("no longer the leader: %v", err)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}
	return ctx.Err()
}

// saveKey is the key of the function that stands for save in a test.
type saveKey struct{}

func save(ctx context.Context, token int64) error {
	return ctx.Value(saveKey{}).(func(context.Context, int64) error)(ctx, token)
}

// The code on the page is the one that is tested here.
func TestHandlerOfTheCookbookIsThisOne(t *testing.T) {
	page, err := os.ReadFile("docs/cookbook.md")
	require.NoError(t, err)
	source, err := os.ReadFile("tests/docs/cookbook_test.go")
	require.NoError(t, err)
	for _, name := range []string{"handleCharge", "leadForever"} {
		_, rest, _ := strings.Cut(string(source), "\nfunc "+name+"(")
		body, _, _ := strings.Cut(rest, "\n}\n")
		assert.Contains(t, string(page), "```go\nfunc "+name+"("+body+"\n}\n```")
	}
}

// The handler answers 200, and 409 to a second request for the same order. It logs 499 if its client leaves, and answers
// 500 to an error of the work. It answers 503 if Redis cannot be asked, the lock was lost or the Client is shut down.
func TestHandlerOfTheCookbookTellsBusyFromBroken(t *testing.T) {
	server := testredis.Mini(t)
	rdb := testredis.Client(t, server.Addr())
	client, err := relock.New(rdb)
	require.NoError(t, err)
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
	server.Close()
	assert.Equal(t, http.StatusServiceUnavailable, ask(ctx, fine).Code)
}

// A leader of the cookbook stops when the Client is shut down, although its own context goes on, and a pause after an
// error ends with that context.
func TestLeaderOfTheCookbookStops(t *testing.T) {
	client, err := relock.New(testredis.Client(t, testredis.Mini(t).Addr()))
	require.NoError(t, err)
	defer client.Close()
	ended := make(chan error, 1)
	leads := func(ctx context.Context, work func(context.Context, int64) error) <-chan error {
		result := make(chan error, 1)
		go func() { result <- leadForever(context.WithValue(ctx, saveKey{}, work), client) }()
		return result
	}
	paused := time.Hour
	for tries := 0; tries < 5 && paused >= time.Second; tries++ { // the machine may be very busy
		ctx, cancel := context.WithCancel(context.Background())
		began := time.Now()
		require.ErrorIs(t, <-leads(ctx, func(context.Context, int64) error {
			time.AfterFunc(100*time.Millisecond, cancel)
			return os.ErrInvalid
		}), context.Canceled)
		paused = time.Since(began)
	}
	assert.Less(t, paused, time.Second, "the pause went on")

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	result := leads(ctx, func(guarded context.Context, _ int64) error {
		go func() { ended <- client.Shutdown(ctx) }()
		<-guarded.Done()
		return guarded.Err()
	})
	require.ErrorIs(t, <-result, relock.ErrClosed)
	require.NoError(t, <-ended)
}
