package main

// The connection, and how locks are found.
//
// Rules: the program asks the server whether it is a Cluster. Keys are listed with SCAN, in a Cluster on every master.
// A key that a scan returns twice is one lock. A key that no longer exists when it is inspected, or that is not a lock,
// is not listed. A key that may not be read, and a lock with an additional key that holds other data, are counted and
// named. Of other data no more than two fields are read, because Redis would be blocked while it reads a big hash.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/waitgroup"
)

// patience is how long the first requests may take.
const patience = 5 * time.Second

// A connection is a connection to a Redis or to a Cluster.
type connection struct {
	rdb  redis.UniversalClient // a *redis.Client or a *redis.ClusterClient
	addr string
}

// A place is the address of the Redis, as the command line has it.
type place struct {
	url    string   // "" for this machine
	more   []string // further Sentinels
	master string   // what the Sentinel at url calls the Redis, or ""
	auth   string   // the password if url has none
}

// connect connects to the Redis at p.
func connect(ctx context.Context, p place) (*connection, error) {
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if p.master != "" {
		return connectToMaster(asking, p)
	}
	o, err := options(p.url, "localhost:6379", p.auth)
	if err != nil {
		return nil, err
	}
	one := redis.NewClient(o)
	if err := one.Ping(asking).Err(); err != nil {
		one.Close()
		if refusal := redis.Error(nil); errors.As(err, &refusal) {
			return nil, fmt.Errorf("the Redis at %s returned an error: %w", o.Addr, err)
		}
		return nil, fmt.Errorf("cannot reach the Redis at %s: %w", o.Addr, err)
	}
	info := one.Info(asking, "server", "cluster").Val() // an error counts as no Cluster
	switch {
	case strings.Contains(info, "_mode:sentinel"): // of redis, or of Valkey's server
		one.Close()
		return nil, fmt.Errorf(
			"the server at %s is a Sentinel, which has no locks: name one of its masters with -sentinel-master",
			o.Addr,
		)
	case strings.Contains(info, "cluster_enabled:1"):
		one.Close()
		return &connection{redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{o.Addr}, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig, DialerRetries: 1,
		}), o.Addr}, nil
	}
	return &connection{one, o.Addr}, nil
}

// connectToMaster asks the Sentinels for the Redis, now and after every failover.
func connectToMaster(ctx context.Context, p place) (*connection, error) {
	// User and password of a URL are for the Redis. Those for Sentinels are parameters, with the names that go-redis uses.
	address, login, _ := strings.Cut(p.url, "?")
	query, err := url.ParseQuery(login)
	if err != nil {
		return nil, errAddress
	}
	user, password := query.Get("sentinel_username"), query.Get("sentinel_password")
	query.Del("sentinel_username")
	query.Del("sentinel_password")
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	o, err := options(address, "localhost:26379", p.auth)
	if err != nil {
		return nil, err
	}
	if o.TLSConfig != nil {
		o.TLSConfig.ServerName = "" // each server has its own
	}
	sentinels := append([]string{o.Addr}, p.more...)
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: p.master, SentinelAddrs: sentinels, SentinelUsername: user, SentinelPassword: password,
		Username: o.Username, Password: o.Password, DB: o.DB, TLSConfig: o.TLSConfig, DialerRetries: 1,
	})
	addr := fmt.Sprintf("%s of the Sentinel at %s", quote(p.master), strings.Join(sentinels, ","))
	err = rdb.Ping(ctx).Err()
	if err == nil {
		return &connection{rdb, addr}, nil
	}
	rdb.Close()
	if errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("cannot reach the Redis %s: it knows no master with that name", addr)
	}
	return nil, fmt.Errorf(
		"cannot reach the Redis %s: %s",
		addr,
		strings.ReplaceAll(err.Error(), "\n", ", "),
	) // one line for each Sentinel
}

// errAddress does not contain the error of the parser, which may contain the password.
var errAddress = badUsage("the address of the Redis does not have the form redis://user:password@host:port/db")

// options returns the options for the server at address, or at addr if address is "". The password is auth if address
// has none.
func options(address, addr, auth string) (*redis.Options, error) {
	o := &redis.Options{Addr: addr}
	if address != "" {
		var err error
		if o, err = redis.ParseURL(address); err != nil {
			return nil, errAddress
		}
	}
	o.DialerRetries = 1
	o.Password = cmp.Or(o.Password, auth)
	return o, nil
}

// candidates returns the names that match the pattern and may be names of locks.
func (c *connection) candidates(ctx context.Context, pattern string) ([]string, error) {
	var mu sync.Mutex // guards names
	var names []string
	scanFor := func(ctx context.Context, one *redis.Client, pattern, kind string, likely func(keys []string) []string) error {
		for cursor := uint64(0); ; {
			keys, next, err := one.ScanType(ctx, cursor, pattern, 1000, kind).Result()
			if err != nil {
				return err
			}
			found := likely(keys)
			mu.Lock()
			names = append(names, found...)
			mu.Unlock()
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	}
	scan := func(ctx context.Context, one *redis.Client) error {
		return errors.Join(
			scanFor(ctx, one, pattern, "hash", func(keys []string) []string { return likeLocks(ctx, one, keys) }),
			scanFor(ctx, one, "{"+pattern+"}:timeout", "zset", semaphores),
			scanFor(ctx, one, pattern+":timeout", "zset", semaphores),
		)
	}
	var err error
	switch rdb := c.rdb.(type) {
	case *redis.ClusterClient:
		err = rdb.ForEachMaster(ctx, scan)
	case *redis.Client:
		err = scan(ctx, rdb)
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// semaphores returns the names of the semaphores to which the keys belong, as the keys of permits that are held:
// {name}:timeout, and name:timeout if the name contains a brace.
func semaphores(keys []string) (names []string) {
	for _, key := range keys {
		name, found := strings.CutSuffix(key, ":timeout")
		if inner := strings.TrimSuffix(strings.TrimPrefix(name, "{"), "}"); found && !strings.Contains(inner, "{") &&
			len(inner) == len(name)-2 {
			names = append(names, inner)
		}
		if found && strings.Contains(name, "{") {
			names = append(names, name)
		}
	}
	return names
}

// likeLocks returns the hashes that look like locks by two of their fields, or whose fields cannot be read.
func likeLocks(ctx context.Context, one *redis.Client, hashes []string) []string {
	looks := make([]*redis.StringSliceCmd, len(hashes))
	pipe := one.Pipeline()
	for i, name := range hashes {
		looks[i] = pipe.HRandField(ctx, name, 2)
	}
	_, _ = pipe.Exec(ctx) // each look has its own error
	var likely []string
	for i, name := range hashes {
		if fields, err := looks[i].Result(); err != nil || slices.ContainsFunc(fields, isHold) {
			likely = append(likely, name)
		}
	}
	return likely
}

// isHold reports whether a field begins like that of a holder: with a UUID, or, in Redisson's multi lock of values,
// with the hash of a value. Of any two fields of a lock at least one does, because a lock has only one other field,
// mode.
func isHold(field string) bool {
	id, _, found := strings.Cut(field, ":")
	return found && uuid.Validate(id) == nil || valueHash.MatchString(id)
}

var valueHash = regexp.MustCompile("^[A-Za-z0-9+/]{22}$")

// A finding is the result of looking for the locks that match a pattern.
type finding struct {
	locks   []relock.Inspection // the locks that are held, sorted by name
	leftOut []error             // an error for each key that could not be inspected
}

// held returns the locks that match the pattern. It returns an error if none of them could be inspected.
func (p *program) held(ctx context.Context, pattern string) (finding, error) {
	names, err := p.redis.candidates(ctx, pattern)
	if err != nil {
		return finding{}, fmt.Errorf("scan %s: %w", p.redis.addr, err)
	}
	found := make([]relock.Inspection, len(names))
	errs := make([]error, len(names))
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(8, len(names)) {
		waitgroup.Go(&workers, func() {
			for i := range next {
				found[i], errs[i] = p.client.Inspect(ctx, names[i])
			}
		})
	}
	for i := range names {
		next <- i
	}
	close(next)
	workers.Wait()
	var f finding
	for i, err := range errs {
		switch {
		case err == nil:
			if len(found[i].Holders) > 0 {
				f.locks = append(f.locks, found[i])
			}
		case keyRefused(err) || errors.Is(err, relock.ErrNotALock) && !isForeign(names[i], err):
			f.leftOut = append(f.leftOut, err)
		case !errors.Is(err, relock.ErrNotALock) && !errors.Is(err, relock.ErrInvalid):
			return finding{}, err
		}
	}
	return f, nil
}

// keyRefused reports whether Redis does not allow this user to read a key, while other keys may be allowed. If the user
// may not run a command at all, no lock can be inspected.
func keyRefused(err error) bool {
	return redis.HasErrorPrefix(err, "NOPERM") && aboutKey.MatchString(err.Error())
}

var aboutKey = regexp.MustCompile(`NOPERM.*\bkeys?\b`)

// isForeign reports whether err, which Inspect has returned for name, is about the key of that name, which is not a
// lock then. Otherwise err is about an additional key of a lock.
func isForeign(name string, err error) bool {
	return strings.Contains(err.Error(), "the key "+send.ShortName(name)+" ")
}

// notWhole returns an error for a list that leaves something out, or nil.
func (f finding) notWhole() error {
	if len(f.leftOut) == 0 {
		return nil
	}
	const named = 5
	text := "the list is incomplete: " + f.counted()
	for _, err := range f.leftOut[:min(named, len(f.leftOut))] {
		text += "\n  " + strings.TrimPrefix(err.Error(), "relock: ")
	}
	if more := len(f.leftOut) - named; more > 0 {
		text += fmt.Sprintf("\n  and %d more", more)
	}
	return statusError{statusFailed, text}
}

// counted returns the text for the number of keys that are left out.
func (f finding) counted() string {
	if len(f.leftOut) == 1 {
		return "1 key left out"
	}
	return fmt.Sprintf("%d keys left out", len(f.leftOut))
}
