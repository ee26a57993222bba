package locks

// Plain locks: their record, what they cost, and what a loss says. The file tokens_test.go has their tokens.
//
// Rules: the record is that of Redisson. A lock without contention costs two requests, and a release needs no memory
// in Redis.

import (
	"testing"

	. "github.com/relock-go/relock"
)

func TestLock(t *testing.T) {
	testLocker(t, func(c *Client, name string) Locker { return c.NewLock(name) })
}

func TestFencedLock(t *testing.T) {
	testLocker(t, func(c *Client, name string) Locker { return c.NewLock(name, Fenced()) })
}
