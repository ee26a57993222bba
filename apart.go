package relock

// Whether two Clients lead to one Redis, where the addresses of their servers cannot tell: see component.go.
//
// Rules: servers are not asked for their identity, which needs permissions that services lack, and changes with a
// failover. Instead a Client is asked for a hold that was just acquired through another one. If it finds the field of
// that hold, which no other hold has, both lead to one Redis. If it does not, they never do, because that does not change
// while both are in use.

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/relock-go/relock/internal/engine"
)

// A peerSet has the IDs of Clients that were found to lead to another Redis.
type peerSet struct {
	mu  sync.Mutex // guards ids; a leaf
	ids map[string]struct{}
}

// mostPeers is how many IDs are remembered. Others are found again.
const mostPeers = 256

func (p *peerSet) has(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, has := p.ids[id]
	return has
}

func (p *peerSet) add(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ids == nil || len(p.ids) >= mostPeers {
		p.ids = make(map[string]struct{})
	}
	p.ids[id] = struct{}{}
}

// isOnServerOf reports whether the Redis of o has the hold that the owner of ctx has on m. Both have a record, and belong
// to different Clients. The answer is false if it is not known.
func (m component) isOnServerOf(ctx context.Context, o component) bool {
	if m.client.in().apart.has(o.client.ID()) {
		return false
	}
	owner := engine.OwnerOf(ctx)
	field := m.client.engine().HeldField(m.record, owner)
	if field == "" {
		return false
	}
	r, err := o.client.engine().Ask(ctx, m.record.Inspect(field))
	if err == nil && r[1] == 0 && m.client.engine().HeldField(m.record, owner) == field { // it was not lost meanwhile
		m.client.in().apart.add(o.client.ID())
	}
	return err == nil && r[1] > 0
}

// A doubt is about two nodes, whose servers cannot be told apart by their addresses.
type doubt struct {
	nodes   [2]int
	records [2]component // one of each node
}

// onOneRedis returns the error for two nodes on one Redis.
func onOneRedis(m, o component) error {
	return invalid("two locks are on one Redis, %s and %s: each Redis has one vote", m.where(), o.where())
}

// doubtsAbout returns the doubts about components.
func doubtsAbout(components []component) (doubts []doubt) {
	for j, c := range components {
		for i := range j {
			for _, o := range components[i].records() {
				for _, r := range c.records() {
					if !o.isToldFrom(r) {
						doubts = append(doubts, doubt{[2]int{i, j}, [2]component{o, r}})
					}
				}
			}
		}
	}
	return doubts
}

// checkApart returns an error if two nodes that have answered in the round r are on one Redis: then a RedLock of them
// is never held. It may not find that out, and then tries again in the next round.
func (v *redVote) checkApart(ctx context.Context, r *round) error {
	l := v.lock
	if len(l.doubts) == 0 {
		return nil
	}
	within, done := context.WithTimeout(v.owner.In(ctx), l.grace())
	defer done()
	errs := forEach(l.doubts, func(_ int, d doubt) error {
		for i, granted := range d.nodes {
			other := d.nodes[1-i]
			if r.Answers[granted] != nil || r.Answers[other] != nil && r.Answers[other] != errTaken {
				continue
			}
			if d.records[i].isOnServerOf(within, d.records[1-i]) {
				return onOneRedis(d.records[0], d.records[1])
			}
			return nil
		}
		return nil
	})
	for _, err := range errs {
		if errors.Is(err, ErrInvalid) { // not the panic of a hook
			l.same.Get().Store(&err)
			return err
		}
	}
	return nil
}

// unsettled describes the first two nodes that may be on one Redis, or returns "" if there are none.
func (l *redLock) unsettled() string {
	for _, d := range l.doubts {
		if r := d.records; !r[0].client.in().apart.has(r[1].client.ID()) && !r[1].client.in().apart.has(r[0].client.ID()) {
			return fmt.Sprintf(" (%s and %s may be on one Redis)", r[0].where(), r[1].where())
		}
	}
	return ""
}
