package relock

// The messages that are not published by a script. Package wake has the subscribed channels, and package route which
// connection of go-redis subscribes to which channel.
//
// Rules: a script cannot publish on the channel of a Client, which may be in another shard than the lock. So a Client
// publishes there by itself. Nothing depends on that: see internal/hints.

import (
	"context"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
)

// tell publishes message on the channels of the Clients with these IDs. If that fails, nothing else happens. A Redis
// client that routes by slot sends each command to the server to which the Client is subscribed.
func (c *Client) tell(ctx context.Context, ids []string, message string) {
	for _, verb := range []any{record.Publish, record.PublishInShard} {
		if c.wire().Verb() == verb || c.wire().Verb() == record.InBothWays {
			_ = c.pipelined(ctx, func(p redis.Pipeliner) {
				for _, id := range ids {
					cmd := redis.NewCmd(ctx, verb, record.ClientKey(id), message)
					cmd.SetFirstKeyPos(1)
					_ = p.Process(ctx, cmd)
				}
			})
		}
	}
}

// pipelined sends what fill adds to a pipeline. A panic of a hook of the Redis client counts as a failure.
func (c *Client) pipelined(ctx context.Context, fill func(redis.Pipeliner)) error {
	return send.CatchPanic(func() error {
		_, err := c.in().rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			fill(p)
			return nil
		})
		return err
	})
}
