package engine

// The drain of a Client that shuts down: how many of its holds are left.

import "sync/atomic"

// A drain counts the holds that a Client still has while it shuts down.
type drain struct {
	left atomic.Int64
	done chan struct{} // closed when there are no holds left
}

// begin adds holds, and end subtracts holds. The call of end that leaves none closes done.
func (d *drain) begin(holds int) { d.left.Add(int64(holds)) }

func (d *drain) end(holds int) {
	if holds > 0 && d.left.Add(-int64(holds)) == 0 {
		close(d.done)
	}
}
