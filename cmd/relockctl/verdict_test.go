package main

// What show says about leases.

import (
	"context"
	"encoding/json"
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
	long := c.NewLock("long")
	must(t, long.LockLease(ctx, time.Hour))
	must(t, c.NewLock("waited for").LockLease(ctx, 12*time.Second))
	defer startWaitingFor(t, s, "waited for")()
	client := " (orders-7, "
	for _, want := range []struct{ flags, name, first, next string }{
		{"--for 15s", "waited for", "The lease runs out, in ", "wait until the lease ends; then a waiter gets the lock.\n" +
			"  relockctl unlock 'waited for'   # releases the lock now, if"},
		{"--for 1s", "long", "The lease did not grow in 1s, and ends in 59m", "find out whether the lease grows.\n"},
		{"", "long", "Next: ", "find out whether the lease grows.\n  relockctl show --for "},
		{"--for 15s", "renewed", "The lease grows: the process of goroutine ", "look at what that process does; in logs " +
			"its client ID begins with " + c.ID()[:8] + ".\n  relockctl unlock renewed   #"},
		{"", "java", "The lease has no end: unless its process renews it, only thread 42 (client 5a2d7b1e) " +
			"releases the lock.",
			"find out who has acquired it without a lease.\n  relockctl unlock java   # releases the lock by force\n"},
		{"--for 1s", "java", "The lease has no end: in 1s nobody has renewed it, and only thread 42 ", "find out who"},
		{"", "detached", "The lease runs out, in 59m", "nothing. Nobody waits, and the lock is free when the lease ends.\n" +
			"  relockctl unlock detached   # releases the lock now, if the holder has surely ended\n"},
	} {
		args := append([]string{"show"}, strings.Fields(want.flags)...)
		out, errs, status := ctl(t, s.Addr(), "", append(args, want.name)...)
		assert.Zero(t, status, errs)
		assert.Empty(t, errs)
		assert.Contains(t, out, "\n\n"+want.first)
		assert.Contains(t, out, "\nNext: "+want.next)
		if strings.HasPrefix(want.first, "The lease grows") {
			assert.Contains(t, out, client)
		}
	}
	must(t, long.Unlock(ctx))

	must(t, c.NewLock("json").LockLease(ctx, 12*time.Second))
	for name, grows := range map[string]bool{"renewed": true, "json": false} {
		out, errs, status := ctl(t, s.Addr(), "", "show", "--json", "--for", "15s", name)
		assert.Zero(t, status, errs)
		var l jsonLock
		must(t, json.Unmarshal([]byte(out), &l))
		require.NotNil(t, l.Holders[0].Grows, out)
		assert.Equal(t, grows, *l.Holders[0].Grows)
		out, _, _ = ctl(t, s.Addr(), "", "show", "--json", name)
		assert.NotContains(t, out, "grows")
	}
}

// startWaitingFor is startWaiting for a lock that the waiter may get.
func startWaitingFor(t *testing.T, s *testredis.Server, name string) (giveUp func()) {
	t.Helper()
	c := newClient(t, s.Client())
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() { got <- c.NewLock(name).Lock(ctx) }()
	testredis.Await(t, "it waits", soon, func() bool { return waiters(t, c, name) == 1 })
	return func() {
		cancel()
		<-got
	}
}

// A user who looks for as long as show prints gets a certain answer.
func TestLookLongerIsLongEnough(t *testing.T) {
	for _, left := range []time.Duration{time.Second, 30 * time.Second, 46 * time.Second, time.Hour} {
		i := relock.Inspection{At: time.Now(), Holders: []relock.Holder{{Remaining: left}}}
		long, err := time.ParseDuration(lookLonger(i))
		must(t, err)
		l := look{lock: i, now: i, fates: make([]fate, 1), time: long - lookAgain} // the last look
		l.now.Holders = []relock.Holder{{Remaining: left - l.time}}
		assert.True(t, l.judge(), "%v of %v", long, left)
	}
}

// Each hold has its own verdict, which is final; what is not clear yet stays open.
func TestFatesOfHolds(t *testing.T) {
	at := time.Now()
	lock := func(after time.Duration, leases ...time.Duration) relock.Inspection {
		i := relock.Inspection{Name: "a", At: at.Add(after)}
		for n, left := range leases {
			h := relock.Holder{Remaining: left}
			h.Field, h.Owner = string(rune('a'+n)), string(rune('a'+n))
			i.Holders = append(i.Holders, h)
		}
		return i
	}
	first := lock(0, 30*time.Second, 30*time.Second, 9*time.Second, -1, 0, 29*time.Second)
	first.Holders[5].Detached = true
	l := look{lock: first, now: first, fates: make([]fate, 6)}
	assert.False(t, l.judge())
	assert.Equal(t, []fate{unknown, unknown, unknown, endless, expired, detached}, l.fates)
	without := look{lock: lock(0, -1), now: lock(0, -1), fates: make([]fate, 1)}
	assert.False(t, without.judge(), "a renewal would give it an end")
	without.now, without.time = lock(12*time.Second, -1), 12*time.Second
	assert.True(t, without.judge())
	assert.Equal(t, endless, without.fates[0])
	without.now, without.time = lock(12*time.Second, 30*time.Second), 12*time.Second
	assert.True(t, without.judge())
	assert.Equal(t, grows, without.fates[0])
	see := func(i relock.Inspection) bool {
		l.now, l.time = i, i.At.Sub(at)
		return l.judge()
	}
	assert.False(t, see(lock(4*time.Second, 30*time.Second, 26050*time.Millisecond, 5*time.Second)))
	assert.Equal(t, []fate{grows, unknown, unknown}, l.fates[:3])
	assert.False(t, see(lock(4100*time.Millisecond, 29*time.Second, 25900*time.Millisecond, 4900*time.Millisecond)))
	assert.Equal(t, []fate{grows, unknown, runsOut}, l.fates[:3])
	assert.True(t, see(lock(5*time.Second)))
	assert.Equal(t, []fate{grows, gone, runsOut}, l.fates[:3])
}

// A forced release takes the permits from all holders of a semaphore, so the advice of show has their number.
func TestShowSaysHowMuchUnlockReleases(t *testing.T) {
	s := testredis.Start(t)
	ctx, c := context.Background(), newClient(t, s.Client())
	semaphore := c.NewSemaphore("hosts", 3)
	_, err := semaphore.AcquireN(ctx, 1)
	must(t, err)
	out, _, _ := ctl(t, s.Addr(), "", "show", "hosts")
	assert.Contains(t, out, "\navailable  2 of 3 permits\n")
	_, err = semaphore.AcquireN(ctx, 2)
	must(t, err)
	out, _, _ = ctl(t, s.Addr(), "", "show", "hosts")
	assert.Contains(t, out, "\navailable  0 of 3 permits\n")

	i, err := c.Inspect(ctx, "hosts")
	must(t, err)
	advice := func(fates ...fate) string { return new(program).verdict(look{lock: i, now: i, fates: fates}) }
	text := advice(grows, runsOut)
	assert.Contains(t, text, " is alive, and keeps its ")
	assert.Regexp(t, `client ID begins with \w+; there is 1 other holder\.\n`, text)
	assert.Contains(t, text, "# releases all 3 permits of 2 holders by force, while the process goes on\n")
	text = advice(runsOut, runsOut)
	assert.Contains(t, text, "the permits are free when the lease ends.\n")
	assert.Contains(t, text, "# releases all 3 permits of 2 holders now, if the holders have surely ended\n")

	for want, i := range map[string]relock.Inspection{
		"releases the lock":                   {Holders: make([]relock.Holder, 1)},
		"releases the lock of all 2 holders":  {Holders: make([]relock.Holder, 2)},
		"releases the lock of all holders":    {Holders: make([]relock.Holder, 2), More: true},
		"releases the permit":                 {Holders: []relock.Holder{{Permits: 1}}},
		"releases all 3 permits":              {Holders: []relock.Holder{{Permits: 3}}},
		"releases all permits of all holders": {Holders: []relock.Holder{{Permits: 3}}, More: true},
	} {
		assert.Equal(t, want, releases(i))
	}
}

// A lock that is not held may be held elsewhere, so the text has the Redis and the database.
func TestShowAndUnlockSayWhereALockIsNotHeld(t *testing.T) {
	s := testredis.Start(t)
	url := "redis://" + s.Addr() + "/1"
	out, _, status := ctl(t, "", "", "--url", url, "show", "nobody")
	assert.Contains(t, out, "\nredis    "+s.Addr()+", db 1\n")
	assert.Equal(t, statusFree, status)
	_, errs, status := ctl(t, "", "", "--url", url, "unlock", "nobody")
	assert.Equal(t, "relockctl: nobody is not held at "+s.Addr()+", db 1\n", errs)
	assert.Equal(t, statusFree, status)
	_, errs, _ = ctl(t, "", "", "--url", url, "show", "a*")
	assert.Contains(t, errs, "a* is not held at "+s.Addr()+", db 1; show takes the name of one lock")
}

// A lock that changes hands is not stuck.
func TestShowNoticesThatALockIsInUse(t *testing.T) {
	s := testredis.Start(t)
	ctx, c := context.Background(), newClient(t, s.Client())
	lock := c.NewLock("busy")
	must(t, lock.Lock(ctx))
	cmd := command(s.Addr(), "show", "--for", "1m", "busy")
	var out strings.Builder
	cmd.Stdout = &out
	must(t, cmd.Start())
	testredis.Await(t, "it looks", soon, func() bool {
		return strings.Count(s.Client().ClientList(ctx).Val(), "\n") > 1 && seesTwice(s)
	})
	must(t, lock.Unlock(ctx))
	must(t, lock.Lock(relock.ContextWithOwner(ctx)))
	must(t, cmd.Wait())
	assert.Contains(t, out.String(), "The hold has ended: goroutine ")
	assert.Contains(t, out.String(), "Next: nothing. The lock is in use, and not stuck.\n  relockctl watch busy   # ")
}

// seesTwice reports whether two inspections have been made.
func seesTwice(s *testredis.Server) bool {
	return strings.Contains(s.Client().Info(context.Background(), "commandstats").Val(), "cmdstat_hgetall:calls=2,")
}
