// Package route has what a Client knows about its Redis client, and about the servers behind it: which server has which
// key and which channel, on which kind of channel the servers announce, and where they are.
//
// Rules: a Redis client that routes by slot sends each key to the server of its slot; it is a *redis.ClusterClient, or
// embeds one. Servers in Cluster mode have sharded channels, on which the other clients of these servers, and Redisson,
// publish and listen. These are two things: the client of redis.NewFailoverClusterClient routes by slot, and its servers
// are not in Cluster mode. So the servers determine the channels, and no request asks them: a Client whose servers can be
// of either mode publishes and listens in both ways, which any other client hears. What a Redis client can do is asked
// through its methods, because it may be of a type of the user that embeds a type of go-redis.
//
// A Client has one connection for all channels. If its Redis client routes by slot, it has one for each server with a
// lock that a goroutine waits for: in a Cluster, a release is announced in the shard of its lock and nowhere else, and of
// several servers without Cluster mode, only the one that runs a script knows who hears its messages. A Cluster before
// Redis 7.0 has no sharded channels; every node of it receives every message, so any node can be used.
package route

import (
	"cmp"
	"context"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

// Servers are the servers behind a Redis client. They implement engine.Servers.
type Servers struct {
	rdb     redis.UniversalClient
	cluster send.Cluster // rdb, or the client that it embeds, if it routes by slot; or nil
	verb    any          // how they announce, if they have sharded channels
	asks    bool         // rdb, such as an AutoPipeliner, does not tell which server has a key

	noShards atomic.Bool                         // it was found out that the servers have no sharded channels
	slots    atomic.Pointer[[]redis.ClusterSlot] // if asks is set; nil: nothing has said that the servers are those of a Cluster
}

// New returns what is known about the servers of rdb.
func New(rdb redis.UniversalClient) *Servers {
	s := &Servers{rdb: rdb, cluster: send.ClusterOf(rdb), verb: record.InBothWays}
	switch one, many := send.OptionsOf(rdb); {
	case s.cluster == nil && one != nil:
		s.verb = record.Publish
	case s.cluster == nil:
		s.asks = true
	case many != nil && many.ClusterSlots == nil: // go-redis asks the servers for their slots
		s.verb = record.PublishInShard
	}
	return s
}

// Verb returns how scripts publish on the servers: see internal/lua/announce.lua.
func (s *Servers) Verb() any {
	if s.noShards.Load() {
		return record.Publish
	}
	return s.verb
}

// RoutesBySlot reports whether the Redis client sends each key to the server of its slot.
func (s *Servers) RoutesBySlot() bool { return s.cluster != nil }

// Group returns the slot of a lock if one script cannot ask about locks of several slots, or if that is not known.
func (s *Servers) Group(name string) string {
	if s.verb == record.Publish {
		return ""
	}
	return SlotPart(name)
}

// Node returns the server of the slot of a channel, or of a lock, as far as it is known. Otherwise the first channel that
// is subscribed determines it. go-redis asks for a master only if it has not asked before, which it has after an attempt
// that found a lock busy.
func (s *Servers) Node(channel string) wake.Node {
	home := wake.Node{Dial: func() wake.Subscriber { return s.connect(s.rdb) }}
	if !s.Counts() {
		return home
	}
	if master := s.master(channel); master != nil {
		return wake.Node{Name: master.Options().Addr, Dial: func() wake.Subscriber { return s.connect(master) }}
	}
	if all := s.slots.Load(); all != nil {
		for _, some := range *all {
			if slot := slotOf(channel); some.Start <= slot && slot <= some.End && len(some.Nodes) > 0 {
				home.Name = cmp.Or(some.Nodes[0].ID, some.Nodes[0].Addr)
			}
		}
	}
	return home
}

// master returns the node that has a key, or nil if go-redis does not know it.
func (s *Servers) master(key string) *redis.Client {
	if s.cluster == nil {
		return nil
	}
	master, err := s.cluster.MasterForKey(context.Background(), key)
	if err != nil {
		return nil
	}
	return master
}

// home returns the name of the node that has a key, or "".
func (s *Servers) home(key string) string {
	if master := s.master(key); master != nil {
		return master.Options().Addr
	}
	return ""
}

// Counts reports false for a Cluster before Redis 7.0: other servers than that of the slot have subscribers, too.
func (s *Servers) Counts() bool {
	return s.cluster == nil || s.verb == record.InBothWays || !s.noShards.Load()
}

// Refused reports whether another connection is needed because of err. If it says that the servers have no sharded
// channels, plain ones are used from then on. Or the connection leads to the wrong server: go-redis chooses the one that
// it takes for that of the first channel. Refused also notes that the servers may be those of a Cluster: one of them has
// said so, or is too old to say it.
func (s *Servers) Refused(err error) bool {
	unknown := strings.Contains(err.Error(), "unknown command") &&
		strings.Contains(strings.ToLower(err.Error()), "ssubscribe")
	if unknown {
		s.noShards.Store(true)
	}
	wrong := s.asks && redis.HasErrorPrefix(err, "MOVED")
	if wrong || s.asks && unknown {
		s.slots.CompareAndSwap(nil, new([]redis.ClusterSlot))
	}
	return unknown || wrong
}

// Reload asks which node has which slots, if the servers may be those of a Cluster. By itself go-redis would continue to
// ask a node that is gone for up to a minute, longer than a lease. Its ReloadState waits until several attempts to dial
// such a node have failed. So each reload has a time limit, and the next reload asks another node first.
func (s *Servers) Reload() {
	if s.cluster == nil && s.slots.Load() == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), send.ResendTime)
	defer cancel()
	_ = send.CatchPanic(func() error {
		if s.cluster != nil {
			return s.cluster.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
		}
		all, err := s.rdb.ClusterSlots(ctx).Result()
		if err == nil {
			s.slots.Store(&all)
		}
		return err
	})
}

// SlotPart returns the part of a key that determines its slot in a Cluster.
func SlotPart(key string) string {
	if _, tag, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok = strings.Cut(tag, "}"); ok && tag != "" {
			return tag
		}
	}
	return key
}

// slotOf returns the number of the slot of a key: the CRC16 of XMODEM.
func slotOf(key string) int {
	var crc uint16
	for _, b := range []byte(SlotPart(key)) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc % 16384)
}
