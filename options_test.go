package relock

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
)

func TestNewRefusesInvalidOptions(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	var nilClient *redis.Client
	for text, c := range map[string]struct {
		rdb  redis.UniversalClient
		opts []Option
	}{
		"WithWatchdogTimeout(99ms)": {rdb, []Option{WithWatchdogTimeout(99 * time.Millisecond)}},
		"WithWatchdogTimeout(-1s)":  {rdb, []Option{WithWatchdogTimeout(-time.Second)}},
		"WithMaxWakeDelay(0s)":      {rdb, []Option{WithMaxWakeDelay(0)}},
		"WithMaxWakeDelay(-1ns)":    {rdb, []Option{WithMaxWakeDelay(-1)}},
		"WithLogger(nil)":           {rdb, []Option{WithLogger(nil)}},
		"WithObserver(nil)":         {rdb, []Option{WithObserver(nil)}},
		"WithNodeTimeout(0s)":       {rdb, []Option{WithNodeTimeout(0)}},
		"WithSyncedReplicas(0, 1s)": {rdb, []Option{WithSyncedReplicas(0, time.Second)}},
		"WithSyncedReplicas(1, 1µs": {rdb, []Option{WithSyncedReplicas(1, time.Microsecond)}},
		"ReadTimeout":               {rdb, []Option{WithSyncedReplicas(1, time.Minute)}},
		"option 2 is nil":           {rdb, []Option{WithMaxWakeDelay(1), nil}},
		"Redis client is nil":       {nil, nil},
		"client is nil":             {nilClient, nil},
		"Ring":                      {ring, nil},
	} {
		c, err := New(c.rdb, c.opts...)
		assert.Nil(t, c, text)
		assert.ErrorIs(t, err, ErrInvalid)
		assert.ErrorContains(t, err, text)
	}
}
