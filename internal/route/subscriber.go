package route

// Connections for subscriptions: to plain channels, to those of a shard, or to both.

import (
	"cmp"
	"context"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

// A subscribing is a Redis client, or one of its nodes, that opens connections for subscriptions.
type subscribing interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
	SSubscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// connect opens a connection for subscriptions to the channels on which the servers announce.
func (s *Servers) connect(to subscribing) wake.Subscriber {
	switch s.Verb() {
	case record.Publish:
		return to.Subscribe(context.Background())
	case record.PublishInShard:
		return shard{to.SSubscribe(context.Background())}
	}
	return &bothWays{shard: shard{to.Subscribe(context.Background())}}
}

// A shard is a connection for the subscriptions in one shard.
type shard struct{ *redis.PubSub }

func (s shard) Subscribe(ctx context.Context, channels ...string) error {
	return s.SSubscribe(ctx, channels...)
}

// Unsubscribe sends one command for each channel, because one command cannot name channels of several slots.
func (s shard) Unsubscribe(ctx context.Context, channels ...string) error {
	for _, ch := range channels {
		if err := s.SUnsubscribe(ctx, ch); err != nil {
			return err
		}
	}
	return nil
}

// bothWays is a connection whose channels are subscribed in both ways. Redis answers each channel twice, and the link
// gets the second answer, unless that is a missing permission: a user may have those for its servers only. An answer
// that says nothing about a channel, because Redis is busy, does not count: the link replaces a connection that has got
// one.
type bothWays struct {
	shard
	half  bool // the last answer was the first one of its channel
	first any  // the first answer; nil: it was an error
}

func (b *bothWays) Subscribe(ctx context.Context, channels ...string) error {
	return cmp.Or(b.PubSub.Subscribe(ctx, channels...), b.shard.Subscribe(ctx, channels...))
}

func (b *bothWays) Unsubscribe(ctx context.Context, channels ...string) error {
	return cmp.Or(b.PubSub.Unsubscribe(ctx, channels...), b.shard.Unsubscribe(ctx, channels...))
}

func (b *bothWays) Receive(ctx context.Context) (any, error) {
	for {
		message, err := b.PubSub.Receive(ctx)
		s, confirms := message.(*redis.Subscription)
		if confirms && strings.HasSuffix(s.Kind, "unsubscribe") || !confirms && !wake.Refuses(err) {
			return message, err
		}
		switch b.half = !b.half; {
		case b.half:
			b.first = message
		case b.first != nil && send.RefusedWith(err, "NOPERM"):
			return b.first, nil
		default:
			return message, err
		}
	}
}
