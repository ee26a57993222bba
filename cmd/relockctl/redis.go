package main

// The connection, and the locks that are held.
//
// Rules: the program asks the server whether it is a Cluster. Locks are found as internal/discover finds them. A key
// that may not be read, and a lock with an additional key that holds other data, are counted and named.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/discover"
)

// patience is how long the first requests may take.
const patience = 5 * time.Second

// A connection is a connection to a Redis or to a Cluster.
type connection struct {
	rdb   redis.UniversalClient // a *redis.Client or a *redis.ClusterClient
	where string                // the address, and the database if there are several
}

// A place is the address of the Redis, as the command line has it.
type place struct {
	url    string   // "" for this machine
	addr   string   // instead of url
	more   []string // further Sentinels
	master string   // what the Sentinel at url calls the Redis, or ""
	env    string   // url, if neither url nor addr is set
	auth   string   // the password if url has none
	tls    tlsFiles
}

// connect connects to the Redis at p.
func connect(ctx context.Context, p place) (*connection, error) {
	addrs := strings.Split(p.addr, ",")
	switch {
	case p.url != "" && p.addr != "":
		return nil, badUsage("--url and --addr: use only one of them")
	case len(addrs) > 1 && p.master == "":
		return nil, badUsage("--addr %s: several addresses are only for --sentinel-master", quote(p.addr))
	case p.addr != "":
		p.url, p.more = "redis://"+addrs[0], addrs[1:]
	case p.url == "":
		p.url = p.env
	}
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if p.master != "" {
		return connectToMaster(asking, p)
	}
	o, err := p.options(p.url, "localhost:6379")
	if err != nil {
		return nil, err
	}
	one := redis.NewClient(o)
	if err := one.Ping(asking).Err(); err != nil {
		one.Close()
		if refusal := redis.Error(nil); errors.As(err, &refusal) {
			return nil, fmt.Errorf("the Redis at %s returned an error: %w", o.Addr, err)
		}
		return nil, fmt.Errorf("cannot reach the Redis at %s: %w", o.Addr+p.origin(), orSilence(err))
	}
	hello := redis.NewMapStringInterfaceCmd(asking, "hello") // which needs no permission; an error counts as no Cluster
	_ = one.Process(asking, hello)
	switch hello.Val()["mode"] {
	case "sentinel":
		one.Close()
		return nil, fmt.Errorf(
			"the server at %s is a Sentinel, which has no locks: name one of its masters with --sentinel-master",
			o.Addr,
		)
	case "cluster":
		one.Close()
		return &connection{redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{o.Addr}, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig, DialerRetries: 1,
		}), o.Addr}, nil
	}
	return &connection{one, fmt.Sprintf("%s, db %d", o.Addr, o.DB)}, nil
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
	o, err := p.options(address, "localhost:26379")
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
	if err = rdb.Ping(ctx).Err(); err == nil {
		return &connection{rdb, fmt.Sprintf("%s, db %d", addr, o.DB)}, nil
	}
	go rdb.Close() // which waits for a handshake that has begun; the program ends before
	if errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("cannot reach the Redis %s: it knows no master with that name", addr)
	}
	return nil, fmt.Errorf(
		"cannot reach the Redis %s: %s",
		addr+p.origin(),
		strings.ReplaceAll(orSilence(err).Error(), "\n", ", "),
	) // one line for each Sentinel
}

// origin returns where the address comes from if the user has named none.
func (p place) origin() string {
	if p.url != "" {
		return ""
	}
	return " (the default: set $REDIS_URL, or pass --url or --addr)"
}

// orSilence returns err, the error of the first request, or what it means if nothing was answered.
func orSilence(err error) error {
	const perhaps = "; perhaps only one side uses TLS"
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer within %v%s", patience, perhaps)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%w%s", err, perhaps)
	}
	return err
}

// errAddress does not contain the error of the parser, which may contain the password.
var errAddress = badUsage("the address of the Redis, --url or $REDIS_URL, does not have the form redis://user:password@host:port/db; --addr takes host:port")

// options returns the options for the server at address, or at addr if address is "".
func (p place) options(address, addr string) (*redis.Options, error) {
	o := &redis.Options{Addr: addr}
	if address != "" {
		var err error
		if o, err = redis.ParseURL(address); err != nil {
			return nil, errAddress
		}
	}
	o.DialerRetries = 1
	o.Password = cmp.Or(o.Password, p.auth)
	return o, p.tls.addTo(o)
}

// A finding is the result of looking for the locks that match a pattern.
type finding struct {
	discover.Finding        // with the locks that are wanted
	held             int    // how many locks match the pattern
	total            string // that, and how many of them others wait for
}

// held returns the locks that match the pattern and are wanted, in order. It returns an error if none of them could be
// inspected.
func (p *program) held(ctx context.Context, pattern string) (finding, error) {
	names, _, err := discover.NewScan(p.redis.rdb, pattern, nil).Step(ctx, math.MaxInt)
	if err != nil {
		return finding{}, fmt.Errorf("scan %s: %w", p.redis.where, err)
	}
	f, err := discover.Inspect(ctx, p.client, names, nil)
	held := len(f.Locks)
	waited := slices.DeleteFunc(slices.Clone(f.Locks), func(i relock.Inspection) bool { return waitersOf(i) == 0 })
	if p.waiting {
		f.Locks = waited
	}
	ordered(f.Locks)
	return finding{f, held, fmt.Sprintf("%d held, %d with waiters", held, len(waited))}, err
}

// notWhole returns an error for a list that leaves something out, or nil.
func (f finding) notWhole() error {
	if len(f.LeftOut) == 0 {
		return nil
	}
	const named = 5
	text := "the list is incomplete: " + f.counted()
	for _, err := range f.LeftOut[:min(named, len(f.LeftOut))] {
		text += "\n  " + plain(err)
	}
	if more := len(f.LeftOut) - named; more > 0 {
		text += fmt.Sprintf("\n  and %d more", more)
	}
	return statusError{statusFailed, text}
}

// counted returns the text for the number of keys that are left out.
func (f finding) counted() string { return count(len(f.LeftOut), "key") + " left out" }
