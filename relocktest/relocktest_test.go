package relocktest_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/relocktest"
)

const soon = 5 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// get says whether a new owner gets the lock at once, and gives it back.
func get(t *testing.T, l relock.Locker) bool {
	t.Helper()
	ctx := relock.WithOwner(context.Background())
	ok, err := l.TryLock(ctx, 0, 0)
	must(t, err)
	if ok {
		must(t, l.Unlock(ctx))
	}
	return ok
}

func TestOneLine(t *testing.T) {
	client := relocktest.New(t)
	n := 0
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			err := client.NewLock("orders:42").Do(context.Background(), func(context.Context) error { n++; return nil })
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n != 20 {
		t.Errorf("%d of 20", n)
	}
}

func TestEachServerIsAlone(t *testing.T) {
	ctx := context.Background()
	a, b := relocktest.New(t), relocktest.New(t)
	must(t, a.NewLock("x").Lock(ctx))
	if !get(t, b.NewLock("x")) {
		t.Error("one server knows the locks of another")
	}
	locks := make([]relock.Locker, 3)
	for i := range locks {
		locks[i] = relocktest.New(t).NewLock("r")
	}
	red := a.NewRedLock(locks...)
	must(t, red.Lock(ctx))
	must(t, red.Unlock(ctx))
}

// What the package comment shows first.
func TestCrashedHolder(t *testing.T) {
	ctx := context.Background()
	server := relocktest.Start(t)
	crashed, client := server.Client(), server.Client()
	must(t, crashed.NewLock("orders:42").Lock(ctx))
	must(t, crashed.Close())
	server.Advance(25 * time.Second)
	if get(t, client.NewLock("orders:42")) {
		t.Error("before the lease is over")
	}
	server.Advance(5 * time.Second)
	if !get(t, client.NewLock("orders:42")) {
		t.Error("the lease is over")
	}
}

func TestHolderAsks(t *testing.T) {
	server := relocktest.Start(t)
	client, other := server.Client(), server.Client()
	for name, c := range map[string]struct {
		take          func(relock.Locker, context.Context) error
		ask           func(relock.Locker, context.Context) error
		cause, unlock error
	}{
		"IsHeld": {relock.Locker.Lock, func(l relock.Locker, ctx context.Context) error {
			if held, err := l.IsHeld(ctx); held || err != nil {
				t.Errorf("held: %v, %v", held, err)
			}
			return relock.ErrLockLost
		}, relock.ErrLockLost, relock.ErrLockLost},
		"Lock":   {relock.Locker.Lock, relock.Locker.Lock, relock.ErrLockLost, relock.ErrNotHeld},
		"Unlock": {relock.Locker.Lock, relock.Locker.Unlock, context.Canceled, relock.ErrNotHeld},
		"explicit lease": {func(l relock.Locker, ctx context.Context) error { return l.LockLease(ctx, 30*time.Second) },
			relock.Locker.Unlock, context.Canceled, relock.ErrNotHeld},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := relock.WithOwner(context.Background())
			lock := client.NewLock(name, relock.Fenced())
			must(t, c.take(lock, ctx))
			guarded, err := lock.Guard(ctx)
			must(t, err)
			first, err := lock.Token(ctx)
			must(t, err)
			server.Advance(30 * time.Second)

			// Now there are two.
			theirs := other.NewLock(name, relock.Fenced())
			must(t, theirs.Lock(ctx))
			if guarded.Err() != nil {
				t.Error("the holder knows before it has asked")
			}
			if _, err := lock.Guard(ctx); err != nil {
				t.Error(err)
			}
			token, err := lock.Token(ctx)
			must(t, err)
			if second, err := theirs.Token(ctx); err != nil || token != first || second <= first {
				t.Errorf("tokens %d and then %d, of the other one %d, %v", first, token, second, err)
			}

			if err := c.ask(lock, ctx); !errors.Is(err, relock.ErrLockLost) {
				t.Errorf("it hears %v", err)
			}
			<-guarded.Done()
			if cause := context.Cause(guarded); !errors.Is(cause, c.cause) {
				t.Errorf("the guarded context ends with %v", cause)
			}
			if err := lock.Unlock(ctx); !errors.Is(err, c.unlock) {
				t.Errorf("unlock: %v", err)
			}
			must(t, theirs.Unlock(ctx))
		})
	}
}

// What the package comment shows last.
func TestLossIsNoticedAtARenewal(t *testing.T) {
	ctx := context.Background()
	server := relocktest.Start(t)
	lock := server.Client(relock.WithWatchdogTimeout(300 * time.Millisecond)).NewLock("orders:42")
	must(t, lock.Lock(ctx))
	guarded, err := lock.Guard(ctx)
	must(t, err)
	server.Advance(300 * time.Millisecond)
	select {
	case <-guarded.Done():
	case <-time.After(soon):
		t.Fatal("it is not noticed")
	}
	if cause := context.Cause(guarded); !errors.Is(cause, relock.ErrLockLost) {
		t.Error(cause)
	}
}

func TestLessThanALeaseLosesNothing(t *testing.T) {
	ctx := context.Background()
	server := relocktest.Start(t)
	client := server.Client(relock.WithWatchdogTimeout(3 * time.Second))
	lock := client.NewLock("orders:42")
	must(t, lock.Lock(ctx))
	server.Advance(time.Second)
	if ttl, err := lock.TTL(ctx); err != nil || ttl > 2*time.Second {
		t.Errorf("%v, %v", ttl, err)
	}
	testredis.Await(t, "it is renewed", soon, func() bool { ttl, err := lock.TTL(ctx); return err == nil && ttl > 2*time.Second })
	if held, err := lock.IsHeld(ctx); !held || err != nil {
		t.Errorf("held: %v, %v", held, err)
	}
	must(t, lock.Unlock(ctx))
}

func TestTimeMoves(t *testing.T) {
	server := relocktest.Start(t)
	client, ctx := server.Client(), context.Background()
	server.Advance(time.Hour)
	i, err := client.Inspect(ctx, "x")
	must(t, err)
	if ahead := time.Until(i.At); ahead < 59*time.Minute || ahead > time.Hour {
		t.Errorf("%v ahead", ahead)
	}
	testredis.Await(t, "the clock runs", soon, func() bool { now, err := client.Inspect(ctx, "x"); return err == nil && now.At.After(i.At) })
	defer func() {
		if r, _ := recover().(string); !strings.Contains(r, "-1s") {
			t.Errorf("%v", r)
		}
	}()
	server.Advance(-time.Second)
}

func TestWaiters(t *testing.T) {
	ctx := context.Background()
	server := relocktest.Start(t)
	crashed, client := server.Client(), server.Client()
	must(t, crashed.NewLock("plain").Lock(ctx))
	must(t, crashed.NewFairLock("fair").Lock(ctx))
	must(t, crashed.Close())
	order := make(chan string, 3)
	wait := func(l relock.Locker, who string) {
		go func() {
			ctx := relock.WithOwner(ctx)
			if err := l.Lock(ctx); err != nil {
				t.Error(err)
			}
			order <- who
			if err := l.Unlock(ctx); err != nil {
				t.Error(err)
			}
		}()
	}
	fair := client.NewFairLock("fair")
	for n, who := range []string{"first", "second"} {
		wait(fair, who)
		testredis.Await(t, "it waits", soon, func() bool { i, err := client.Inspect(ctx, "fair"); return err == nil && len(i.Waiters) == n+1 })
	}
	server.Advance(29 * time.Second)
	if i, err := client.Inspect(ctx, "fair"); err != nil || len(i.Waiters) != 2 {
		t.Errorf("%+v, %v", i, err)
	}
	server.Advance(time.Second)
	for _, want := range []string{"first", "second"} {
		if got := <-order; got != want {
			t.Errorf("%s gets it, want %s", got, want)
		}
	}
	must(t, server.Client().NewLock("plain").Lock(ctx)) // it was lost too
}

// Whatever is left at the end of a test ends with it: TestMain sees that.
func TestNothingIsLeft(t *testing.T) {
	server := relocktest.Start(t)
	client := server.Client()
	ctx := context.Background()
	must(t, client.NewLock("lost").Lock(ctx))
	must(t, client.NewLock("held").Lock(ctx))
	must(t, server.Client().NewRWLock("read").Read().Lock(ctx))
	for _, l := range []relock.Locker{client.NewLock("held"), client.NewRWLock("read").Write()} {
		go func() {
			if err := l.Lock(relock.WithOwner(ctx)); !errors.Is(err, relock.ErrClosed) {
				panic(err)
			}
		}()
	}
	testredis.Await(t, "one waits", soon, func() bool { i, err := client.Inspect(ctx, "read"); return err == nil && len(i.Waiters) == 1 })
	must(t, server.Redis().Del(ctx, "lost").Err())
	if err := client.NewLock("lost").Unlock(ctx); !errors.Is(err, relock.ErrLockLost) {
		t.Error(err)
	}
}
