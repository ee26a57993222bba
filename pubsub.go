package relock

// Wake-ups: which connection of go-redis hears which channel, on one server and on a Cluster. Package wake has the
// subscribed channels themselves.
//
// Rules:
//   - A Client has one connection for all channels; on a Cluster it has one for each shard with a lock that a goroutine
//     waits for. Sharded pub/sub is what Redisson uses there: a release is announced in the shard of its lock and
//     nowhere else. A Cluster before Redis 7.0 has no sharded pub/sub; there every node receives every message, and any
//     node will do.

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

// oneServer is the router for one server, or for a server that dialling finds.
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

// Node is the master of the slot of a channel, or of a lock. go-redis has to ask the Cluster for the master only
// when it has not asked before: not after a lock was busy.
func (s *shards) Node(channel string) wake.Node {
	ctx := context.Background()
	if s.plain.Load() {
		return wake.Node{Dial: func() wake.Subscriber { return s.cluster.Subscribe(ctx) }}
	}
	master, err := s.cluster.MasterForKey(ctx, channel)
	if err != nil { // the first channel that is subscribed decides which node it is
		return wake.Node{Dial: func() wake.Subscriber { return shard{s.cluster.SSubscribe(ctx)} }}
	}
	return wake.Node{Name: master.Options().Addr, Dial: func() wake.Subscriber { return shard{master.SSubscribe(ctx)} }}
}

// home is the name of the node that has a key; "" where go-redis does not know.
func (s *shards) home(key string) string {
	master, err := s.cluster.MasterForKey(context.Background(), key)
	if err != nil {
		return ""
	}
	return master.Options().Addr
}

// group is the slot of a lock: one script cannot ask about locks of several slots.
func (s *shards) group(name string) string {
	if s.Moves() {
		return slotPart(name)
	}
	return ""
}

func (s *shards) Moves() bool { return !s.plain.Load() }

func (s *shards) Counts() bool { return !s.plain.Load() }

// Reload makes go-redis ask which node has which slots. By itself go-redis would go on asking a
// node that is gone for up to a minute, longer than a lease. Its ReloadState
// waits for such a node until dialling has failed, several times. So each reload has
// a time limit: the next reload asks another node first.
func (s *shards) Reload() {
	ctx, cancel := context.WithTimeout(context.Background(), send.ResendTime)
	defer cancel()
	_ = s.cluster.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
}

func (s *shards) Refused(err error) bool {
	unknown := strings.Contains(err.Error(), "unknown command") && strings.Contains(strings.ToLower(err.Error()), "ssubscribe")
	if unknown {
		s.plain.Store(true)
	}
	return unknown
}

// A shard is a connection to subscribe on in one shard.
type shard struct{ *redis.PubSub }

func (s shard) Subscribe(ctx context.Context, channels ...string) error {
	return s.SSubscribe(ctx, channels...)
}

// Unsubscribe sends one command for each channel: one command cannot name channels of several slots.
func (s shard) Unsubscribe(ctx context.Context, channels ...string) error {
	for _, ch := range channels {
		if err := s.SUnsubscribe(ctx, ch); err != nil {
			return err
		}
	}
	return nil
}
