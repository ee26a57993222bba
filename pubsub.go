package relock

// Notifications: which connection of go-redis subscribes to which channel, on one server and in a Cluster; and the
// messages that are not published by a script. Package wake has the subscribed channels themselves.
//
// Rules: servers in Cluster mode announce on sharded channels, and all others on plain ones; a Client that does not
// know the mode of its servers publishes and listens in both ways, which any other client hears: see servers.go. A Client
// has one connection for all channels. If its Redis client routes by slot, it has one for each server with a lock that
// a goroutine waits for: in a Cluster, a release is announced in the shard of its lock and nowhere else, and of several
// servers without Cluster mode, only the one that runs a script knows who hears its messages. A Cluster before Redis
// 7.0 has no sharded channels; every node of it receives every message, so any node can be used.
//
// A script cannot publish on the channel of a Client, which may be in another shard than the lock. So a Client
// publishes there by itself. Nothing depends on that: see internal/hints.

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

// oneServer is the router for a server that is found by dialing, and is not in Cluster mode.
type oneServer func() wake.Subscriber

func (dial oneServer) Node(string) wake.Node { return wake.Node{Dial: dial} }
func (dial oneServer) Moves() bool           { return false }
func (dial oneServer) Reload()               {}
func (dial oneServer) Refused(error) bool    { return false }
func (dial oneServer) Counts() bool          { return true }
func (dial oneServer) publishVerb() any      { return record.Publish }

// A subscribing is a Redis client, or one of its nodes, that opens connections for subscriptions.
type subscribing interface {
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
	SSubscribe(ctx context.Context, channels ...string) *redis.PubSub
}

// ways are how the servers announce.
type ways struct {
	verb     any
	noShards atomic.Bool // it was found out that the servers have no sharded channels
}

func (w *ways) publishVerb() any {
	if w.noShards.Load() {
		return record.Publish
	}
	return w.verb
}

// connect opens a connection for subscriptions to the channels on which the servers announce.
func (w *ways) connect(to subscribing) wake.Subscriber {
	switch w.publishVerb() {
	case record.Publish:
		return to.Subscribe(context.Background())
	case record.PublishInShard:
		return shard{to.SSubscribe(context.Background())}
	}
	return &bothWays{shard: shard{to.Subscribe(context.Background())}}
}

// Refused reports whether err says that the servers have no sharded channels. From then on plain ones are used.
func (w *ways) Refused(err error) bool {
	unknown := strings.Contains(err.Error(), "unknown command") &&
		strings.Contains(strings.ToLower(err.Error()), "ssubscribe")
	if unknown {
		w.noShards.Store(true)
	}
	return unknown
}

// An unknown is the router for a client of an unknown type, such as an AutoPipeliner, which does not tell which server
// has a key. The servers are asked for that once one of them has refused a channel because of it.
type unknown struct {
	ways
	rdb   redis.UniversalClient
	slots atomic.Pointer[[]redis.ClusterSlot] // nil: nothing has said that the servers are those of a Cluster
}

// Node returns the server that has the slot of a channel, as far as the slots are known. Otherwise the first channel
// that is subscribed determines it.
func (u *unknown) Node(channel string) wake.Node {
	home := oneServer(func() wake.Subscriber { return u.connect(u.rdb) }).Node(channel)
	if all := u.slots.Load(); all != nil {
		slot := slotOf(channel)
		for _, some := range *all {
			if some.Start <= slot && slot <= some.End && len(some.Nodes) > 0 {
				home.Name = cmp.Or(some.Nodes[0].ID, some.Nodes[0].Addr)
			}
		}
	}
	return home
}

func (u *unknown) Moves() bool {
	all := u.slots.Load()
	return all != nil && len(*all) > 0
}

func (u *unknown) Counts() bool { return true }

// Refused also notes that the servers may be those of a Cluster: one of them has said so, or is too old to say it.
func (u *unknown) Refused(err error) bool {
	reconnects := u.ways.Refused(err)
	if reconnects || redis.HasErrorPrefix(err, "MOVED") {
		u.slots.CompareAndSwap(nil, new([]redis.ClusterSlot))
	}
	return reconnects
}

// Reload asks which node has which slots, if the servers may be those of a Cluster.
func (u *unknown) Reload() {
	if u.slots.Load() == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), send.ResendTime)
	defer cancel()
	_ = send.CatchPanic(func() error {
		all, err := u.rdb.ClusterSlots(ctx).Result()
		if err == nil {
			u.slots.Store(&all)
		}
		return err
	})
}

// shards is the router for a Redis client that routes by slot.
type shards struct {
	ways
	rdb     redis.UniversalClient
	cluster send.Cluster // rdb, or the client that it embeds
}

// Node returns the master of the slot of a channel, or of a lock. go-redis asks for the master only if it has not asked
// before, which it has after an attempt that found a lock busy.
func (s *shards) Node(channel string) wake.Node {
	home := oneServer(func() wake.Subscriber { return s.connect(s.rdb) }).Node(channel)
	if !s.Counts() {
		return home
	}
	master, err := s.cluster.MasterForKey(context.Background(), channel)
	if err != nil { // the first channel that is subscribed determines the node
		return home
	}
	return wake.Node{Name: master.Options().Addr, Dial: func() wake.Subscriber { return s.connect(master) }}
}

// home returns the name of the node that has a key, or "" if go-redis does not know it.
func (s *shards) home(key string) string {
	master, err := s.cluster.MasterForKey(context.Background(), key)
	if err != nil {
		return ""
	}
	return master.Options().Addr
}

func (s *shards) Moves() bool { return s.Counts() }

// Counts reports false for a Cluster before Redis 7.0: other servers than that of the slot have subscribers, too.
func (s *shards) Counts() bool { return s.verb == record.InBothWays || !s.noShards.Load() }

// Reload makes go-redis ask which node has which slots. By itself go-redis would continue to ask a node that is gone
// for up to a minute, longer than a lease. Its ReloadState waits until several attempts to dial such a node have
// failed. So each reload has a time limit, and the next reload asks another node first.
func (s *shards) Reload() {
	ctx, cancel := context.WithTimeout(context.Background(), send.ResendTime)
	defer cancel()
	_ = s.cluster.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
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

const mostTold = 1000 // messages of one pipeline

// tell publishes message on the channels of the Clients with these IDs. If that fails, nothing else happens. A Redis
// client that routes by slot sends each command to the server to which the Client is subscribed.
func (c *Client) tell(ctx context.Context, ids []string, message string) {
	for some := range slices.Chunk(ids, mostTold) {
		for _, verb := range []any{record.Publish, record.PublishInShard} {
			if c.publishVerb() == verb || c.publishVerb() == record.InBothWays {
				c.publish(ctx, verb, some, message)
			}
		}
	}
}

// publish publishes message on the channels of Clients.
func (c *Client) publish(ctx context.Context, verb any, ids []string, message string) {
	_ = send.CatchPanic(func() error {
		_, err := c.in().rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, id := range ids {
				cmd := redis.NewCmd(ctx, verb, record.ClientChannel(id), message)
				cmd.SetFirstKeyPos(1)
				_ = p.Process(ctx, cmd)
			}
			return nil
		})
		return err
	})
}
