package relock

// The wait of a RedLock between two rounds.
//
// Rules: nodes whose lock is busy announce its release; the others are asked from time to time.

import (
	"slices"
	"time"

	"github.com/relock-go/relock/internal/wake"
)

// A redWaiter sleeps between two rounds.
type redWaiter struct {
	lock         *redLock
	subscription subscription
	taken        []int // the nodes that subscription listens to
	notified     bool  // a release has ended the last sleep
}

// sleep waits until a node announces a release, or until it is time to ask again.
func (w *redWaiter) sleep(p *waitOptions, wants []want, r refusal) error {
	e := w.lock.client.engine
	p.noteObstacle(wants[0].hold, &obstacle{
		lock: w.lock, at: time.Now(),
		who: "other owners hold too many of its locks", known: r.cause != nil,
	})
	wants[0].hold.interrupt()
	if !slices.Equal(w.taken, r.taken) {
		w.taken = r.taken
		w.subscription.listenTo(w.lock.listen(r.taken))
	}
	wake, ready := w.subscription.awaited()
	p.span.waits()
	p.span.ends(PathPolled)
	delay := e.pollDelay(r.wait)
	if w.notified { // a node may announce a release before the process of the holder has noted it
		delay = min(delay, reserveTime)
	}
	w.notified = false
	if r.pause > 0 {
		if err := p.sleep(nil, nil, r.pause); err != nil {
			return err
		}
	}
	if delay > r.pause {
		slept := time.Now()
		if err := p.sleep(wake, ready, delay); err != nil {
			return err
		}
		if w.notified = time.Since(slept) < delay; w.notified {
			p.span.ends(PathNotified)
		}
	}
	w.subscription.confirm()
	return nil
}

// listen joins the release channels of nodes, with one wake channel for all. Nodes that granted are not among them:
// they announce the levels that this process has given back.
func (l *redLock) listen(nodes []int) []*wake.Listener {
	signal := make(chan struct{}, 1)
	var all []*wake.Listener
	for _, i := range nodes {
		for _, c := range l.nodes[i].channels {
			all = append(all, c.pubsub.JoinFor(signal, c.name))
		}
	}
	return all
}
