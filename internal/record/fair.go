package record

// Fair locks.

import (
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

var fair = scriptsOf("fair", "lock")

// A Fair is the record of a FairLock: the record of a Lock, and a queue with keys of its own. Its channel is the prefix of the
// channels: the field of the waiter to be notified follows.
type Fair struct{ Lock }

// NewFair returns the fair lock that users call t.Name.
func NewFair(c *Client, t contract.Traits) *Fair {
	key := c.Prefix + t.Name
	l := &Fair{newLock(c, fair, t, PrefixName("redisson_lock__channel", key)+":",
		key,
		PrefixName("redisson_lock_queue", key),
		PrefixName("redisson_lock_timeout", key),
		PlacesKey(key),
		LineKeys(key)[1],
	)}
	l.granting = l.told.(string) + "client:" + c.ID // that of all waiters of this Client: see internal/lua/queue.lua
	l.traits.Admission = contract.Uncoordinated
	l.heartbeat, l.timeless = FairHeartbeat, true
	l.details = []any{send.Milliseconds(c.FairWait)}
	l.forces = l.details
	return l
}

func (l *Fair) BusyText(ttl, left, ago time.Duration) string {
	if ttl < 0 {
		return "other waiters are ahead in the queue"
	}
	return l.Lock.BusyText(ttl, left, ago)
}

func (l *Fair) Channel(a contract.Attempt) string {
	if a.NoWait {
		return ""
	}
	return l.told.(string) + a.Field
}

func (l *Fair) Acquire(a contract.Attempt) send.Call {
	var asked any = 0
	if a.Delivery == contract.Push {
		asked = a.Asked
	}
	return l.call(l.acquire, upToDefaults([]any{a.Field, send.Milliseconds(a.Lease), l.details[0], l.told, l.client.Verb()},
		[]any{a.HoldCount, !a.NoWait, asked, grantLeaseIn(a)}, 1, true, 0, 0))
}
