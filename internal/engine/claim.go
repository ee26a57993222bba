package engine

// A claim is what one call wants of a lock for its owner, from when it enters until the lock was acquired, or was given
// up: the lock, the field to ask with, and the position in the local queue.
//
// Rules: a claim is in the memory of the hold that it may become, so that a hand-off allocates nothing. What is here
// knows nothing of the record, the lease or the hold count: these begin with the hold. The position in the local queue
// stays until the last Unlock, which passes it on.

import (
	"fmt"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/tenancy"
)

// A claim is what one call wants of a lock for its owner.
type claim struct {
	lockState *lockState
	lock      contract.Lock // through which it is acquired
	owner     Owner

	// guarded by lockState.mu
	tenancy.Claim // its state, and its field; see transitions.go
	// changed wakes the caller when its owner has acquired the counterpart of the lock, or when a late answer has granted
	// the lock; nil: no caller has needed it yet.
	changed    chan struct{}
	queue      *waitQueue // the local queue that has admitted the claim, and not the next waiter yet; or nil
	registered bool       // it is in the holds of its lock state
	fieldSent  bool       // an attempt on the counterpart has named its field
}

// half returns LockID.Half of the lock.
func (c *claim) half() string { return c.lock.Traits().ID.Half }

// key returns the key of the hold in its lock state.
func (c *claim) key() holdKey { return holdKey{c.half(), c.owner} }

// id returns the ID of the lock.
func (c *claim) id() contract.LockID { return contract.LockID{Name: c.lockState.name, Half: c.half()} }

// commands returns the commands of the lock, which must have a record in Redis.
func (c *claim) commands() contract.Record { return c.lock.(contract.Record) }

func (c *claim) subject() Subject { return subjectOf(c.lock, c.owner) }

// withName returns loss with the name of the lock in front.
func (c *claim) withName(loss error) error {
	return fmt.Errorf("relock: %s: %w", send.ShortName(c.lock.Traits().Name), loss)
}

// wakerLocked returns the channel that wakes the caller of c.
func (c *claim) wakerLocked() chan struct{} {
	if c.changed == nil {
		c.changed = make(chan struct{}, 1)
	}
	return c.changed
}

// wakeLocked wakes the caller of c, now or as soon as it waits.
func (c *claim) wakeLocked() {
	select {
	case c.wakerLocked() <- struct{}{}:
	default:
	}
}

// counterpartLocked returns the hold that the owner of c has, or asks for, on the counterpart of the lock; or nil.
func (c *claim) counterpartLocked() *hold {
	other := c.lock.Traits().Counterpart
	if other == (contract.LockID{}) {
		return nil
	}
	return c.lockState.holds.get(holdKey{other.Half, c.owner})
}

// hasCounterpart reports whether the owner of c holds the counterpart of the lock. An attempt for c then does not join
// the line: it would never be granted the lock there, because the key in Redis is taken, and another caller of this
// process may have the place in the line.
func (c *claim) hasCounterpart() bool {
	if c.lock.Traits().Counterpart == (contract.LockID{}) {
		return false
	}
	c.lockState.Lock()
	defer c.lockState.Unlock()
	other := c.counterpartLocked()
	return other != nil && other.Holds()
}

// leaveQueueLocked leaves the local queue that has admitted c, and so admits the next waiter.
func (c *claim) leaveQueueLocked() {
	if q := c.queue; q != nil {
		c.queue = nil
		q.Release()
		c.lockState.dropQueueLocked(q)
	}
}

func (c *claim) leaveQueue() {
	c.lockState.Lock()
	defer c.lockState.Unlock()
	c.leaveQueueLocked()
}

// heardRelease notes, for the hand-off policy, that another process has released the lock.
func (c *claim) heardRelease() {
	c.lockState.Lock()
	defer c.lockState.Unlock()
	if e := c.lockState.engine; c.queue != nil {
		c.queue.policy.HeardRelease(e.watchdog.Now(), e.pace())
	}
}
