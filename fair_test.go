package relock

import "testing"

func TestFairLock(t *testing.T) {
	testLocker(t, func(c *Client, name string) Locker { return c.NewFairLock(name) })
}
