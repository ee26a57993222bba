package locktest

import (
	"testing"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

// NewSmallRedBench returns a bench with three servers.
func NewSmallRedBench(t *testing.T) *RedBench {
	t.Parallel()
	b := NewBench(t, testredis.Mini(t).Addr(), testredis.Mini(t).Addr(), testredis.Mini(t).Addr())
	b.Opts = []relock.Option{relock.WithRedLockNodeTimeout(Soon)}
	return &RedBench{b, nil}
}
