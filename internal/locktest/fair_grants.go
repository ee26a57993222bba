package locktest

import (
	"context"
)

// Wishes returns what the subscribed waiters of the bench's fair lock ask for, by field.
func (b *Bench) Wishes() map[string]string {
	b.Helper()
	wishes, err := b.Rdb.HGetAll(context.Background(), "relock_line:{"+b.LockName+"}").Result()
	b.Must(err)
	return wishes
}
