package relock

// Members: the locks of which a MultiLock or a RedLock consists.
//
// Rules: members are ordered by their names, which every process knows, and then by the addresses of their servers. Two
// members are tied if another process may have to acquire them, or what they consist of, in the other order: if they have
// one name, and go-redis does not know the address of one of them; or if one of them has several records, with any names.

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"strings"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
)

// A member is one of the locks of which a MultiLock or a RedLock consists.
type member struct {
	Locker
	in *handle // of a lock of this package, also if a type of the user embeds it; nil for a foreign Locker
	// server is where the records are. It is the same in every process that uses the same addresses, and "" if go-redis
	// does not know the address of a server, because it is behind a Sentinel, or the Redis client has a Dialer of its own.
	server  string
	several bool // it has several records: a RedLock, or a type of the user that embeds a MultiLock
}

// A known Locker is a lock of this package, or embeds one.
type known interface{ inside() *handle }

func (h *handle) inside() *handle { return h }

// record returns the lock if it has a record on one server, and nil otherwise.
func (h *handle) record() contract.Record {
	if h == nil {
		return nil
	}
	if _, red := h.lock.(*redLock); red {
		return nil
	}
	return h.lock
}

// key returns the name by which m is ordered: with the prefix of the Client, if it is a lock of this package.
func (m member) key() string {
	if m.in != nil {
		return m.in.lock.Traits().ID.Name
	}
	return m.Name()
}

// membersOf returns the members that locks are.
func membersOf(c *Client, locks []Locker) ([]member, error) {
	if c == nil {
		return nil, invalid("the Client is nil")
	}
	if len(locks) == 0 {
		return nil, invalid("no locks were passed")
	}
	members := make([]member, len(locks))
	for i, l := range locks {
		if isNil(l) {
			return nil, invalid("lock %d of %d is nil", i+1, len(locks))
		}
		members[i].Locker = l
		k, ok := l.(known)
		if !ok {
			continue
		}
		h := k.inside()
		if err := h.usable(context.Background()); err != nil {
			return nil, fmt.Errorf("lock %d of %d, %s: %w", i+1, len(locks), shortName(l.Name()), err)
		}
		members[i].several = h.record() == nil
		if h.lock != nil {
			members[i].in, members[i].server = h, h.client.in().servers.Address()
		}
	}
	return members, nil
}

// flat replaces each MultiLock among members by its locks; and each RedLock, too, if deep is set.
func flat(members []member, deep bool) (all []member) {
	for _, m := range members {
		red := m.red()
		switch many, ok := m.Locker.(*MultiLock); {
		case ok:
			all = append(all, flat(many.many.Get().locks, deep)...)
		case deep && red != nil:
			for _, n := range red.nodes {
				all = append(all, flat(n.locks, deep)...)
			}
		default:
			all = append(all, m)
		}
	}
	return all
}

// red returns the lock of m if it is a RedLock, or nil.
func (m member) red() (l *redLock) {
	if m.in != nil {
		l, _ = m.in.lock.(*redLock)
	}
	return l
}

// isTied reports whether another process may have to acquire m and o in the other order.
func (m member) isTied(o member) bool {
	return m.several || o.several || m.key() == o.key() && (m.server == "" || o.server == "")
}

// onOneServer reports whether m, which has a record, and o certainly have one on one server.
func (m member) onOneServer(o member) bool {
	address := func(m member) string {
		before, _, _ := strings.Cut(m.server, "/") // without the number of the database
		return before
	}
	return o.in.record() != nil && (m.in.client == o.in.client || m.server != "" && address(m) == address(o))
}

// where describes the lock m, and its server, for people.
func (m member) where() string {
	return fmt.Sprintf("%s on %s", shortName(m.Name()), m.server)
}

// checkTwice returns an error if two members would wait for each other: they have the same name on the same server.
func checkTwice(members []member) error {
	type place struct{ server, name string }
	seen := make(map[any]bool)
	for _, m := range flat(members, true) {
		var self any = m.Locker
		switch {
		case m.in != nil:
			self = place{cmp.Or(m.server, m.in.client.ID()), m.key()}
		case !reflect.TypeOf(m.Locker).Comparable():
			continue
		}
		if seen[self] {
			return invalid("the same lock, or both halves of a read/write lock, were passed: %s", shortName(m.Name()))
		}
		seen[self] = true
	}
	return nil
}

// acquire acquires m for the owner of ctx. If m is a lock of this package, r.Report gets the outcome.
func (m member) acquire(ctx context.Context, r engine.Request) (ok bool, err error) {
	switch m.Locker.(type) {
	case *Lock, *FairLock, *ReadLock, *WriteLock, *Semaphore, *RedLock: // a type that embeds one may have methods of its own
		return m.in.client.engine().Acquire(ctx, engine.OwnerOf(ctx), r, m.in.lock)
	}
	switch {
	case r.Wait >= 0:
		return m.TryLock(ctx, r.Wait, r.Lease)
	case r.Lease > 0:
		err = m.LockLease(ctx, r.Lease)
	default:
		err = m.Lock(ctx)
	}
	return err == nil, err
}
