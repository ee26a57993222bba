package locktest

import (
	"github.com/relock-go/relock"
)

func NewReadLock(c *relock.Client, name string) relock.Locker { return c.NewRWLock(name).Read() }

func NewWriteLock(c *relock.Client, name string) relock.Locker { return c.NewRWLock(name).Write() }
