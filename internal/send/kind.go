package send

// Which kind of Redis client one is.
//
// Rule: what a Redis client can do is asked through its methods, because it may be of a type of the user that embeds a
// type of go-redis, or the interface of all of them.

import (
	"context"
	"reflect"

	"github.com/redis/go-redis/v9"
)

// A Cluster is a Redis client that sends each key to the master of its slot, such as a *redis.ClusterClient. Its
// servers need not be in Cluster mode: see redis.NewFailoverClusterClient.
type Cluster interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ForEachMaster(ctx context.Context, fn func(ctx context.Context, master *redis.Client) error) error
	ReloadState(ctx context.Context)
}

// ClusterOf returns the Cluster that rdb is or embeds, or nil.
func ClusterOf(rdb redis.UniversalClient) Cluster {
	cluster, _ := embedded(rdb).(Cluster)
	return cluster
}

// OptionsOf returns the options of the *redis.Client, or of the *redis.ClusterClient, that rdb is or embeds. Both are
// nil for any other client.
func OptionsOf(rdb redis.UniversalClient) (one *redis.Options, cluster *redis.ClusterOptions) {
	switch rdb := embedded(rdb).(type) {
	case interface{ Options() *redis.Options }:
		one = rdb.Options()
	case interface{ Options() *redis.ClusterOptions }:
		cluster = rdb.Options()
	}
	return one, cluster
}

// IsRing reports whether rdb is or embeds a *redis.Ring.
func IsRing(rdb redis.UniversalClient) bool {
	_, is := embedded(rdb).(interface{ Options() *redis.RingOptions })
	return is
}

// embedded returns the Redis client that rdb embeds as an interface, whose other methods rdb does not have. If rdb
// embeds none, embedded returns rdb, and if it is nil, or a nil pointer, nil.
func embedded(rdb redis.UniversalClient) redis.UniversalClient {
	v := reflect.Indirect(reflect.ValueOf(rdb))
	switch v.Kind() {
	case reflect.Invalid:
		return nil
	case reflect.Struct:
	default:
		return rdb
	}
	for i := range v.NumField() {
		if f := v.Type().Field(i); !f.Anonymous || !f.IsExported() || f.Type.Kind() != reflect.Interface {
			continue
		}
		if inner, ok := v.Field(i).Interface().(redis.UniversalClient); ok {
			return embedded(inner)
		}
	}
	return rdb
}
