package relock

import (
	"testing"
)

func TestLock(t *testing.T) {
	testLocker(t, func(c *Client, name string) Locker { return c.NewLock(name) })
}

func TestFencedLock(t *testing.T) {
	testLocker(t, func(c *Client, name string) Locker { return c.NewLock(name, Fenced()) })
}
