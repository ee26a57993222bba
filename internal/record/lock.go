package record

// What the records of all lock types have in common. A type adds its keys, the arguments that its scripts have, how an
// attempt is made, and how its reply reads, where it differs.

import (
	"slices"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

// A Client is what the calls of a lock tell of the Client that sends them.
type Client struct {
	ID       string
	Prefix   string        // of every key
	FairWait time.Duration // how long Java services keep the first waiter of a fair lock
	Verb     func() any    // how scripts publish: Publish, PublishInShard or InBothWays
}

// A Lock is a contract.Record, except for Acquire, which each type has itself.
type Lock struct {
	kind
	traits contract.Traits
	client *Client
	keys   []string // the record, then the additional keys
	words  []any    // send.Words(keys)
	held   []string // the key that has the holds
	line   string   // the key that has the tombstones

	told     any    // the channel, as an argument
	granting string // the channel on which the Client is notified of grants; "" if processes have no wait queue

	details   []any         // arguments of releases before the channel
	forces    []any         // arguments of forced releases before the channel
	looks     []any         // the last arguments of Inspect
	heartbeat time.Duration // how often a waiter makes an attempt, to keep the entry that it has in Redis; 0: it has none

	alone    bool // the release can do its work with the first key alone
	timeless bool // the release is not told how long the line may keep the lock
}

// A kind has the scripts of a lock type.
type kind struct {
	acquire, release, rename, renew, inspect, force *send.Script
}

// scriptsOf returns the kind whose scripts are called name_verb. Those that it has not are those of its family, of plain locks, or
// of all types.
func scriptsOf(name, family string) kind {
	script := func(verb string) *send.Script {
		return Script(name+"_"+verb, family+"_"+verb, "lock_"+verb, verb)
	}
	return kind{
		acquire: script("acquire"), release: script("release"), rename: script("rename"),
		renew: script("renew"), inspect: script("inspect"), force: script("force"),
	}
}

// newLock returns the lock with these keys, of which the first is its record. Its tombstones are in keys[line].
func newLock(c *Client, k kind, t contract.Traits, announce string, keys ...string) Lock {
	line := keys[len(keys)-1]
	if t.Fenced {
		keys = append(keys, TokenKey(keys[0]))
	}
	t.ID.Name = keys[0]
	return Lock{
		kind: k, traits: t, client: c, keys: keys, words: send.Words(keys), held: keys[:1], line: line,
		told: announce, granting: announce + ":" + c.ID,
	}
}

// Keys returns the keys of l. The first one is that of its record.
func (l *Lock) Keys() []string { return l.keys }

// Traits implements contract.Lock, as BusyText does. The other methods implement contract.Commands.
func (l *Lock) Traits() *contract.Traits { return &l.traits }

func (*Lock) BusyText(ttl, left, ago time.Duration) string {
	return contract.BusyText(ttl, left, ago)
}

func (l *Lock) Channel(contract.Attempt) string { return l.told.(string) }

func (l *Lock) Grants(contract.Attempt) string { return l.granting }

func (l *Lock) ReadReply(a contract.Attempt, r send.Reply) (contract.Outcome, error) {
	g, err := contract.ParseOutcome(r)
	if g = g.WithStanding(r); l.heartbeat > 0 {
		g = g.WithEntry(a, l.heartbeat)
	}
	return g, err
}

func (l *Lock) Release(r contract.Release) send.Call { return l.leave(r, false, "") }

// RollBack sets the hold count back to what it was before the attempt, and removes the entry that a waiter has left.
func (l *Lock) RollBack(a contract.Attempt) send.Call {
	if l.heartbeat > 0 {
		return l.leave(a.AsRelease(), true, a.Counterpart)
	}
	return l.Release(a.AsRelease())
}

// leave sets the hold count. If undo is set, the caller also leaves the entry that it has as a waiter; counterpart is the
// field of its hold on the other half.
func (l *Lock) leave(r contract.Release, undo bool, counterpart string) send.Call {
	args := append(append(append(make([]any, 0, 4+len(l.details)), r.Field), l.details...), l.told, l.client.Verb())
	if !l.timeless {
		args = append(args, send.Milliseconds(r.Share))
	}
	c := l.call(l.release, upToDefaults(args, []any{r.HoldCount, r.Late, undo, counterpart}, 0, false, false, ""))
	c.Alone = l.alone
	return c
}

func (l *Lock) Renew(field string, lease time.Duration, exact bool) send.Call {
	args := []any{field + l.traits.Suffix, send.Milliseconds(lease), exact}
	return send.Call{Script: l.renew, Keys: l.held, Args: args}
}

func (l *Lock) Rename(r contract.Rename) send.Call {
	args := []any{r.From + l.traits.Suffix, r.To + l.traits.Suffix, send.Milliseconds(r.Lease), r.Until, r.Ends, r.Late}
	return send.Call{Script: l.rename, Keys: []string{l.held[0], l.line}, Args: args}
}

func (l *Lock) Inspect(field string) send.Call {
	if field != "" {
		field += l.traits.Suffix
	}
	return send.Call{Script: l.inspect, Keys: l.keys[:1], Args: append([]any{field}, l.looks...)}
}

// Force releases l by force; if seen is not empty, only the holds with these fields.
func (l *Lock) Force(seen ...string) send.Call {
	args := append(slices.Clone(l.forces), l.told, l.client.Verb())
	for _, field := range seen {
		args = append(args, field+l.traits.Suffix)
	}
	return l.call(l.force, args)
}

// call returns the call of a script that has all keys of l.
func (l *Lock) call(script *send.Script, args []any) send.Call {
	return send.Call{Script: script, Keys: l.keys, Words: l.words, Args: args}
}

// deliveryOf returns how the caller learns of a grant: see internal/lua/lock_acquire.lua. The constants need no memory as
// arguments.
func deliveryOf(a contract.Attempt) any {
	switch a.Delivery {
	case contract.Defer:
		return contract.Defer
	case contract.Push:
		return contract.Push
	case contract.Poll:
		return contract.Poll
	}
	return contract.Barge
}

// askedIn returns the number of the request, which matters only in a place of the line.
func askedIn(a contract.Attempt) any {
	if a.WaitsInLine() {
		return a.Asked
	}
	return 0
}

// grantLeaseIn returns how long a grant lasts at most, 0 for as long as usual. It matters only in a place of the line.
func grantLeaseIn(a contract.Attempt) any {
	if a.GrantLease > 0 && a.WaitsInLine() {
		return send.Milliseconds(a.GrantLease)
	}
	return 0
}
