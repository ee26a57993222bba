package docs

// The handlers of README.md and docs/cookbook.md, and what they answer; and the leader of the cookbook, and when it stops.

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
)

func handleCharge(client *relock.Client) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		lock := client.NewLock("lock:orders:" + r.PathValue("id"))
		hold, ok, err := lock.TryAcquire(r.Context(), 2*time.Second, 0) // the wait ends if the client leaves
		switch {
		case ok:
		case errors.Is(r.Context().Err(), context.Canceled):
			w.WriteHeader(499) // the client has left: this is for the access log
			return
		case err == nil, errors.Is(err, relock.ErrBusy): // the second if the request has a deadline
			w.Header().Set("Retry-After", "1")
			http.Error(w, "another request for this order is running", http.StatusConflict)
			return
		default: // Redis cannot be asked, or this process stops
			log.Printf("charge: %v", err)
			w.Header().Set("Retry-After", "5")
			http.Error(w, "try again later", http.StatusServiceUnavailable)
			return
		}
		defer hold.Release(r.Context())

		ctx, cancel := context.WithTimeout(hold.Context(), time.Minute) // goes on if the client leaves
		defer cancel()
		switch err := charge(ctx); {
		case err == nil: // whatever became of the lock
			w.WriteHeader(http.StatusOK)
		case ctx.Err() != nil: // the lock was lost, the work takes too long, or this process stops
			w.Header().Set("Retry-After", "5")
			http.Error(w, "try again later", http.StatusServiceUnavailable)
		default:
			http.Error(w, "the charge has failed", http.StatusInternalServerError) // or what its error stands for
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

// answerCharge is the code of README.md for a handler, in a function.
func answerCharge(ctx context.Context, w http.ResponseWriter, lock *relock.Lock) {
	var charged error // the error of charge, which goes on if the client leaves
	ran, err := lock.TryDo(context.WithoutCancel(ctx), 500*time.Millisecond, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		charged = charge(ctx)
		return charged
	})
	switch {
	case ran && charged == nil: // whatever became of the lock
		w.WriteHeader(http.StatusOK)
	case !ran && err == nil:
		http.Error(w, "another request has the order", http.StatusConflict)
	default: // charge has failed, or Redis cannot be asked
		http.Error(w, "try again later", http.StatusServiceUnavailable)
	}
}

// handlers has the handlers of both pages.
var handlers = map[string]func(*relock.Client) http.HandlerFunc{
	"README.md": func(client *relock.Client) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			answerCharge(r.Context(), w, client.NewLock("lock:orders:"+r.PathValue("id")))
		}
	},
	"docs/cookbook.md": handleCharge,
}

// ask returns the answer of a handler to a request with ctx, whose charge is work.
func ask(ctx context.Context, handler http.HandlerFunc, work func(context.Context) error) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(context.WithValue(ctx, chargeKey{}, work), http.MethodPost, "/", nil)
	r.SetPathValue("id", "42")
	handler(w, r)
	return w
}

// The code on the pages is the one that is tested here.
func TestCodeOfThePagesIsTestedHere(t *testing.T) {
	source, err := os.ReadFile("tests/docs/cookbook_test.go")
	require.NoError(t, err)
	pages := locktest.Pages(t)
	body := func(name string) string {
		_, rest, found := strings.Cut(string(source), "\nfunc "+name+"(")
		require.True(t, found, name)
		body, _, _ := strings.Cut(rest, "\n}\n")
		return body
	}
	for _, name := range []string{"handleCharge", "leadForever"} {
		assert.Contains(t, pages["docs/cookbook.md"], "```go\nfunc "+name+"("+body(name)+"\n}\n```")
	}
	_, code, _ := strings.Cut(body("answerCharge"), "\n")
	assert.Contains(t, flatten(pages["README.md"]), "```go\n"+flatten(code)+"\n```")
}

// A charge that has succeeded is answered with 200, although Redis dies meanwhile, or the lock is lost: otherwise the
// client would send its request again.
func TestHandlersOfThePagesAnswer200ToAChargeThatHasSucceeded(t *testing.T) {
	t.Parallel()
	for page, handler := range handlers {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			server, ctx := testredis.Start(t), context.Background()
			client, err := relock.New(server.Client(), relock.WithWatchdogTimeout(time.Second),
				relock.WithLogger(slog.New(slog.DiscardHandler)))
			require.NoError(t, err)
			defer client.Close()
			assert.Equal(t, http.StatusOK, ask(ctx, handler(client), func(ctx context.Context) error {
				_, err := client.NewLock("lock:orders:42").ForceUnlock(context.WithoutCancel(ctx))
				return err
			}).Code, "the lock is lost")
			assert.Equal(t, http.StatusOK, ask(ctx, handler(client), func(context.Context) error {
				server.Kill()
				return nil
			}).Code, "Redis dies")
			assert.Equal(t, http.StatusServiceUnavailable, ask(ctx, handler(client), func(context.Context) error {
				t.Error("charged without a lock")
				return nil
			}).Code)
		})
	}
}

// A charge that has begun goes on if the client leaves. Its deadline is not that of the wait.
func TestHandlersOfThePagesChargeAlthoughTheClientLeaves(t *testing.T) {
	t.Parallel()
	client, err := relock.New(testredis.Client(t, testredis.Mini(t).Addr()))
	require.NoError(t, err)
	defer client.Close()
	for page, handler := range handlers {
		leaving, leave := context.WithTimeout(context.Background(), 30*time.Second)
		defer leave()
		assert.Equal(t, http.StatusOK, ask(leaving, handler(client), func(ctx context.Context) error {
			leave()
			deadline, limited := ctx.Deadline()
			assert.True(t, !limited || time.Until(deadline) > 40*time.Second, page)
			return ctx.Err()
		}).Code, page)
	}
}

// The handler answers 200, and 409 to a second request for the same order. It logs 499 if its client leaves, and answers
// 500 to an error of the work. It answers 503 if Redis cannot be asked, the lock was lost or the Client is shut down.
func TestHandlerOfTheCookbookTellsBusyFromBroken(t *testing.T) {
	t.Parallel()
	server := testredis.Mini(t)
	rdb := testredis.Client(t, server.Addr())
	client, err := relock.New(rdb)
	require.NoError(t, err)
	defer client.Close()
	ask := func(ctx context.Context, work func(context.Context) error) *httptest.ResponseRecorder {
		return ask(ctx, handleCharge(client), work)
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
		<-ctx.Done()
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
