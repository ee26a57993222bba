package relock

// A round of requests to the nodes of a RedLock, and their answers so far.
//
// Rules: a round belongs to one goroutine. The nodes are asked by goroutines of their own, which may answer after the
// round is over.

import (
	"errors"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// A round is a request to nodes, and their answers so far. It belongs to one goroutine.
type round struct {
	*QuorumError
	lock    *redLock
	answers chan nodeAnswer
	missing int // number of nodes that were asked and have not answered
}

// A nodeAnswer is the answer of one node.
type nodeAnswer struct {
	node int
	err  error // nil if the node granted the request
}

func (l *redLock) newRound() *round {
	return &round{
		QuorumError: &QuorumError{
			Asked:   len(l.nodes),
			Needed:  l.needed,
			Answers: slices.Repeat([]error{errNotAsked}, len(l.nodes)),
		},
		lock:    l,
		answers: make(chan nodeAnswer, len(l.nodes)),
	}
}

// ask calls f, which asks node i, on a goroutine of its own.
func (r *round) ask(i int, f func() error) {
	r.missing++
	r.lock.client.engine().Spawn(func() { r.answers <- nodeAnswer{i, send.CatchPanic(f)} })
}

// collect waits for answers until enough returns true, and no longer than limit. If enough is nil, it waits for all
// answers. It returns the reason if the wait of p is over.
func (r *round) collect(p *send.Wait, limit time.Duration, enough func() bool) error {
	if !p.Deadline.IsZero() {
		limit = min(limit, time.Until(p.Deadline))
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for r.missing > 0 && (enough == nil || !enough()) {
		select {
		case a := <-r.answers:
			r.missing--
			r.set(a.node, a.err)
		case <-timer.C:
			return p.Over()
		case <-p.Ctx.Done():
			return ctxError(p.Ctx)
		case <-p.Closed:
			return ErrClosed
		}
	}
	return nil
}

// set records the answer of node i.
func (r *round) set(i int, err error) {
	if r.Answers[i] = err; err == nil {
		r.Granted++
	}
}

func (r *round) won() bool { return r.Granted >= r.Needed }

// count returns how many nodes answered with the error target.
func (r *round) count(target error) int {
	n := 0
	for _, err := range r.Answers {
		if errors.Is(err, target) {
			n++
		}
	}
	return n
}

// failed returns r as an error. It logs a panic among the answers, because the panic of the caller has another stack.
func (r *round) failed() error {
	send.LogPanic(r.lock.client.engine().Log, r.QuorumError)
	return r.QuorumError
}
