package record

// Semaphores.

import (
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

var (
	semaphore = scriptsOf("semaphore", "semaphore")

	semaphoreSet = Script("semaphore_set")
)

// A Semaphore is the record of a Semaphore: the counter of the free permits, and the sorted set of the permits that are
// held. Its keys are these two, and the wait queue.
type Semaphore struct {
	Lock
	Permits int // the number of permits if the semaphore does not exist yet
}

// NewSemaphore returns the semaphore that users call t.Name.
func NewSemaphore(c *Client, t contract.Traits, permits int) *Semaphore {
	key := c.Prefix + t.Name
	keys := append([]string{key, PermitsKey(key)}, LineKeys(key)...)
	l := &Semaphore{newLock(c, semaphore, t, PrefixName("redisson_sc", key), keys...), permits}
	l.traits.ID.Half = "permits" // an owner that has a permit does not hold the lock of the same name
	l.traits.Admission, l.held = contract.Counting, keys[1:2]
	return l
}

// Several returns the lock whose holds have n permits each.
func (l *Semaphore) Several(n int) *Semaphore {
	several := *l
	several.traits.Several = n
	return &several
}

func (l *Semaphore) Acquire(a contract.Attempt) send.Call {
	return l.call(l.acquire, upToDefaults([]any{a.Field, send.Milliseconds(a.Lease), l.Permits, l.told, l.client.Verb()},
		[]any{a.HoldCount, deliveryOf(a), askedIn(a), grantLeaseIn(a)}, 1, contract.Defer, 0, 0))
}

func (l *Semaphore) ReadReply(a contract.Attempt, r send.Reply) (contract.Outcome, error) {
	total := l.Permits
	if r[0] == -2 {
		total = int(r[1])
		if !a.Waits {
			return contract.Outcome{}, send.Invalid("%d permits at once: the semaphore has %d in Redis", l.traits.Permits(), total)
		}
		r = send.Reply{0, -1, 0} // SetPermits has lowered the number, and the process has no place in the line any more
	}
	stored := int(r[2]/storedUnit) - 1
	r[2] %= storedUnit
	g, err := l.Lock.ReadReply(a, r)
	if stored >= 0 { // another number of permits than the semaphore was made with
		g.Differs, g.Stored, total = true, stored, stored
	}
	g.Total = max(total, 1) // as fits in permit.lua: a caller that wants one permit waits for it, even if there are none
	if g.Status == contract.Held {
		g.Token, g.More = 0, int(g.Token)
	}
	return g, err
}

// storedUnit is what the third number of a reply counts the permits in: below it is what other lock types have there. See
// internal/lua/semaphore_acquire.lua.
const storedUnit = 1 << 20

func (l *Semaphore) Inspect(field string) send.Call {
	c := l.Lock.Inspect(field)
	c.Keys = l.keys[:2]
	return c
}

// Count asks for the number of permits, and how many of them are free.
func (l *Semaphore) Count() send.Call {
	c := l.Inspect("")
	c.Args = append(c.Args, l.Permits)
	return c
}

// Set sets the number of permits from seen to n. The first number of the reply is 1, or 0 if it is another one by now.
func (l *Semaphore) Set(seen int64, n int) send.Call {
	return l.call(semaphoreSet, []any{n, l.told, l.client.Verb(), seen})
}

func (l *Semaphore) BusyText(ttl, left, ago time.Duration) string {
	switch {
	case ttl < 0:
		return "too few permits are free, and none has a lease that expires; if no owner holds one, call SetPermits"
	case left > 0:
		return fmt.Sprintf("too few permits are free, and the first lease expires in %v", contract.Rounded(left))
	}
	return fmt.Sprintf("too few permits were free %v ago, when Redis was last asked", contract.Rounded(ago))
}
