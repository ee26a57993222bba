package relock

import (
	"testing"
)

// newMultiLock is a lock of locks of every kind, taken by several scripts.
func newMultiLock(c *Client, name string) Locker {
	return c.NewMultiLock(
		c.NewRWLock(name+"-r").Read(),
		c.NewLock(name+"-second"),
		c.NewFairLock(name+"-fair"),
		c.NewRWLock(name+"-w").Write(),
		c.NewMultiLock(c.NewLock(name), c.NewLock(name+"-fenced", Fenced())),
	)
}

func TestMultiLock(t *testing.T) { testLocker(t, newMultiLock) }

// The same by one script.
func TestMultiLockOfOneKind(t *testing.T) {
	testLocker(t, func(c *Client, name string) Locker {
		return c.NewMultiLock(c.NewLock(name+"-b"), c.NewLock(name), c.NewLock(name+"-a"))
	})
}
