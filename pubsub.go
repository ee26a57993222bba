package relock

// Notifications: which connection of go-redis subscribes to which channel, on one server and in a Cluster; and the
// messages that are not published by a script. Package wake has the subscribed channels themselves.
//
// Rules: a Client has one connection for all channels. In a Cluster it has one for each shard with a lock that a
// goroutine waits for. There Redisson uses sharded pub/sub: a release is announced in the shard of its lock and nowhere
// else. A Cluster before Redis 7.0 has no sharded pub/sub; every node of it receives every message, so any node can be
// used.
//
// A script cannot publish on the channel of a Client, which may be in another shard than the lock. So a Client
// publishes there by itself. Nothing depends on that: see internal/engine/forced.go.

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

// oneServer is the router for one server, or for a server that is found by dialing.
type oneServer func() wake.Subscriber

func (dial oneServer) Node(string) wake.Node { return wake.Node{Dial: dial} }
func (dial oneServer) Moves() bool           { return false }
func (dial oneServer) Reload()               {}
func (dial oneServer) Refused(error) bool    { return false }
func (dial oneServer) Counts() bool          { return true }

// shards is the router of a Cluster.
type shards struct {
	cluster *redis.ClusterClient
	plain   atomic.Bool // the servers have no sharded pub/sub
}

// Node returns the master of the slot of a channel, or of a lock. go-redis asks the Cluster for the master only if it
// has not asked before, which it has after an attempt that found a lock busy.
func (s *shards) Node(channel string) wake.Node {
	ctx := context.Background()
	if s.plain.Load() {
		return wake.Node{Dial: func() wake.Subscriber { return s.cluster.Subscribe(ctx) }}
	}
	master, err := s.cluster.MasterForKey(ctx, channel)
	if err != nil { // the first channel that is subscribed determines the node
		return wake.Node{Dial: func() wake.Subscriber { return shard{s.cluster.SSubscribe(ctx)} }}
	}
	return wake.Node{Name: master.Options().Addr, Dial: func() wake.Subscriber { return shard{master.SSubscribe(ctx)} }}
}

// home returns the name of the node that has a key, or "" if go-redis does not know it.
func (s *shards) home(key string) string {
	master, err := s.cluster.MasterForKey(context.Background(), key)
	if err != nil {
		return ""
	}
	return master.Options().Addr
}

// group returns the slot of a lock, because one script cannot ask about locks of several slots.
func (s *shards) group(name string) string {
	if s.Moves() {
		return slotPart(name)
	}
	return ""
}

func (s *shards) Moves() bool { return !s.plain.Load() }

func (s *shards) Counts() bool { return !s.plain.Load() }

// Reload makes go-redis ask which node has which slots. By itself go-redis would continue to ask a node that is gone
// for up to a minute, longer than a lease. Its ReloadState waits until several attempts to dial such a node have
// failed. So each reload has a time limit, and the next reload asks another node first.
func (s *shards) Reload() {
	ctx, cancel := context.WithTimeout(context.Background(), send.ResendTime)
	defer cancel()
	_ = s.cluster.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
}

func (s *shards) Refused(err error) bool {
	unknown := strings.Contains(err.Error(), "unknown command") &&
		strings.Contains(strings.ToLower(err.Error()), "ssubscribe")
	if unknown {
		s.plain.Store(true)
	}
	return unknown
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

const mostTold = 1000 // messages of one pipeline

// tell publishes message on the channels of the Clients with these IDs. If that fails, nothing else happens.
func (c *Client) tell(ctx context.Context, ids []string, message string) {
	for some := range slices.Chunk(ids, mostTold) {
		if unknown := c.publish(ctx, c.publishVerb, some, message); len(unknown) > 0 { // a Cluster before Redis 7.0
			c.publish(ctx, "publish", unknown, message)
		}
	}
}

// publish publishes message on the channels of Clients, and returns the IDs of those for which Redis does not know the
// command.
func (c *Client) publish(ctx context.Context, verb string, ids []string, message string) (unknown []string) {
	var cmds []*redis.Cmd
	_ = send.CatchPanic(func() error {
		_, err := c.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, id := range ids {
				cmds = append(cmds, p.Do(ctx, verb, clientChannel(id), message))
			}
			return nil
		})
		return err
	})
	for i, cmd := range cmds {
		if err := cmd.Err(); err != nil && verb != "publish" && strings.Contains(err.Error(), "unknown command") {
			unknown = append(unknown, ids[i])
		}
	}
	return unknown
}
