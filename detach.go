package relock

// Holds that another process goes on with: Detach ends the hold here and keeps the lock in Redis, and Attach makes it a
// hold again.
//
// Rules: the ticket has all that the other process needs to know of the hold. It contains the holder ID, by which it is
// attached: whoever lists holders does not see that ID.

import (
	"cmp"
	"context"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/record"
	tickets "github.com/relock-go/relock/internal/ticket"
)

// Detach ends the hold in this process, and keeps the lock in Redis for keep, so that another process, or this one,
// can go on with it: [Client.Attach] turns the ticket into a Hold again. So one process can acquire a lock, for
// example the handler of a request, and another one do the work and release it. A keep of 0 is the watchdog timeout of
// the Client.
//
// The lease is not renewed meanwhile. If no process attaches the hold, the lock expires when keep has passed. [MinHold]
// and [MaxHold] still count from when the lock was acquired: the lock is kept for at least the rest of MinHold, and at
// most the rest of MaxHold, counted from when Redis runs the request. The fencing token stays the same.
//
// The ticket is a text of at most 512 printable ASCII characters, without spaces. It works once, and it is a secret:
// any process that has it can attach the hold, and so release the lock. The contexts of the hold are canceled with the
// cause [ErrDetached] before Detach sends its request, and Release and Extend then return ErrNotHeld.
//
// If Redis does not confirm the request within 5s, or ctx is done before that, Detach returns an error and no ticket.
// The hold has ended then, too, and the lock is released in the background. But if ctx is done when Detach is called,
// or while another goroutine uses the hold, it goes on. So call Release after an error: it returns ErrNotHeld if the
// hold has ended.
//
// The error is ErrLockLost if the lock was lost, and ErrNotHeld after Release. It is ErrInvalid for a keep below 1ms,
// and for a hold of a MultiLock or a RedLock. It is also ErrInvalid if the owner has acquired the lock again, or holds
// or awaits the other half of the read/write lock. The name of the lock may be too long for a ticket, which has room
// for about 250 bytes: this is ErrInvalid, too. The hold goes on then. Detach works during Shutdown. After Close it
// returns ErrClosed.
func (h *Hold) Detach(ctx context.Context, keep time.Duration) (ticket string, err error) {
	defer func() { err = failed("detach", h.Name(), err) }()
	if err = h.usable(ctx); err != nil {
		return "", err
	}
	l, e := h.lock, h.lock.client.engine()
	switch {
	case keep != 0 && keep < time.Millisecond:
		return "", invalid("keep %v is too short: it must be at least 1ms, or 0 for the watchdog timeout", keep)
	case l.record() == nil:
		return "", invalid("the hold is that of a MultiLock or a RedLock: it cannot be detached, because it has several keys")
	case len(l.lock.Traits().ID.Name) > tickets.LongestKey:
		return "", invalid("%w", tickets.ErrTooLong)
	}
	_ = h.Context() // it has to exist when the hold ends, because a later one would not know why
	t, ended, err := e.Detach(h.owner().In(ctx), l.lock, h.owner(), cmp.Or(keep, e.WatchdogTimeout))
	if ended {
		h.in().released.Store(true)
	}
	if err != nil {
		return "", err
	}
	return t.Encode()
}

// Attach returns the hold that was detached with [Hold.Detach], under a new owner: its lease is renewed automatically
// until Release, as if the lock had been acquired here. It need not be the Client, or the process, that has detached
// it, but it must use the same Redis, and a prefix ([WithKeyPrefix]) that fits the key of the lock. Attach does not
// wait for other owners.
//
// A ticket works once: the error is ErrNotHeld if the hold was attached before, has expired, or was released by force.
// This does not mean that the work was done, because the process that has attached the hold may have crashed.
// It is ErrInvalid for a ticket that is damaged or whose key does not fit, and ErrClosed after Shutdown and Close.
// After any other error the ticket can be used again, until the time that was passed to Detach is over: if Redis has
// already attached the hold, it is detached again, as soon as Redis can be reached. Another call of this Client waits
// for that, and returns an error other than ErrNotHeld if it takes longer than 5 s. To another Client, and to a call
// that is under way meanwhile, the ticket is used until then: they get ErrNotHeld.
//
// The context of [Hold.Context] has the values of ctx. If ctx is canceled, Attach ends, but a hold that it has returned
// does not.
func (c *Client) Attach(ctx context.Context, ticket string) (hold *Hold, err error) {
	var name string
	defer func() { err = failed("attach", name, err) }()
	switch {
	case c == nil:
		return nil, invalid("the Client is nil")
	case ctx == nil:
		return nil, errNilContext
	}
	t, err := tickets.Decode(ticket)
	if err != nil {
		return nil, invalid("%w", err)
	}
	name = t.Key
	l, err := c.lockOf(t)
	if err != nil {
		return nil, err
	}
	name = l.name
	ctx = ContextWithOwner(ctx)
	if err := c.engine().Attach(ctx, l.lock, engine.OwnerOf(ctx), t); err != nil {
		return nil, err
	}
	return makeHold(ctx, l, 0), nil
}

// lockOf returns the lock of a ticket. When its MaxHold and its MinHold end is in the ticket.
func (c *Client) lockOf(t tickets.Ticket) (*handle, error) {
	name, ok := strings.CutPrefix(t.Key, c.wire().Prefix)
	permits, detached := engine.DetachedPermits(t.ID)
	switch {
	case !ok || name == "":
		return nil, invalid("the ticket is for a key that does not begin with the prefix %s of this Client, or that has no "+
			"name",
			shortName(c.wire().Prefix))
	case !detached || uuid.Validate(t.ID[:strings.IndexByte(t.ID, ':')]) != nil,
		permits > 1 && LockType(t.Type) != TypeSemaphore:
		return nil, invalid("the ticket has no ID of a detached hold")
	}
	var opts []LockOption
	if t.Token != 0 {
		opts = append(opts, Fenced())
	}
	if t.MinEnd > 0 {
		opts = append(opts, MinHold(time.Millisecond))
	}
	if h := c.newLock(LockType(t.Type), name, permits, opts...); h != nil {
		return h, h.bad
	}
	return nil, invalid("the ticket is for a lock of the type %s, which this version does not know", shortName(t.Type))
}

// newLock returns the lock of a type, or nil if there is no such type. permits is how many each hold of a
// semaphore has; it does not count for other types.
func (c *Client) newLock(kind LockType, name string, permits int, opts ...LockOption) *handle {
	switch kind {
	case TypeLock:
		return &c.NewLock(name, opts...).handle
	case TypeFair:
		return &c.NewFairLock(name, opts...).handle
	case TypeRead:
		return &c.NewRWLock(name, opts...).Read().handle
	case TypeWrite:
		return &c.NewRWLock(name, opts...).Write().handle
	case TypeSemaphore: // the number of its permits is in Redis
		return c.NewSemaphore(name, 1, opts...).several(permits)
	}
	return nil
}

// numberOf returns the number at the end of a field.
func numberOf(field string) uint64 {
	n, _ := strconv.ParseUint(field[strings.LastIndexByte(field, ':')+1:], 10, 64)
	return n
}

// isDetached reports whether c has been detached.
func (c Contender) isDetached() bool { return c.Client != "" && c.Owner == engine.NoOwner.String() }

// hideNumber finds out whether the hold is detached. It replaces the number in the Field of such a hold, because it
// attaches the hold, by a checksum, which tells this hold from others. Very many numbers have the same checksum.
func (h *Holder) hideNumber() {
	if h.Detached = h.isDetached(); !h.Detached {
		return
	}
	field := h.Field
	h.id, h.Field = &field, fmt.Sprintf("%s:0:%04x", h.Client, crc32.ChecksumIEEE([]byte(h.Field))&0xffff)
	if h.Write {
		h.Field += record.WriteSuffix
	}
}
