package relock

import "testing"

func newReadLock(c *Client, name string) Locker  { return c.NewRWLock(name).Read() }
func newWriteLock(c *Client, name string) Locker { return c.NewRWLock(name).Write() }

func TestWriteLock(t *testing.T) { testLocker(t, newWriteLock) }

func TestReadLock(t *testing.T) { testSharedLocker(t, newReadLock, newWriteLock, true) }
