package locktest

import (
	"context"
	"fmt"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

func NewFairLock(c *relock.Client, name string) relock.Locker { return c.NewFairLock(name) }

// Queue returns the queue of the bench's fair lock, as it is in Redis.
func (b *Bench) Queue() []string {
	b.Helper()
	queue, err := b.Rdb.LRange(context.Background(), "redisson_lock_queue:{"+b.LockName+"}", 0, -1).Result()
	b.Must(err)
	return queue
}

func (b *Bench) AwaitQueue(n int) {
	b.Helper()
	testredis.Await(b, fmt.Sprintf("%d wait in the queue", n), 2*Soon, func() bool { return len(b.Queue()) == n })
}
