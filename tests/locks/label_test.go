package locks

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A Client for which no label was passed has the host name and the process ID as its label.
func TestDefaultLabel(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client(locktest.Unlabeled)
	require.NoError(t, c.NewLock(b.LockName).Do(ctx, func(context.Context) error { return nil }))
	host, err := os.Hostname()
	require.NoError(t, err)
	testredis.Await(b, "it is written", locktest.Soon, func() bool {
		return b.Rdb.HGet(ctx, record.LabelKey(c.ID()), "label").Val() == fmt.Sprintf("%s:%d", host, os.Getpid())
	})
}

// The default label is no part of an error, which may reach a client of the service, and by which errors are grouped.
func TestDefaultLabelIsNotInErrors(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	l := b.Client(locktest.Unlabeled).NewLock(b.LockName)
	require.NoError(t, l.Lock(context.Background()))
	ctx, cancel := context.WithTimeout(ContextWithOwner(context.Background()), 100*time.Millisecond)
	defer cancel()
	assert.ErrorContains(t, l.Lock(ctx), "of this process holds it")
	require.NoError(t, l.Unlock(context.Background()))
}
