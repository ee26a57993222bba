package relock

// What a Client knows about its Redis client, and about the servers behind it.
//
// Rules: these are two things. A Redis client that routes by slot sends each key to the server of its slot; it is a
// *redis.ClusterClient, or embeds one. Servers in Cluster mode have sharded channels, on which the other clients of
// these servers, and Redisson, publish and listen. The client of redis.NewFailoverClusterClient routes by slot, and its
// servers are not in Cluster mode. So the servers determine the channels, and no request asks them: a Client whose servers
// can be of either mode publishes and listens in both ways. What a Redis client can do is asked through its methods,
// because it may be of a type of the user that embeds a type of go-redis.

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

// servers are what a Client knows about its servers.
type servers interface {
	engine.Servers
	// publishVerb returns how the scripts publish: see internal/lua/announce.lua.
	publishVerb() any
}

// serversOf returns what is known about the servers of rdb.
func serversOf(rdb redis.UniversalClient) servers {
	one, many := send.OptionsOf(rdb)
	if cluster := send.ClusterOf(rdb); cluster != nil {
		s := &shards{rdb: rdb, cluster: cluster, ways: ways{verb: record.InBothWays}}
		if many != nil && many.ClusterSlots == nil {
			s.verb = record.PublishInShard // go-redis asks the servers for their slots
		}
		return s
	}
	if one != nil {
		return oneServer(func() wake.Subscriber { return rdb.Subscribe(context.Background()) })
	}
	return &unknown{rdb: rdb, ways: ways{verb: record.InBothWays}}
}

// publishVerb returns how the scripts publish on the servers of c.
func (c *Client) publishVerb() any { return c.in().servers.publishVerb() }

// keepsToSlots reports whether one script must not use keys of several slots, or whether that is not known.
func (c *Client) keepsToSlots() bool {
	_, one := c.in().servers.(oneServer)
	return !one
}

// group returns the slot of a lock if one script cannot ask about locks of several slots.
func (c *Client) group(name string) string {
	if c.keepsToSlots() {
		return slotPart(name)
	}
	return ""
}

// slotOf returns the number of the slot of a key: the CRC16 of XMODEM.
func slotOf(key string) int {
	var crc uint16
	for _, b := range []byte(slotPart(key)) {
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
