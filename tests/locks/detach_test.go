package locks

// Holds that are detached, and attached with a ticket by this process or another one.
//
// Rules: a ticket works once, and only while keep lasts. The lock is held meanwhile, and MinHold, MaxHold and the
// fencing token go on. A hold that cannot be detached goes on. The faults of both calls are in detach_faults_test.go.

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/ticket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A hold that was detached has ended here, its lock is held in Redis, and another Client makes it a hold again, once.
func TestDetachedHoldIsAttachedOnce(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		for _, k := range locktest.Detachable {
			t.Run(k.Name, func(t *testing.T) {
				t.Parallel()
				b := locktest.NewBench(t, addr)
				c1, c2 := b.Client(WithLabel("first")), b.Client()
				l, rival := k.One(c1, b.LockName), k.Rival(c2, b.LockName)
				h := b.Hold(l)
				within, guarded := h.Context(), func() context.Context {
					ctx, err := h.Guard(ctx)
					b.Must(err)
					return ctx
				}()
				decode := ticket.Decode
				ticket := b.Detach(h, time.Minute)
				b.Ends(within, ErrDetached)
				b.Ends(guarded, ErrDetached)
				for name, err := range map[string]error{
					"Release": h.Release(ctx), "Extend": h.Extend(ctx, time.Hour),
					"Detach": func() error { _, err := h.Detach(ctx, 0); return err }(),
					"Guard":  func() error { _, err := h.Guard(ctx); return err }(),
					"Unlock": l.Unlock(within),
				} {
					if name != "Extend" || err == nil {
						assert.ErrorIs(b, err, ErrNotHeld, name)
					}
					assert.NotErrorIs(b, err, ErrLockLost, name)
				}
				b.Ends(h.Context(), ErrDetached)
				b.Excludes(rival)
				i, err := c2.Inspect(ctx, b.LockName)
				b.Must(err)
				require.Len(b, i.Holders, 1)
				assert.True(b, i.Holders[0].Detached, "Inspect shows that it was detached")
				assert.Equal(b, "detached", i.Holders[0].Owner)
				assert.Equal(b, c1.ID(), i.Holders[0].Client)
				assert.Regexp(b, "^"+c1.ID()+":0:[0-9a-f]{4}(:write)?$", i.Holders[0].Field, "its number is a secret")
				secret, err := decode(ticket)
				b.Must(err)
				assert.NotContains(b, fmt.Sprintf("%+v", i), secret.ID, "nor is it printed")
				assert.InDelta(b, time.Minute, i.Holders[0].Remaining, float64(locktest.Soon), "the lease is keep")

				attached := b.Attach(c2, ticket)
				assert.Equal(b, b.LockName, attached.Name())
				b.Must(attached.Context().Err())
				b.Excludes(rival)
				_, err = c1.Attach(ctx, ticket)
				b.MustBe(err, ErrNotHeld)
				_, err = c2.Attach(ctx, ticket)
				b.MustBe(err, ErrNotHeld)
				i, err = c2.Inspect(ctx, b.LockName)
				b.Must(err)
				require.Len(b, i.Holders, 1)
				assert.False(b, i.Holders[0].Detached)
				assert.Equal(b, c2.ID(), i.Holders[0].Client)
				assert.LessOrEqual(b, i.Holders[0].Remaining, 30*time.Second, "the lease is that of the watchdog")

				again := b.Attach(c1, b.Detach(attached, 0)) // a keep of 0 is the watchdog timeout
				end := again.Context()
				b.Must(again.Release(ctx))
				b.Ends(end, context.Canceled)
				b.MustBe(again.Release(ctx), ErrNotHeld)
				b.Follows(rival)
			})
		}
	})
}

// The fencing token moves with the hold, and the next one is greater.
func TestAttachedHoldHasTheSameToken(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		for name, lock := range map[string]func(c *Client, name string) Locker{
			"lock":  func(c *Client, name string) Locker { return c.NewLock(name, Fenced()) },
			"fair":  func(c *Client, name string) Locker { return c.NewFairLock(name, Fenced()) },
			"write": func(c *Client, name string) Locker { return c.NewRWLock(name, Fenced()).Write() },
		} {
			t.Run(name, func(t *testing.T) {
				b := locktest.NewBench(t, addr)
				c1, c2 := b.Client(), b.Client()
				h := b.Hold(lock(c1, b.LockName))
				token, err := h.Token()
				b.Must(err)
				attached := b.Attach(c2, b.Detach(h, 0))
				moved, err := attached.Token()
				b.Must(err)
				assert.Equal(b, token, moved)
				b.Must(attached.Release(ctx))
				next := b.Hold(lock(c1, b.LockName))
				greater, err := next.Token()
				b.Must(err)
				assert.Greater(b, greater, token)
				b.Must(next.Release(ctx))
			})
		}
	})
}

// A text that is no ticket of a detached hold attaches nothing, and the error says so before a request is sent.
func TestTicketsAreChecked(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client(WithKeyPrefix("app:"))
	live := b.Hold(c.NewLock(b.LockName))
	i, err := c.Inspect(ctx, b.LockName)
	b.Must(err)
	detached := c.ID() + ":0:123456789012345"
	encode := func(change func(t *ticket.Ticket)) string {
		t := ticket.Ticket{Type: string(TypeLock), Key: "app:" + b.LockName, ID: detached, KeepEnd: time.Now().Add(time.Hour).UnixMilli()}
		change(&t)
		text, err := t.Encode()
		b.Must(err)
		return text
	}
	for name, text := range map[string]string{
		"empty":             "",
		"a name":            b.LockName,
		"damaged":           encode(func(*ticket.Ticket) {}) + "A",
		"another version":   strings.Replace(encode(func(*ticket.Ticket) {}), "relock1.", "relock9.", 1),
		"another prefix":    encode(func(t *ticket.Ticket) { t.Key = "other:" + b.LockName }),
		"no name":           encode(func(t *ticket.Ticket) { t.Key = "app:" }),
		"a live ID":         encode(func(t *ticket.Ticket) { t.ID = i.Holders[0].Field }),
		"a Java ID":         encode(func(t *ticket.Ticket) { t.ID = c.ID() + ":7" }),
		"no client":         encode(func(t *ticket.Ticket) { t.ID = "mode:0:123456789012345" }),
		"a short ID":        encode(func(t *ticket.Ticket) { t.ID = c.ID() + ":0:1" }),
		"permits of a lock": encode(func(t *ticket.Ticket) { t.ID += "+2" }),
		"too many permits":  encode(func(t *ticket.Ticket) { t.Type, t.ID = string(TypeSemaphore), t.ID+"+1001" }),
		"another type":      encode(func(t *ticket.Ticket) { t.Type = string(TypeRed) }),
		"a fenced permit":   encode(func(t *ticket.Ticket) { t.Type, t.Token = string(TypeSemaphore), 7 }),
	} {
		h, err := c.Attach(ctx, text)
		assert.ErrorIs(b, err, ErrInvalid, name)
		assert.Nil(b, h, name)
	}
	_, err = c.Attach(ctx, encode(func(*ticket.Ticket) {}))
	b.MustBe(err, ErrNotHeld)
	_, err = c.Attach(locktest.NilCtx, "")
	b.MustBe(err, ErrInvalid)
	_, err = (*Client)(nil).Attach(ctx, "")
	b.MustBe(err, ErrInvalid)
	b.Must(live.Context().Err())
	b.Must(live.Release(ctx))
}

// A hold that cannot be detached goes on.
func TestDetachIsRefused(t *testing.T) {
	b := locktest.NewFaultBench(t)
	c := b.Direct
	rw := c.NewRWLock(b.LockName + "-rw")
	for name, get := range map[string]func() (h *Hold, then func()){
		"entered again": func() (*Hold, func()) {
			h, l := b.Hold(c.NewLock(b.LockName)), c.NewLock(b.LockName)
			b.Must(l.Lock(h.Context()))
			return h, func() { b.Must(l.Unlock(h.Context())) }
		},
		"reads, too": func() (*Hold, func()) {
			h := b.Hold(rw.Write())
			b.Must(rw.Read().Lock(h.Context()))
			return h, func() { b.Must(rw.Read().Unlock(h.Context())) }
		},
		"waits to write": func() (*Hold, func()) {
			h, other := b.Hold(rw.Read()), b.Hold(rw.Read())
			ends, cancel := context.WithCancel(h.Context())
			got := make(chan error, 1)
			go func() { got <- rw.Write().Lock(ends) }()
			testredis.Await(b, "it asks for the write lock", locktest.Soon, func() bool {
				return locktest.EngineOf(c).Probe().Stats().Holds == 3
			})
			return h, func() {
				cancel()
				b.MustBe(locktest.Await(b.Bench, "it gives up", got), context.Canceled)
				b.Must(other.Release(ctx))
			}
		},
		"MultiLock": func() (*Hold, func()) {
			return b.Hold(c.NewMultiLock(c.NewLock(b.LockName), c.NewLock(b.LockName+"-2"))), func() {}
		},
		"RedLock":   func() (*Hold, func()) { return b.Hold(locktest.NewThreeWayLock(c, b.LockName)), func() {} },
		"long name": func() (*Hold, func()) { return b.Hold(c.NewLock(b.LockName + strings.Repeat("x", 300))), func() {} },
	} {
		h, then := get()
		_, err := h.Detach(ctx, 0)
		assert.ErrorIs(b, err, ErrInvalid, name)
		b.Must(h.Context().Err())
		then()
		b.Must(h.Release(ctx))
	}
	h := b.Hold(c.NewLock(b.LockName))
	for _, keep := range []time.Duration{-time.Second, time.Microsecond} {
		_, err := h.Detach(ctx, keep)
		b.MustBe(err, ErrInvalid)
	}
	_, err := h.Detach(locktest.NilCtx, 0)
	b.MustBe(err, ErrInvalid)
	done, cancel := context.WithCancel(ctx)
	cancel()
	_, err = h.Detach(done, 0)
	b.MustBe(err, context.Canceled)
	b.Must(h.Context().Err())
	b.Must(h.Release(ctx))
	for _, none := range []*Hold{nil, {}, h} {
		_, err = none.Detach(ctx, 0)
		b.MustBe(err, ErrNotHeld)
	}
	b.Forget()
	lost := b.Hold(c.NewLock(b.LockName))
	b.Forget()
	_, err = lost.Detach(ctx, 0)
	b.MustBe(err, ErrLockLost)
	b.MustBe(lost.Release(ctx), ErrNotHeld)
}

// The same for a Detach that is waiting for another call of its owner.
func TestDetachThatWaitsForItsOwnerCanBeCanceled(t *testing.T) {
	b := locktest.NewFaultBench(t)
	h := b.HoldFor(b.ClientOn(b.Proxy.Client()).NewLock(b.LockName), time.Minute)
	within := h.Context()
	extending := b.Proxy.On(locktest.Calls(record.Script("renew")), testredis.HoldRequest).Times(testredis.Always)
	extended, detached := make(chan error, 1), make(chan error, 1)
	go func() { extended <- h.Extend(ctx, 2*time.Minute) }()
	locktest.Await(b.Bench, "Extend is under way", extending.Fired())
	brief, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	go func() {
		_, err := h.Detach(brief, time.Minute)
		detached <- err
	}()
	b.MustBe(locktest.Await(b.Bench, "Detach comes back", detached), context.DeadlineExceeded)
	b.Must(within.Err())
	extending.Release()
	b.Must(locktest.Await(b.Bench, "Extend comes back", extended))
	b.Must(within.Err())
	b.Must(h.Release(ctx))
	b.Follows(b.Direct.NewLock(b.LockName))
}

// An operator can release a detached hold by force, as Inspect shows it: its ticket does not work any more.
func TestDetachedHoldIsReleasedByForce(t *testing.T) {
	locktest.OnDetachable(t, func(b *locktest.FaultBench, k locktest.LockKind) {
		c := b.Client()
		ticket := b.Detach(b.Hold(k.One(c, b.LockName)), time.Hour)
		i, err := c.Inspect(ctx, b.LockName)
		b.Must(err)
		freed, err := b.Direct.ForceUnlock(ctx, i)
		b.Must(err)
		assert.True(b, freed)
		_, err = c.Attach(ctx, ticket)
		b.MustBe(err, ErrNotHeld)
		b.Follows(k.Rival(c, b.LockName))
	})
}

// A detached hold that no process attaches expires after keep.
func TestDetachedHoldExpires(t *testing.T) {
	locktest.OnDetachable(t, func(b *locktest.FaultBench, k locktest.LockKind) {
		c := b.Client()
		ticket := b.Detach(b.Hold(k.One(c, b.LockName)), 50*time.Millisecond)
		b.Follows(k.Rival(c, b.LockName))
		_, err := c.Attach(ctx, ticket)
		b.MustBe(err, ErrNotHeld)
	})
}

// A ticket is over when keep has passed, even if the detached hold is still there: an Attach that gives up after that
// time puts it back for a moment.
func TestTicketEndsWhenKeepHasPassed(t *testing.T) {
	locktest.OnDetachable(t, func(b *locktest.FaultBench, k locktest.LockKind) {
		c := b.Client()
		text := b.Detach(b.Hold(k.One(c, b.LockName)), time.Hour)
		over, err := ticket.Decode(text)
		b.Must(err)
		over.KeepEnd -= 2 * time.Hour.Milliseconds()
		late, err := over.Encode()
		b.Must(err)
		_, err = c.Attach(ctx, late)
		b.MustBe(err, ErrNotHeld)
		b.Excludes(k.Rival(c, b.LockName))
		b.Must(b.Attach(c, text).Release(ctx))
	})
}

// A hold that has expired is not attached, although others keep the key: a permit has an end of its own, and a reader a
// lease.
func TestExpiredHoldIsNotAttached(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		for name, l := range map[string]func(c *Client, name string) Locker{
			"read":      locktest.NewReadLock,
			"semaphore": func(c *Client, name string) Locker { return c.NewSemaphore(name, 2) },
		} {
			t.Run(name, func(t *testing.T) {
				b := locktest.NewBench(t, addr)
				c1, c2 := b.Client(), b.Client()
				other := b.Hold(l(c2, b.LockName))
				ticket := b.Detach(b.Hold(l(c1, b.LockName)), 10*time.Millisecond)
				testredis.Await(b, "the detached hold has expired", locktest.Soon, func() bool {
					i, err := c1.Inspect(ctx, b.LockName)
					b.Must(err)
					return !slices.ContainsFunc(i.Holders, func(h Holder) bool { return h.Detached && h.Remaining != 0 })
				})
				_, err := c1.Attach(ctx, ticket)
				b.MustBe(err, ErrNotHeld)
				b.Must(other.Release(ctx))
				b.Forget()
			})
		}
	})
}

// The waiters of the process that detaches or attaches wait until the attached hold is released: it is not handed off.
func TestWaitersOfADetachedHold(t *testing.T) {
	locktest.OnDetachable(t, func(b *locktest.FaultBench, k locktest.LockKind) {
		c := b.Client()
		h, l := b.Hold(k.One(c, b.LockName)), k.Rival(c, b.LockName)
		got := make(chan error, 2)
		wait := func() {
			h, err := l.(Acquirer).Acquire(ctx)
			if err == nil {
				err = h.Release(ctx)
			}
			got <- err
		}
		go wait()
		testredis.Await(b, "it waits", locktest.Soon, func() bool { return locktest.EngineOf(c).Probe().Stats().Holds == 2 })
		ticket := b.Detach(h, time.Minute)
		go wait()
		testredis.Await(b, "both wait", locktest.Soon, func() bool { return locktest.EngineOf(c).Probe().Stats().Holds == 2 })
		attached := b.Attach(c, ticket)
		locktest.Stays(b, "a waiter has acquired the lock", got, 300*time.Millisecond)
		b.Excludes(l)
		b.Must(attached.Release(ctx))
		for range 2 {
			b.Must(locktest.Await(b.Bench, "the waiters are next", got))
		}
	})
}

// Detach works during Shutdown, which need not wait for the hold any more. Attach does not.
func TestDetachDuringShutdown(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	c := b.Client()
	h := b.Hold(c.NewLock(b.LockName))
	got := make(chan error, 1)
	go func() { got <- c.Shutdown(ctx) }()
	b.Ends(h.Context(), ErrClosed)
	_, err := c.Attach(ctx, "")
	b.MustBe(err, ErrInvalid)
	ticket := b.Detach(h, time.Minute)
	_, err = c.Attach(ctx, ticket)
	b.MustBe(err, ErrClosed)
	b.Must(locktest.Await(b, "Shutdown ends", got))
	_, err = h.Detach(ctx, 0)
	b.MustBe(err, ErrNotHeld)
	other := b.Client()
	attached := b.Attach(other, ticket)
	b.Must(other.Close())
	_, err = attached.Detach(ctx, 0)
	b.MustBe(err, ErrClosed)
	b.Must(attached.Release(ctx))
}

// A reader that shares an entry with others is split off: each has a lease of its own, and no newcomer joins the entry.
func TestDetachedReaderIsSplitOff(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	c, other := b.Client(WithHandoffWindow(time.Minute)), b.Client()
	l, writer := c.NewRWLock(b.LockName).Read(), other.NewRWLock(b.LockName).Write()
	h, second := b.Hold(l), b.Hold(l)
	holders := func() (detached, live int) {
		i, err := other.Inspect(ctx, b.LockName)
		b.Must(err)
		for _, h := range i.Holders {
			if h.Detached {
				detached++
			} else {
				live++
			}
		}
		return detached, live
	}
	_, live := holders()
	require.Equal(b, 1, live, "the readers share an entry")
	ticket := b.Detach(h, time.Minute)
	detached, live := holders()
	assert.Equal(b, []int{1, 1}, []int{detached, live}, "the detached reader is beside the other one")
	b.Must(second.Context().Err())
	third := b.Hold(l)
	_, live = holders()
	assert.Equal(b, 2, live, "a newcomer joins the entry of the detached reader")
	b.Must(second.Release(ctx))
	b.Must(third.Release(ctx))
	b.Excludes(writer)
	attached := b.Attach(other, ticket)
	detached, live = holders()
	assert.Equal(b, []int{0, 1}, []int{detached, live})
	b.Must(attached.Release(ctx))
	b.Follows(writer)
}

// WithSyncedReplicas: replicas confirm both calls. If they do not, there is no ticket, or the ticket works again.
func TestSyncedReplicasConfirmDetachAndAttach(t *testing.T) {
	locktest.OnDetachable(t, func(b *locktest.FaultBench, k locktest.LockKind) {
		synced := b.Client(WithSyncedReplicas(1, 20*time.Millisecond)) // the server has no replica
		ticket := b.Detach(b.Hold(k.One(b.Direct, b.LockName)), time.Minute)
		_, err := synced.Attach(ctx, ticket)
		b.MustBe(err, ErrNotSynced)
		testredis.Await(b, "the ticket works again", locktest.Soon, func() bool {
			h, err := b.Direct.Attach(ctx, ticket)
			if err != nil {
				return false
			}
			ticket = b.Detach(h, time.Minute)
			return true
		})
		b.Must(b.Attach(b.Direct, ticket).Release(ctx))
	})
}

// Events: a hold ends as detached, and not as lost, and begins as attached. Its old age is reported like that of
// others.
func TestDetachAndAttachAreObserved(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	var events locktest.Recorder
	log := new(locktest.LockedBuffer)
	c := b.Client(WithObserver(&events), WithHoldWarning(100*time.Millisecond), WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	ticket := b.Detach(b.Hold(c.NewLock(b.LockName)), time.Minute)
	attached := b.Attach(c, ticket)
	_, err := c.Attach(ctx, ticket)
	b.MustBe(err, ErrNotHeld)
	testredis.Await(b, "a warning of the attached hold, with its stack", locktest.Soon, func() bool {
		return strings.Contains(log.String(), "TestDetachAndAttachAreObserved")
	})
	b.Must(attached.Release(ctx))
	var is []string
	for _, e := range events.Take() {
		switch e := e.(type) {
		case AcquiredEvent:
			is = append(is, "acquired "+string(e.Path))
		case ReleasedEvent:
			is = append(is, fmt.Sprint("released ", e.Detached, e.Err))
		case GaveUpEvent:
			assert.ErrorIs(b, e.Err, ErrNotHeld)
			is = append(is, fmt.Sprint("gave up ", e.Contended))
		case RenewedEvent:
		default:
			is = append(is, fmt.Sprintf("%T", e))
		}
	}
	assert.Equal(b, []string{
		"acquired immediate", "released true <nil>", "acquired attached", "gave up false", "released false <nil>",
	}, is)
}
