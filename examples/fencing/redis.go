package main

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"
)

// stockScript has the token in the hash that it protects, and so in the same slot of a Cluster.
var stockScript = redis.NewScript(`
-- KEYS[1]: a hash. ARGV[1]: the token. ARGV[2]: the new stock; without it the stock is only read.
local highest = redis.call('HGET', KEYS[1], 'token')
if highest and tonumber(ARGV[1]) < tonumber(highest) then
	return redis.error_reply('STALE token, after ' .. highest)
end
redis.call('HSET', KEYS[1], 'token', ARGV[1])
if ARGV[2] then
	redis.call('HSET', KEYS[1], 'stock', ARGV[2])
end
return redis.call('HGET', KEYS[1], 'stock')
`)

// A redisStock is a hash in Redis.
type redisStock struct {
	rdb *redis.Client
	key string
}

func (s redisStock) look(ctx context.Context, token int64) (int, error) { return s.run(ctx, token) }

func (s redisStock) write(ctx context.Context, token int64, stock int) error {
	_, err := s.run(ctx, token, stock)
	return err
}

func (s redisStock) run(ctx context.Context, args ...any) (int, error) {
	stock, err := stockScript.Run(ctx, s.rdb, []string{s.key}, args...).Int()
	if err != nil && strings.HasPrefix(err.Error(), "STALE ") {
		return 0, errStale
	}
	return stock, err
}
