package locktest

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/require"
)

// A ReleaseKind is a script that releases a lock for which others wait.
type ReleaseKind struct {
	Name string
	Mine func(c *relock.Client, name string) contract.Record
	Wait func(c *relock.Client, name string) contract.Record // the same lock, for those that wait

	// Needs are the commands without which the script cannot release a lock for which nobody waits.
	Needs string
}

func RecordOfLock(c *relock.Client, name string) contract.Record { return RecordOf(c.NewLock(name)) }

func RecordOfFair(c *relock.Client, name string) contract.Record {
	return RecordOf(c.NewFairLock(name))
}

func RecordOfReader(c *relock.Client, name string) contract.Record {
	return RecordOf(c.NewRWLock(name).Read())
}

func RecordOfWriter(c *relock.Client, name string) contract.Record {
	return RecordOf(c.NewRWLock(name).Write())
}

func RecordOfSemaphore(c *relock.Client, name string) contract.Record {
	return RecordOf(c.NewSemaphore(name, 1))
}

// A Released lock is what a test of a release looks at.
type ReleaseBench struct {
	*Bench
	Kind            ReleaseKind
	Me, Alive, Dead *relock.Client
}

func AttemptOf(c *relock.Client) contract.Attempt {
	return contract.Attempt{Field: c.ID() + ":1:01", Lease: time.Minute, HoldCount: 1, Delivery: contract.Push, Asked: 1}
}

func (b *ReleaseBench) Eval(rdb *redis.Client, c send.Call) any {
	b.Helper()
	answer, err := rdb.Eval(context.Background(), c.Script.Source(), c.Keys, c.Args...).Result()
	if err != nil {
		return err
	}
	return answer
}

// Does runs a script that must not fail.
func (b *ReleaseBench) Does(c send.Call, first int64) {
	b.Helper()
	answer := b.Eval(b.Rdb, c)
	require.IsType(b, []any{}, answer)
	require.Equal(b, first, answer.([]any)[0], answer)
}

// Subscribes returns a subscription to the channel on which c is granted the lock.
func (b *ReleaseBench) Subscribes(c *relock.Client) *redis.PubSub {
	s := b.Rdb.Subscribe(context.Background(), b.Kind.Wait(c, b.LockName).Grants(AttemptOf(c)))
	_, err := s.Receive(context.Background())
	b.Must(err)
	return s
}

func NewReleaseBench(t *testing.T, s *testredis.Server, kind ReleaseKind) *ReleaseBench {
	b := &ReleaseBench{Bench: NewBench(t, s.Addr()), Kind: kind}
	b.Me, b.Alive, b.Dead = b.Client(), b.Client(), b.Client()
	hears := b.Subscribes(b.Alive)
	t.Cleanup(func() {
		b.Must(hears.Close())
		b.Must(b.Rdb.FlushDB(context.Background()).Err())
	})
	return b
}
