package testredis

import (
	"context"
	"testing"
	"time"
)

func TestJump(t *testing.T) {
	t.Parallel()
	s := StartJumpy(t)
	rdb, ctx := s.Client(), context.Background()
	if err := rdb.Set(ctx, "key", "value", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	far := func(from time.Duration) bool {
		now, err := rdb.Time(ctx).Result()
		if err != nil {
			t.Fatal(err)
		}
		return (time.Until(now) - from).Abs() < 30*time.Second
	}
	s.Jump(-time.Hour)
	if !far(-time.Hour) || rdb.TTL(ctx, "key").Val() < time.Hour {
		t.Errorf("an hour back: %v, TTL %v", rdb.Time(ctx), rdb.TTL(ctx, "key"))
	}
	s.Jump(2 * time.Hour)
	if !far(time.Hour) || rdb.Exists(ctx, "key").Val() != 0 {
		t.Errorf("an hour ahead: %v", rdb.Time(ctx))
	}
}
