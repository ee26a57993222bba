package relock

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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/ticket"
)

// The locks whose holds can be detached, and those that exclude them. The permits are several of one hold.
var detachable = append(slices.Clone(recordLocks), lockKind{name: "permits", one: newPermits, rival: newPermits})

// permits are all permits of a semaphore, which a hold has together.
type permits struct{ *Semaphore }

const somePermits = 3

func newPermits(c *Client, name string) Locker { return permits{c.NewSemaphore(name, somePermits)} }

func (p permits) Acquire(ctx context.Context) (*Hold, error) { return p.AcquireN(ctx, somePermits) }

func (p permits) TryAcquire(ctx context.Context, wait, lease time.Duration) (*Hold, bool, error) {
	return p.TryAcquireN(ctx, somePermits, wait, lease)
}

// onDetachable runs test for every lock type whose holds can be detached, on one server.
func onDetachable(t *testing.T, test func(b *faultBench, k lockKind)) {
	t.Parallel()
	server := testredis.Start(t)
	for _, k := range detachable {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			test(newFaultBenchOn(t, server), k)
		})
	}
}

// renames matches the requests that detach or attach a hold.
var renames = anyOf(lockRename, fairRename, readRename, semaphoreRename)

// detach detaches h.
func (b *bench) detach(h *Hold, keep time.Duration) (ticket string) {
	b.Helper()
	ticket, err := h.Detach(context.Background(), keep)
	b.must(err)
	return ticket
}

// attach attaches a hold.
func (b *bench) attach(c *Client, ticket string) *Hold {
	b.Helper()
	h, err := c.Attach(context.Background(), ticket)
	b.must(err)
	return h
}

// excludes checks that l, which h excludes, cannot be acquired.
func (b *bench) excludes(l Locker) {
	b.Helper()
	h, ok, err := l.(Acquirer).TryAcquire(context.Background(), 0, 0)
	b.must(err)
	require.False(b, ok, "the lock is free: %v", h)
}

// follows checks that l can be acquired, soon.
func (b *bench) follows(l Locker) {
	b.Helper()
	b.must(b.holdFor(l, 0).Release(context.Background()))
}

// leaseIn returns the remaining lease in Redis.
func (b *bench) leaseIn(c *Client) time.Duration {
	b.Helper()
	i, err := c.Inspect(context.Background(), b.name)
	b.must(err)
	require.Len(b, i.Holders, 1)
	return i.Holders[0].Remaining
}

// A hold that was detached has ended here, its lock is held in Redis, and another Client makes it a hold again, once.
func TestDetachedHoldIsAttachedOnce(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for _, k := range detachable {
			t.Run(k.name, func(t *testing.T) {
				t.Parallel()
				b, ctx := newBench(t, addr), context.Background()
				c1, c2 := b.client(WithLabel("first")), b.client()
				l, rival := k.one(c1, b.name), k.rival(c2, b.name)
				h := b.hold(l)
				within, guarded := h.Context(), func() context.Context {
					ctx, err := h.Guard(ctx)
					b.must(err)
					return ctx
				}()
				ticket := b.detach(h, time.Minute)
				b.ends(within, ErrDetached)
				b.ends(guarded, ErrDetached)
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
				b.ends(h.Context(), ErrDetached)
				b.excludes(rival)
				i, err := c2.Inspect(ctx, b.name)
				b.must(err)
				require.Len(b, i.Holders, 1)
				assert.True(b, i.Holders[0].Detached, "Inspect shows that it was detached")
				assert.Equal(b, "detached", i.Holders[0].Owner)
				assert.Equal(b, c1.ID(), i.Holders[0].Client)
				assert.Regexp(b, "^"+c1.ID()+":0:[0-9a-f]{4}(:write)?$", i.Holders[0].Field, "its number is a secret")
				assert.InDelta(b, time.Minute, i.Holders[0].Remaining, float64(soon), "the lease is keep")

				attached := b.attach(c2, ticket)
				assert.Equal(b, b.name, attached.Name())
				b.must(attached.Context().Err())
				b.excludes(rival)
				_, err = c1.Attach(ctx, ticket)
				b.mustBe(err, ErrNotHeld)
				_, err = c2.Attach(ctx, ticket)
				b.mustBe(err, ErrNotHeld)
				i, err = c2.Inspect(ctx, b.name)
				b.must(err)
				require.Len(b, i.Holders, 1)
				assert.False(b, i.Holders[0].Detached)
				assert.Equal(b, c2.ID(), i.Holders[0].Client)
				assert.LessOrEqual(b, i.Holders[0].Remaining, 30*time.Second, "the lease is that of the watchdog")

				again := b.attach(c1, b.detach(attached, 0)) // a keep of 0 is the watchdog timeout
				end := again.Context()
				b.must(again.Release(ctx))
				b.ends(end, context.Canceled)
				b.mustBe(again.Release(ctx), ErrNotHeld)
				b.follows(rival)
			})
		}
	})
}

// The fencing token moves with the hold, and the next one is greater.
func TestAttachedHoldHasTheSameToken(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for name, lock := range map[string]func(c *Client, name string) Locker{
			"lock":  func(c *Client, name string) Locker { return c.NewLock(name, Fenced()) },
			"fair":  func(c *Client, name string) Locker { return c.NewFairLock(name, Fenced()) },
			"write": func(c *Client, name string) Locker { return c.NewRWLock(name, Fenced()).Write() },
		} {
			t.Run(name, func(t *testing.T) {
				b := newBench(t, addr)
				c1, c2 := b.client(), b.client()
				h := b.hold(lock(c1, b.name))
				token, err := h.Token()
				b.must(err)
				attached := b.attach(c2, b.detach(h, 0))
				moved, err := attached.Token()
				b.must(err)
				assert.Equal(b, token, moved)
				b.must(attached.Release(context.Background()))
				next := b.hold(lock(c1, b.name))
				greater, err := next.Token()
				b.must(err)
				assert.Greater(b, greater, token)
				b.must(next.Release(context.Background()))
			})
		}
	})
}

// A text that is no ticket of a detached hold attaches nothing, and the error says so before a request is sent.
func TestTicketsAreChecked(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t, testredis.Mini(t).Addr()), context.Background()
	c := b.client(WithKeyPrefix("app:"))
	live := b.hold(c.NewLock(b.name))
	i, err := c.Inspect(ctx, b.name)
	b.must(err)
	detached := c.ID() + ":0:0123456789012345"
	encode := func(change func(t *ticket.Ticket)) string {
		t := ticket.Ticket{Type: string(TypeLock), Key: "app:" + b.name, ID: detached, KeepEnd: time.Now().Add(time.Hour).UnixMilli()}
		change(&t)
		text, err := t.Encode()
		b.must(err)
		return text
	}
	for name, text := range map[string]string{
		"empty":             "",
		"a name":            b.name,
		"damaged":           encode(func(*ticket.Ticket) {}) + "A",
		"another version":   strings.Replace(encode(func(*ticket.Ticket) {}), "relock1.", "relock9.", 1),
		"another prefix":    encode(func(t *ticket.Ticket) { t.Key = "other:" + b.name }),
		"no name":           encode(func(t *ticket.Ticket) { t.Key = "app:" }),
		"a live ID":         encode(func(t *ticket.Ticket) { t.ID = i.Holders[0].Field }),
		"a Java ID":         encode(func(t *ticket.Ticket) { t.ID = c.ID() + ":7" }),
		"no client":         encode(func(t *ticket.Ticket) { t.ID = "mode:0:0123456789012345" }),
		"a short ID":        encode(func(t *ticket.Ticket) { t.ID = c.ID() + ":0:01" }),
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
	b.mustBe(err, ErrNotHeld)
	_, err = c.Attach(nilCtx, "")
	b.mustBe(err, ErrInvalid)
	_, err = (*Client)(nil).Attach(ctx, "")
	b.mustBe(err, ErrInvalid)
	b.must(live.Context().Err())
	b.must(live.Release(ctx))
}

// A hold that cannot be detached goes on.
func TestDetachIsRefused(t *testing.T) {
	b, ctx := newFaultBench(t), context.Background()
	c := b.direct
	rw := c.NewRWLock(b.name + "-rw")
	for name, get := range map[string]func() (h *Hold, then func()){
		"entered again": func() (*Hold, func()) {
			h, l := b.hold(c.NewLock(b.name)), c.NewLock(b.name)
			b.must(l.Lock(h.Context()))
			return h, func() { b.must(l.Unlock(h.Context())) }
		},
		"reads, too": func() (*Hold, func()) {
			h := b.hold(rw.Write())
			b.must(rw.Read().Lock(h.Context()))
			return h, func() { b.must(rw.Read().Unlock(h.Context())) }
		},
		"waits to write": func() (*Hold, func()) {
			h, other := b.hold(rw.Read()), b.hold(rw.Read())
			ends, cancel := context.WithCancel(h.Context())
			got := make(chan error, 1)
			go func() { got <- rw.Write().Lock(ends) }()
			testredis.Await(b, "it asks for the write lock", soon, func() bool {
				return c.engine.Probe().Stats().Holds == 3
			})
			return h, func() {
				cancel()
				b.mustBe(await(b.bench, "it gives up", got), context.Canceled)
				b.must(other.Release(ctx))
			}
		},
		"MultiLock": func() (*Hold, func()) {
			return b.hold(c.NewMultiLock(c.NewLock(b.name), c.NewLock(b.name+"-2"))), func() {}
		},
		"RedLock":   func() (*Hold, func()) { return b.hold(newThreeWayLock(c, b.name)), func() {} },
		"long name": func() (*Hold, func()) { return b.hold(c.NewLock(b.name + strings.Repeat("x", 300))), func() {} },
	} {
		h, then := get()
		_, err := h.Detach(ctx, 0)
		assert.ErrorIs(b, err, ErrInvalid, name)
		b.must(h.Context().Err())
		then()
		b.must(h.Release(ctx))
	}
	h := b.hold(c.NewLock(b.name))
	for _, keep := range []time.Duration{-time.Second, time.Microsecond} {
		_, err := h.Detach(ctx, keep)
		b.mustBe(err, ErrInvalid)
	}
	_, err := h.Detach(nilCtx, 0)
	b.mustBe(err, ErrInvalid)
	done, cancel := context.WithCancel(ctx)
	cancel()
	_, err = h.Detach(done, 0)
	b.mustBe(err, context.Canceled)
	b.must(h.Context().Err())
	b.must(h.Release(ctx))
	for _, none := range []*Hold{nil, {}, h} {
		_, err = none.Detach(ctx, 0)
		b.mustBe(err, ErrNotHeld)
	}
	b.forget()
	lost := b.hold(c.NewLock(b.name))
	b.forget()
	_, err = lost.Detach(ctx, 0)
	b.mustBe(err, ErrLockLost)
	b.mustBe(lost.Release(ctx), ErrNotHeld)
}

// A Detach whose ctx is done before its request is sent leaves the hold alone: the hold goes on in this process.
func TestDetachWhoseContextIsDoneLeavesTheHoldAlone(t *testing.T) {
	onDetachable(t, func(b *faultBench, k lockKind) {
		ctx := context.Background()
		h := b.hold(k.one(b.clientOn(b.proxy.Client()), b.name))
		within := h.Context()
		sent := b.proxy.On(renames, testredis.DropRequest).Times(testredis.Always)
		done, cancel := context.WithCancel(ctx)
		cancel()
		ticket, err := h.Detach(done, time.Minute)
		b.mustBe(err, context.Canceled)
		assert.Empty(b, ticket)
		stays(b.bench, "the hold has ended", within.Done(), 100*time.Millisecond)
		assert.Zero(b, sent.Count(), "requests of Detach")
		sent.Release()
		b.excludes(k.rival(b.direct, b.name))
		i, err := b.direct.Inspect(ctx, b.name)
		b.must(err)
		require.Len(b, i.Holders, 1)
		assert.False(b, i.Holders[0].Detached, "Inspect shows that it was detached")
		b.must(b.attach(b.direct, b.detach(h, time.Minute)).Release(ctx)) // it can still be detached
		b.follows(k.rival(b.direct, b.name))
	})
}

// The same for a Detach that is waiting for another call of its owner.
func TestDetachThatWaitsForItsOwnerCanBeCanceled(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	h := b.holdFor(b.clientOn(b.proxy.Client()).NewLock(b.name), time.Minute)
	within := h.Context()
	extending := b.proxy.On(calls(renewScript), testredis.HoldRequest).Times(testredis.Always)
	extended, detached := make(chan error, 1), make(chan error, 1)
	go func() { extended <- h.Extend(ctx, 2*time.Minute) }()
	await(b.bench, "Extend is under way", extending.Fired())
	brief, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	go func() {
		_, err := h.Detach(brief, time.Minute)
		detached <- err
	}()
	b.mustBe(await(b.bench, "Detach comes back", detached), context.DeadlineExceeded)
	b.must(within.Err())
	extending.Release()
	b.must(await(b.bench, "Extend comes back", extended))
	b.must(within.Err())
	b.must(h.Release(ctx))
	b.follows(b.direct.NewLock(b.name))
}

// An operator can release a detached hold by force, as Inspect shows it: its ticket does not work any more.
func TestDetachedHoldIsReleasedByForce(t *testing.T) {
	onDetachable(t, func(b *faultBench, k lockKind) {
		ctx, c := context.Background(), b.client()
		ticket := b.detach(b.hold(k.one(c, b.name)), time.Hour)
		i, err := c.Inspect(ctx, b.name)
		b.must(err)
		freed, err := b.direct.ForceUnlock(ctx, i)
		b.must(err)
		assert.True(b, freed)
		_, err = c.Attach(ctx, ticket)
		b.mustBe(err, ErrNotHeld)
		b.follows(k.rival(c, b.name))
	})
}

// A detached hold that no process attaches expires after keep.
func TestDetachedHoldExpires(t *testing.T) {
	onDetachable(t, func(b *faultBench, k lockKind) {
		c := b.client()
		ticket := b.detach(b.hold(k.one(c, b.name)), 50*time.Millisecond)
		b.follows(k.rival(c, b.name))
		_, err := c.Attach(context.Background(), ticket)
		b.mustBe(err, ErrNotHeld)
	})
}

// A ticket is over when keep has passed, even if the detached hold is still there: an Attach that gives up after that
// time puts it back for a moment.
func TestTicketEndsWhenKeepHasPassed(t *testing.T) {
	onDetachable(t, func(b *faultBench, k lockKind) {
		c := b.client()
		text := b.detach(b.hold(k.one(c, b.name)), time.Hour)
		over, err := ticket.Decode(text)
		b.must(err)
		over.KeepEnd -= 2 * time.Hour.Milliseconds()
		late, err := over.Encode()
		b.must(err)
		_, err = c.Attach(context.Background(), late)
		b.mustBe(err, ErrNotHeld)
		b.excludes(k.rival(c, b.name))
		b.must(b.attach(c, text).Release(context.Background()))
	})
}

// A hold that has expired is not attached, although others keep the key: a permit has an end of its own, and a reader a
// lease.
func TestExpiredHoldIsNotAttached(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for name, l := range map[string]func(c *Client, name string) Locker{
			"read":      newReadLock,
			"semaphore": func(c *Client, name string) Locker { return c.NewSemaphore(name, 2) },
		} {
			t.Run(name, func(t *testing.T) {
				b, ctx := newBench(t, addr), context.Background()
				c1, c2 := b.client(), b.client()
				other := b.hold(l(c2, b.name))
				ticket := b.detach(b.hold(l(c1, b.name)), 10*time.Millisecond)
				testredis.Await(b, "the detached hold has expired", soon, func() bool {
					i, err := c1.Inspect(ctx, b.name)
					b.must(err)
					return !slices.ContainsFunc(i.Holders, func(h Holder) bool { return h.Detached && h.Remaining != 0 })
				})
				_, err := c1.Attach(ctx, ticket)
				b.mustBe(err, ErrNotHeld)
				b.must(other.Release(ctx))
				b.forget()
			})
		}
	})
}

// The context of a detached hold is canceled with the cause ErrDetached, whenever Context is first called: while Detach
// waits for Redis, also if Release is called meanwhile, or after it.
func TestContextOfADetachedHoldTellsTheCause(t *testing.T) {
	onDetachable(t, func(b *faultBench, k lockKind) {
		c, ctx := b.patientClient(), context.Background()
		for _, releases := range []bool{false, true} {
			h := b.hold(k.one(c, b.name))
			rule := b.proxy.On(renames, testredis.HoldRequest).Times(testredis.Always)
			got := make(chan string, 1)
			go func() {
				ticket, err := h.Detach(ctx, time.Minute)
				assert.NoError(b, err)
				got <- ticket
			}()
			await(b.bench, "the request is under way", rule.Fired())
			ended := make(chan error, 1)
			if releases {
				go func() { ended <- h.Release(ctx) }()
				testredis.Await(b, "Release has begun", soon, h.released.Load)
			}
			b.ends(h.Context(), ErrDetached)
			rule.Release()
			ticket := await(b.bench, "Detach comes back", got)
			if releases {
				b.mustBe(await(b.bench, "Release comes back", ended), ErrNotHeld)
			}
			b.ends(h.Context(), ErrDetached)
			h = b.attach(c, ticket)
			ticket = b.detach(h, time.Minute)
			b.ends(h.Context(), ErrDetached)
			b.must(b.attach(c, ticket).Release(ctx))
		}
	})
}

// The waiters of the process that detaches or attaches wait until the attached hold is released: it is not handed off.
func TestWaitersOfADetachedHold(t *testing.T) {
	onDetachable(t, func(b *faultBench, k lockKind) {
		c := b.client()
		h, l := b.hold(k.one(c, b.name)), k.rival(c, b.name)
		got := make(chan error, 2)
		wait := func() {
			h, err := l.(Acquirer).Acquire(context.Background())
			if err == nil {
				err = h.Release(context.Background())
			}
			got <- err
		}
		go wait()
		testredis.Await(b, "it waits", soon, func() bool { return c.engine.Probe().Stats().Holds == 2 })
		ticket := b.detach(h, time.Minute)
		go wait()
		testredis.Await(b, "both wait", soon, func() bool { return c.engine.Probe().Stats().Holds == 2 })
		attached := b.attach(c, ticket)
		stays(b, "a waiter has acquired the lock", got, 300*time.Millisecond)
		b.excludes(l)
		b.must(attached.Release(context.Background()))
		for range 2 {
			b.must(await(b.bench, "the waiters are next", got))
		}
	})
}

// MaxHold goes on: the lease of the detached hold ends with it, and so does the attached hold.
func TestMaxHoldOfADetachedHold(t *testing.T) {
	t.Parallel()
	b, c := newBench(t, testredis.Start(t).Addr()), (*Client)(nil)
	c = b.client(WithWatchdogTimeout(time.Second))
	const most = 2 * time.Second
	began := time.Now()
	ticket := b.detach(b.hold(c.NewLock(b.name, MaxHold(most))), time.Hour)
	assert.LessOrEqual(b, b.leaseIn(c), most, "keep is cut")
	attached := b.attach(c, ticket)
	end := attached.Context()
	b.ends(end, ErrMaxHold)
	assert.InDelta(b, most, time.Since(began), float64(time.Second), "when it ends")
	b.mustBe(attached.Release(context.Background()), ErrLockLost)
	b.follows(c.NewLock(b.name))
}

// A detached write lock expires when keep has passed, although the record has a read hold that its owner has lost.
func TestDetachedWriterBesideALostReaderExpires(t *testing.T) {
	b, ctx := newFaultBench(t), context.Background()
	c := b.patientClient()
	rw := c.NewRWLock(b.name)
	h := b.hold(rw.Write())
	b.must(rw.Read().LockLease(h.Context(), 50*time.Millisecond))
	guarded, err := rw.Read().Guard(h.Context())
	b.must(err)
	rule := b.proxy.On(calls(readRelease), testredis.HoldRequest).Times(testredis.Always)
	b.ends(guarded, ErrLockLost)
	testredis.Await(b, "the lease of the reader has expired", soon, func() bool {
		return b.rdb.PTTL(ctx, b.name).Val() > 0 && len(b.rdb.Keys(ctx, "*"+b.name+"*:rwlock_timeout:1").Val()) == 0
	})
	const keep = 100 * time.Millisecond
	b.detach(h, keep)
	assert.LessOrEqual(b, b.rdb.PTTL(ctx, b.name).Val(), keep)
	b.follows(b.direct.NewRWLock(b.name).Write())
	rule.Release()
}

// MinHold goes on: the detached hold lasts at least that long, and so does the record after the attached hold was
// released.
func TestMinHoldOfADetachedHold(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	c := b.client()
	const least = 3 * time.Second
	began := time.Now()
	l := c.NewLock(b.name, MinHold(least))
	ticket := b.detach(b.hold(l), time.Millisecond)
	assert.InDelta(b, least, b.leaseIn(c), float64(time.Second))
	attached := b.attach(c, ticket)
	b.must(attached.Release(context.Background()))
	b.excludes(l)
	b.must(c.NewLock(b.name).Lock(context.Background()))
	assert.GreaterOrEqual(b, time.Since(began), least, "when another owner acquires it")
	b.must(c.NewLock(b.name).Unlock(context.Background()))
}

// Detach works during Shutdown, which need not wait for the hold any more. Attach does not.
func TestDetachDuringShutdown(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t, testredis.Start(t).Addr()), context.Background()
	c := b.client()
	h := b.hold(c.NewLock(b.name))
	got := make(chan error, 1)
	go func() { got <- c.Shutdown(ctx) }()
	b.ends(h.Context(), ErrClosed)
	_, err := c.Attach(ctx, "")
	b.mustBe(err, ErrInvalid)
	ticket := b.detach(h, time.Minute)
	_, err = c.Attach(ctx, ticket)
	b.mustBe(err, ErrClosed)
	b.must(await(b, "Shutdown ends", got))
	_, err = h.Detach(ctx, 0)
	b.mustBe(err, ErrNotHeld)
	other := b.client()
	attached := b.attach(other, ticket)
	b.must(other.Close())
	_, err = attached.Detach(ctx, 0)
	b.mustBe(err, ErrClosed)
	b.must(attached.Release(ctx))
}

// A reader that shares an entry with others is split off: each has a lease of its own, and no newcomer joins the entry.
func TestDetachedReaderIsSplitOff(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t, testredis.Start(t).Addr()), context.Background()
	c, other := b.client(WithHandoffWindow(time.Minute)), b.client()
	l, writer := c.NewRWLock(b.name).Read(), other.NewRWLock(b.name).Write()
	h, second := b.hold(l), b.hold(l)
	holders := func() (detached, live int) {
		i, err := other.Inspect(ctx, b.name)
		b.must(err)
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
	ticket := b.detach(h, time.Minute)
	detached, live := holders()
	assert.Equal(b, []int{1, 1}, []int{detached, live}, "the detached reader is beside the other one")
	b.must(second.Context().Err())
	third := b.hold(l)
	_, live = holders()
	assert.Equal(b, 2, live, "a newcomer joins the entry of the detached reader")
	b.must(second.Release(ctx))
	b.must(third.Release(ctx))
	b.excludes(writer)
	attached := b.attach(other, ticket)
	detached, live = holders()
	assert.Equal(b, []int{0, 1}, []int{detached, live})
	b.must(attached.Release(ctx))
	b.follows(writer)
}

// WithSyncedReplicas: replicas confirm both calls. If they do not, there is no ticket, or the ticket works again.
func TestSyncedReplicasConfirmDetachAndAttach(t *testing.T) {
	onDetachable(t, func(b *faultBench, k lockKind) {
		ctx := context.Background()
		synced := b.client(WithSyncedReplicas(1, 20*time.Millisecond)) // the server has no replica
		ticket := b.detach(b.hold(k.one(b.direct, b.name)), time.Minute)
		_, err := synced.Attach(ctx, ticket)
		b.mustBe(err, ErrNotSynced)
		testredis.Await(b, "the ticket works again", soon, func() bool {
			h, err := b.direct.Attach(ctx, ticket)
			if err != nil {
				return false
			}
			ticket = b.detach(h, time.Minute)
			return true
		})
		b.must(b.attach(b.direct, ticket).Release(ctx))
	})
}

// Events: a hold ends as detached, and not as lost, and begins as attached. Its old age is reported like that of
// others.
func TestDetachAndAttachAreObserved(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t, testredis.Start(t).Addr()), context.Background()
	var events recorder
	log := new(lockedBuffer)
	c := b.client(WithObserver(&events), WithHoldWarning(100*time.Millisecond), WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	ticket := b.detach(b.hold(c.NewLock(b.name)), time.Minute)
	attached := b.attach(c, ticket)
	_, err := c.Attach(ctx, ticket)
	b.mustBe(err, ErrNotHeld)
	testredis.Await(b, "a warning of the attached hold, with its stack", soon, func() bool {
		return strings.Contains(log.String(), "TestDetachAndAttachAreObserved")
	})
	b.must(attached.Release(ctx))
	var is []string
	for _, e := range events.take() {
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
