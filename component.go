package relock

// Components: the locks of which a MultiLock or a RedLock consists, in the same order everywhere.
//
// Rules: components are ordered and compared by their records, not by their lock types. For a lock of this package the
// handle is known. For a foreign Locker, one of another package, only the methods are known. The address of a server is
// all that tells it from another one, and go-redis does not know that of a Sentinel deployment. If addresses cannot tell
// servers apart, the order may differ between processes (see isToldFrom), and two Clients may lead to one Redis (see
// apart.go).

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

// A component is one of the locks of which a MultiLock or a RedLock consists.
type component struct {
	Locker

	// For a lock of this package:
	client *Client
	lock   contract.Lock // nil for a foreign Locker
	id     contract.LockID
	record contract.Record // the same lock, if it has one record on one server
	server string          // the address of the server of the record; "" if it is unknown
	dials  bool            // the Client dials by itself, so that another server may have the same address
}

// A known Locker is a lock of this package.
type known interface{ inside() *handle }

func (h *handle) inside() *handle { return h }

// insideOf returns the handle of l if l is one lock of this package, and nil otherwise.
func insideOf(l Locker) *handle {
	if k, ok := l.(known); ok && k.inside().lock != nil {
		return k.inside()
	}
	return nil
}

// isOurs reports whether l is a lock of this package. A type of the user that embeds one has the same record, but may
// have methods of its own: a MultiLock acquires it through these, because it releases it through these.
func isOurs(l Locker) bool {
	switch l.(type) {
	case *Lock, *FairLock, *ReadLock, *WriteLock, *Semaphore, *RedLock, *MultiLock:
		return true
	}
	return false
}

// componentsOf returns the components for locks.
func componentsOf(c *Client, locks []Locker) ([]component, error) {
	if c == nil {
		return nil, invalid("the Client is nil")
	}
	if len(locks) == 0 {
		return nil, invalid("no locks were passed")
	}
	components := make([]component, len(locks))
	for i, l := range locks {
		if isNil(l) {
			return nil, invalid("lock %d of %d is nil", i+1, len(locks))
		}
		if u, ok := l.(interface{ usable(context.Context) error }); ok {
			if err := u.usable(context.Background()); err != nil {
				return nil, fmt.Errorf("lock %d of %d, %s: %w", i+1, len(locks), shortName(l.Name()), err)
			}
		}
		m := component{Locker: l}
		if h := insideOf(l); h != nil {
			m.client, m.lock, m.id, m.record = h.client, h.lock, h.lock.Traits().ID, h.record
		}
		if m.record != nil {
			m.server, m.dials = m.client.server(), dialsByItself(m.client.in().rdb)
		}
		components[i] = m
	}
	return components, nil
}

// flattenMulti replaces each MultiLock by its locks.
func flattenMulti(components []component) ([]component, error) {
	var all []component
	for _, m := range components {
		l, ok := m.Locker.(*MultiLock)
		if !ok {
			all = append(all, m)
			continue
		}
		inner, err := componentsOf(l.client, l.many.Get().locks)
		if err != nil {
			return nil, err
		}
		all = append(all, inner...)
	}
	return all, nil
}

// records returns the locks with a record of which m consists.
func (m component) records() (all []component) {
	flat, _ := flattenMulti([]component{m})
	return slices.DeleteFunc(flat, func(m component) bool { return m.record == nil })
}

// ours returns the locks of this package of which m consists, or nil if it has other locks, too.
func (m component) ours() []component {
	flat, _ := flattenMulti([]component{m})
	if slices.ContainsFunc(flat, func(m component) bool { return m.lock == nil }) {
		return nil
	}
	return flat
}

// compare orders components. The order is the same in every process, as far as the addresses of the servers are known.
// RedLocks come after locks with a record, and foreign Lockers come last.
func (m component) compare(o component) int {
	if m.record == nil || o.record == nil {
		return cmp.Or(
			cmp.Compare(m.rank(), o.rank()),
			strings.Compare(m.place(), o.place()),
			strings.Compare(m.Name(), o.Name()),
		)
	}
	return cmp.Or(
		strings.Compare(m.server, o.server),
		strings.Compare(slotPart(m.id.Name), slotPart(o.id.Name)),
		strings.Compare(m.id.Name, o.id.Name),         // by record, not by lock type
		-strings.Compare(m.id.Half, o.id.Half),        // the write lock first: after the read lock it would be an upgrade
		strings.Compare(m.client.ID(), o.client.ID()), // at least in this process
	)
}

// isToldFrom reports whether m and o have the same order in every process that uses the same addresses. For components
// that are sorted by compare, it is enough to compare neighbors.
func (m component) isToldFrom(o component) bool {
	switch {
	case m.record == nil || o.record == nil:
		return m.rank() != o.rank() || m.compare(o) != 0 && m.isPlaced() && o.isPlaced()
	case m.client == o.client:
		return true
	case m.server == "" || o.server == "":
		return false
	}
	return m.server != o.server || !m.dials && !o.dials
}

// isPlaced reports whether the addresses of all servers of m are known. A foreign Locker has none.
func (m component) isPlaced() bool {
	return !slices.ContainsFunc(m.records(), func(m component) bool { return m.server == "" || m.dials })
}

// onOneServer reports whether m and o are certainly on one server.
func (m component) onOneServer(o component) bool {
	if m.client == o.client {
		return true
	}
	address := func(m component) string {
		before, _, _ := strings.Cut(m.server, "/") // without the number of the database
		return before
	}
	return m.server != "" && address(m) == address(o) && !m.dials && !o.dials
}

// where describes the lock m, and its server, for people.
func (m component) where() string {
	server := m.server
	switch {
	case m.record == nil:
		return shortName(m.Name())
	case server == "" || m.dials:
		server = "a server whose address go-redis does not know" // that of a Sentinel, for example
	}
	return fmt.Sprintf("%s on %s", shortName(m.Name()), server)
}

// codeOf returns the address of the code of a function.
func codeOf(f any) uintptr { return reflect.ValueOf(f).Pointer() }

// defaultDialer returns the code of the Dialer of a Redis client to which the user has not given one.
var defaultDialer = sync.OnceValue(func() uintptr {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:0"})
	defer func() { _ = rdb.Close() }() // it has no connections
	return codeOf(rdb.Options().Dialer)
})

// dialsByItself reports whether rdb has a Dialer of its own, which may lead to any server.
func dialsByItself(rdb redis.UniversalClient) bool {
	switch one, cluster := send.OptionsOf(rdb); {
	case one != nil:
		return codeOf(one.Dialer) != defaultDialer()
	case cluster != nil:
		return cluster.Dialer != nil
	}
	return false
}

// rank returns 0 for a lock with a record, 1 for a RedLock, and 2 for a foreign Locker.
func (m component) rank() int {
	switch {
	case m.record != nil:
		return 0
	case m.lock != nil:
		return 1
	}
	return 2
}

// place returns the place of a RedLock, and "" for other components.
func (m component) place() string {
	if l, ok := m.lock.(*redLock); ok {
		return l.place
	}
	return ""
}

// bundles reports whether m can be acquired together with o, by one script.
func (m component) bundles(o component) bool {
	if m.record == nil || o.record == nil || m.client != o.client || !isOurs(m.Locker) || !isOurs(o.Locker) ||
		m.record.Traits().Bundled == 0 || o.record.Traits().Bundled == 0 {
		return false
	}
	return !m.client.keepsToSlots() || slotPart(m.id.Name) == slotPart(o.id.Name)
}

// checkTwice returns an error if two components block each other: they are the same lock, or they have the same record
// and are not the read lock and the write lock of a RWLock.
func checkTwice(components []component) error {
	type place struct{ server, name, half string }
	seen := make(map[any]bool)
	for _, m := range components {
		if m.lock == nil && !reflect.TypeOf(m.Locker).Comparable() {
			continue
		}
		server := m.server
		if m.record != nil && (server == "" || m.dials) {
			server = m.client.ID()
		}
		var self any = m.Locker
		inTheWay := []any{self}
		if m.lock != nil {
			self = place{server, m.id.Name, m.id.Half}
			inTheWay = []any{self, place{server, m.id.Name, ""}, place{server, m.id.Name, permitsHalf}}
		}
		if m.lock != nil && (m.id.Half == "" || m.id.Half == permitsHalf) {
			inTheWay = append(inTheWay, place{server, m.id.Name, "read"}, place{server, m.id.Name, "write"})
		}
		if slices.ContainsFunc(inTheWay, func(o any) bool { return seen[o] }) {
			return invalid("the same lock was passed twice: %s", shortName(m.Name()))
		}
		seen[self] = true
	}
	return nil
}
