package locktest

import (
	"github.com/relock-go/relock"
)

// NewMultiLock returns a MultiLock with locks of every kind, acquired in several steps.
func NewMultiLock(c *relock.Client, name string) relock.Locker {
	return c.NewMultiLock(
		c.NewRWLock(name+"-r").Read(),
		c.NewLock(name+"-second"),
		c.NewFairLock(name+"-fair"),
		c.NewRWLock(name+"-w").Write(),
		c.NewMultiLock(c.NewLock(name), c.NewLock(name+"-fenced", relock.Fenced())),
	)
}
