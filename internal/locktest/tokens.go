package locktest

import (
	"context"

	"github.com/relock-go/relock/internal/record"
)

// Counter is the token counter in Redis.
func (b *Bench) Counter() int64 {
	b.Helper()
	n, err := b.Rdb.Get(context.Background(), record.TokenKey(b.LockName)).Int64()
	b.Must(err)
	return n
}
