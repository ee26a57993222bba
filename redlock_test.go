package relock

import (
	"testing"
	"time"
)

// newRedLock is a lock over three servers.
func newRedLock(c *Client, name string) Locker {
	locks := []Locker{c.NewLock(name)}
	if all, ok := siblings.Load(c); ok {
		for _, sibling := range all.([]*Client) {
			locks = append(locks, sibling.NewLock(name))
		}
	}
	return c.NewRedLock(locks...)
}

func TestRedLock(t *testing.T) {
	suite{newLock: newRedLock, rival: newRedLock, nodes: 3, least: 20 * time.Millisecond}.run(t)
}
