package record

// Plain locks.

import (
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

var plain = scriptsOf("lock", "lock")

// A Plain is the record of a Lock: a hash {field: hold count}. Its wait queue, and the token counter of a fenced
// lock, have keys of their own.
type Plain struct{ Lock }

// NewPlain returns the plain lock that users call t.Name.
func NewPlain(c *Client, t contract.Traits) *Plain {
	key := c.Prefix + t.Name
	keys := append([]string{key}, LineKeys(key)...)
	l := &Plain{newLock(c, plain, t, PrefixName("redisson_lock__channel", key), keys...)}
	l.alone = true
	return l
}

func (l *Plain) Acquire(a contract.Attempt) send.Call {
	c := l.call(l.acquire, l.acquireArgs(a))
	c.Alone = !l.traits.Fenced // a token has a key of its own
	return c
}

// acquireArgs names the channel and the command that publishes to those only that may wait or let the line go first.
func (l *Plain) acquireArgs(a contract.Attempt) []any {
	delivery, verb, asked, channel := deliveryOf(a), Publish, askedIn(a), any("")
	switch delivery {
	case contract.Push, contract.Poll:
		verb, channel = l.client.Verb(), l.told
	case contract.Defer:
		verb = l.client.Verb()
	}
	return upToDefaults(
		[]any{a.Field, send.Milliseconds(a.Lease)},
		[]any{a.HoldCount, delivery, a.TokensWanted(l.traits.Fenced), verb, asked, channel, grantLeaseIn(a)},
		1, contract.Defer, 1, Publish, 0, "", 0,
	)
}
