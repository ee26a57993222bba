//go:build go1.25

package engine

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// withHints gives an engine a channel for hints.
func withHints(c *Config) { c.Channel = "hints:" + c.ID }

// subscriptions returns how many times r was asked for the channel of hints of "client".
func subscriptions(r *fakeredis.Redis) int { return r.PubSub.Count("subscribe hints:client") }

// A hold that lasts for a moment costs no subscription, however many there are one after the other; any number of holds
// that last longer cost one, until none of them is left. Close ends it.
func TestOldHoldsShareOneSubscriptionToHints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := fakeredis.New()
		e := joinBubbleEngine(t, r, "client", withHints)
		for range 20 {
			e.lock(1)
			time.Sleep(900 * time.Millisecond)
			e.unlock(1)
		}
		assert.Zero(t, r.PubSub.Dials(), "connections for short holds")

		for round := 1; round <= 2; round++ {
			for name := range 500 {
				ok, err := e.acquire(context.Background(), newFakeLock(r, string(rune('0'+name))), 1, Request{Wait: forever})
				require.NoError(t, err)
				require.True(t, ok)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			assert.Equal(t, round, subscriptions(r), "subscriptions")
			assert.Equal(t, round, r.PubSub.Dials(), "connections")
			for name := range 500 {
				require.NoError(t, e.Release(context.Background(), newFakeLock(r, string(rune('0'+name))), 1))
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			assert.Equal(t, round, r.PubSub.Count("unsubscribe hints:client"), "the subscription ends with the last hold")
		}

		e.lock(1)
		time.Sleep(time.Minute)
		assert.Equal(t, 3, subscriptions(r))
		e.unlock(1)
	})
}

// A refusal is remembered: it is logged once, at debug level, and the channel is not asked for again. Channels on which
// releases are announced are not affected, nor is the warning about them.
func TestRefusedHintsAreNotAskedForAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		r := fakeredis.New()
		r.PubSub.Refuse = func(channel string) error {
			if strings.HasPrefix(channel, "hints:") || channel == "bad" {
				return answerError("NOPERM No permissions to access a channel")
			}
			return nil
		}
		log := slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
		e := joinBubbleEngine(t, r, "client", withHints, withLogger(log), func(c *Config) { c.Events = warned{logged: log} })
		for range 3 {
			e.lock(1)
			time.Sleep(time.Minute)
			e.unlock(1)
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		assert.Equal(t, 1, subscriptions(r), "subscriptions")
		assert.Equal(t, 1, strings.Count(logged.String(), "level=DEBUG"), logged.String())
		assert.NotContains(t, logged.String(), "level=WARN")

		good, bad := e.Hub().Join("good"), e.Hub().Join("bad")
		synctest.Wait()
		assert.True(t, good.Confirmed(), "other channels")
		assert.True(t, bad.Refused())
		assert.Equal(t, 1, strings.Count(logged.String(), "level=WARN"), "the first other channel that is refused")
		good.Leave()
		bad.Leave()
	})
}

// warned logs refused channels.
type warned struct {
	Events
	logged *slog.Logger
}

func (w warned) SubscriptionRefused(channel string, err error) {
	w.logged.Warn("refused", "channel", channel, "error", err)
}

// A hint has the watchdog check the records of the lock that it names, and nothing else: a hint for another lock, and
// any other message, cost no request, and no message ends a hold that Redis has.
func TestHintChecksTheLockThatItNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := fakeredis.New()
		e := joinBubbleEngine(t, r, "client", withHints)
		e.lock(1)
		guarded := e.guarded(1)
		time.Sleep(5 * time.Second)
		for _, text := range []string{"check y", "check ", "check", "", "x", "check x ", "0", strings.Repeat("check x", 1000)} {
			e.hints.heard(text)
			synctest.Wait()
			assert.Zero(t, r.Count("renew"), "renewals after %.20q", text)
			assert.Zero(t, e.Probe().Stats().Names-1, "names after %.20q", text)
		}
		e.hints.heard("check x")
		synctest.Wait()
		assert.Equal(t, 1, r.Count("renew"), "renewals")
		for range 1000 {
			e.hints.heard("check x")
			time.Sleep(2 * time.Millisecond)
		}
		synctest.Wait()
		assert.LessOrEqual(t, r.Count("renew"), 4, "renewals in two seconds")
		assert.NoError(t, guarded.Err())

		time.Sleep(2 * time.Second)
		r.Set(func() { delete(r.Records, "x") })
		began := time.Now()
		e.hints.heard("check x")
		<-guarded.Done()
		assert.Less(t, time.Since(began), time.Second)
		assert.ErrorIs(t, context.Cause(guarded), ErrLockLost)
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost)
	})
}

// The Client that forces a lock open sends hints to the other holders, without waiting for them.
func TestForceSendsHintsToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := fakeredis.New()
		hints, told := make(chan []string, 10), ""
		e := joinBubbleEngine(t, r, "client", func(c *Config) {
			c.Tell = func(ctx context.Context, clients []string, hint string) {
				_, bounded := ctx.Deadline()
				assert.True(t, bounded)
				told = hint
				hints <- clients
			}
		})
		e.hints.send("x", []string{"one", "client", "two"})
		assert.Equal(t, []string{"one", "two"}, <-hints)
		assert.Equal(t, "check x", told)
		e.hints.send("x", []string{"client"})
		e.hints.send("x", nil)
		e.hints.send(strings.Repeat("x", longestHint+1), []string{"one"})
		time.Sleep(time.Minute)
		assert.Empty(t, hints, "hints for this Client, for nobody, and with a long name")
	})
}

// A hint has all records checked that this Client has of the lock, not only the first of them.
func TestHintChecksAllRecordsOfTheLock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := fakeredis.New()
		e := joinBubbleEngine(t, r, "client", withHints)
		var guards []context.Context
		for _, half := range []string{"", "one", "two"} {
			kind := newFakeLock(r, "x")
			kind.LockID.Half, kind.key = half, "x"+half
			ok, err := e.acquire(context.Background(), kind, 1, Request{Wait: forever})
			require.NoError(t, err)
			require.True(t, ok)
			guarded, err := e.Guard(context.Background(), kind, 1)
			require.NoError(t, err)
			guards = append(guards, guarded)
		}
		time.Sleep(5 * time.Second)
		r.Set(func() { clear(r.Records) })
		e.hints.heard("check x")
		time.Sleep(time.Second)
		for i, guarded := range guards {
			assert.ErrorIs(t, context.Cause(guarded), ErrLockLost, "hold %d", i)
		}
	})
}

// A Client whose last old hold has ended before it listens for hints does not begin to listen.
func TestHintsAreNotHeardAfterTheLastOldHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := fakeredis.New()
		e := joinBubbleEngine(t, r, "client", withHints)
		e.hints.hear(true)
		e.hints.hear(false) // the goroutine that joins the channel may not have run yet
		e.hints.join()
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Nil(t, e.hints.listener)
		assert.Equal(t, subscriptions(r), r.PubSub.Count("unsubscribe hints:client"))
	})
}
