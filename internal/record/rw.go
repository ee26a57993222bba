package record

// The halves of read/write locks.

import (
	"fmt"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

var (
	read  = scriptsOf("read", "rw")
	write = scriptsOf("write", "rw")
)

// errUpgrade is the error for a caller that holds the read lock and asks for the write lock.
var errUpgrade = fmt.Errorf(
	"%w: the caller holds the read lock and would wait for itself: release the read lock first, or acquire the write "+
		"lock before the read lock",
	send.ErrInvalid,
)

// errTooDeep is the error for an owner that holds the read lock MostHoldCount times and asks for it again.
var errTooDeep = fmt.Errorf(
	"%w: the caller already holds the read lock %d times, which is the limit for one owner",
	send.ErrInvalid,
	MostHoldCount,
)

// A Read and a Write are the halves of an RWLock. Its keys are the lock, the writers that wait, their wait queue, and the token
// counter if the lock is fenced. details is the prefix of the keys of read leases.
type (
	Read  struct{ Lock }
	Write struct{ Lock }
)

// NewReadWrite returns the halves of the read/write lock that users call t.Name.
func NewReadWrite(c *Client, t contract.Traits) (*Read, *Write) {
	key := c.Prefix + t.Name
	half := func(k kind, name string) Lock {
		t.ID.Half, t.Type = name, name
		keys := append([]string{key, PrefixName("relock_rwlock_writers", key)}, WritersLineKeys(key)...)
		l := newLock(c, k, t, PrefixName("redisson_rwlock", key), keys...)
		l.details = []any{SuffixName(key, "")}
		l.forces = append([]any{name}, l.details...)
		return l
	}
	r, w := &Read{half(read, "read")}, &Write{half(write, "write")}
	r.granting, r.looks = "", []any{"read", r.details[0]}
	r.traits.Fenced, r.traits.Admission = false, t.Limits.OfReaders()
	r.traits.MaxHoldCount, r.traits.TooMany = MostHoldCount, errTooDeep
	w.traits.Suffix, w.looks, w.heartbeat = WriteSuffix, []any{"write"}, WriterHeartbeat
	r.traits.Counterpart, w.traits.Counterpart = w.traits.ID, r.traits.ID
	return r, w
}

func (l *Read) BusyText(_, _, _ time.Duration) string { // the reply does not tell which of the two
	return "another process (or Client) holds the write lock, or waits for it"
}

func (l *Read) Acquire(a contract.Attempt) send.Call {
	return send.Call{
		Script: l.acquire,
		Keys:   l.keys[:4],
		Args: upToDefaults([]any{a.Field, send.Milliseconds(a.Lease), l.details[0]},
			[]any{a.HoldCount, a.Counterpart}, 1, ""),
	}
}

func (l *Read) Renew(field string, lease time.Duration, exact bool) send.Call {
	c := l.Lock.Renew(field, lease, exact)
	c.Args = append(c.Args, l.details...)
	return c
}

func (l *Read) Rename(r contract.Rename) send.Call {
	c := l.Lock.Rename(r)
	c.Args = slices.Insert(c.Args, 5, any(r.Splits), l.details[0])
	return c
}

func (l *Write) Acquire(a contract.Attempt) send.Call {
	life := WriterLife
	if a.NoWait {
		life = 0
	}
	return l.call(l.acquire, upToDefaults(
		[]any{a.Field, send.Milliseconds(a.Lease), l.details[0], send.Milliseconds(life), l.told, l.client.Verb()},
		[]any{a.HoldCount, deliveryOf(a), a.Counterpart, askedIn(a), a.TokensWanted(l.traits.Fenced), grantLeaseIn(a)},
		1, contract.Defer, "", 0, 1, 0))
}

func (l *Write) ReadReply(a contract.Attempt, r send.Reply) (contract.Outcome, error) {
	if r[0] == -2 {
		return contract.Outcome{}, errUpgrade
	}
	return l.Lock.ReadReply(a, r)
}
