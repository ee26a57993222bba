package main

// What show says about leases.

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

func TestShowSaysWhetherTheLeaseGrows(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	ctx, rdb := context.Background(), s.Client()
	c, err := relock.New(s.Client(), relock.WithLabel("orders-7"), relock.WithWatchdogTimeout(3*time.Second),
		relock.WithLogger(slog.New(slog.DiscardHandler)))
	must(t, err)
	defer c.Close()
	must(t, c.NewLock("renewed").Lock(ctx))
	must(t, rdb.HSet(ctx, "java", "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10:42", 1).Err())
	hold, err := c.NewLock("detached").Acquire(ctx)
	must(t, err)
	_, err = hold.Detach(ctx, time.Hour)
	must(t, err)
	must(t, c.NewLock("waited for").LockLease(ctx, 12*time.Second))
	defer startWaiting(t, s, "waited for")()
	client := " (orders-7, "
	for _, want := range []struct{ flags, name, first, next string }{
		{"--for 15s", "waited for", "The lease runs out, in ", "wait until the lease ends; then a waiter gets the lock.\n" +
			"  relockctl unlock 'waited for'   # releases the lock now, if"},
		{"--for 15s", "renewed", "The lease grows: the process of goroutine ", "look at what that process does; in logs " +
			"its client ID begins with " + c.ID()[:8] + ".\n  relockctl unlock renewed   #"},
		{"", "java", "The lease has no end: unless its process renews it, only thread 42 (client 5a2d7b1e) " +
			"releases the lock.",
			"find out who has acquired it without a lease.\n  relockctl unlock java   # releases the lock by force\n"},
		{"", "detached", "The lease runs out, in 59m", "nothing. Nobody waits, and the lock is free when the lease ends.\n" +
			"  relockctl unlock detached   # releases the lock now, if the holder has surely ended\n"},
	} {
		args := append([]string{"show"}, strings.Fields(want.flags)...)
		out := prints(t, s.Addr(), append(args, want.name)...)
		assert.Contains(t, out, "\n\n"+want.first)
		assert.Contains(t, out, "\nNext: "+want.next)
		if strings.HasPrefix(want.first, "The lease grows") {
			assert.Contains(t, out, client)
		}
	}
	must(t, c.NewLock("json").LockLease(ctx, 12*time.Second))
	for name, grows := range map[string]bool{"renewed": true, "json": false} {
		l := printed[jsonLock](t, s.Addr(), "show", "--json", "--for", "15s", name)
		require.NotNil(t, l.Holders[0].Grows)
		assert.Equal(t, grows, *l.Holders[0].Grows)
		assert.NotContains(t, prints(t, s.Addr(), "show", "--json", name), "grows")
	}
}

// A lock that is not held may be held elsewhere, so the text has the Redis and the database.
func TestShowAndUnlockSayWhereALockIsNotHeld(t *testing.T) {
	s := testredis.Start(t)
	url := "redis://" + s.Addr() + "/1"
	out, _, status := ctl(t, "", "", "--url", url, "show", "nobody")
	assert.Contains(t, out, "\nredis      "+s.Addr()+", db 1\n")
	assert.Equal(t, statusFree, status)
	_, errs, status := ctl(t, "", "", "--url", url, "unlock", "nobody")
	assert.Equal(t, "relockctl: nobody is not held at "+s.Addr()+", db 1\n", errs)
	assert.Equal(t, statusFree, status)
	_, errs, _ = ctl(t, "", "", "--url", url, "show", "a*")
	assert.Contains(t, errs, "a* is not held at "+s.Addr()+", db 1; show takes the name of one lock")
}
