package relock

import (
	"testing"
)

// newSemaphore is a semaphore with one permit, which excludes as a lock does.
func newSemaphore(c *Client, name string) Locker { return c.NewSemaphore(name, 1) }

func TestSemaphore(t *testing.T) { testLocker(t, newSemaphore) }
