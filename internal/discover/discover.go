// Package discover finds the locks of a Redis, for the programs of operators.
//
// Rules: keys are listed with SCAN, in a Cluster on every master. A key that a scan returns twice is one lock. A key
// that no longer exists when it is inspected, or that is not a lock, is not listed. A key that may not be read, and a
// lock with an additional key that holds other data, are errors of their own, and do not end the list. Of other data no
// more than two fields are read, because Redis would be blocked while it reads a big hash.
package discover

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/waitgroup"
)

// atOnce is how many keys a SCAN is asked to go through, and workers how many locks are inspected at once.
const (
	atOnce  = 1000
	workers = 16
)

// A Scan goes through the keyspace of a Redis, again and again, and finds the keys that may be locks. It is used by one
// goroutine at a time.
type Scan struct {
	rdb     redis.UniversalClient
	pattern string
	known   func(name string) bool
	shards  []*shard // of the pass that is under way; nil between two passes
}

// NewScan returns a scan of rdb, which is or embeds a *redis.Client or a *redis.ClusterClient, for names that match a
// pattern of Redis. A hash that is known to be a lock is not looked at again; known may be nil, and is called by several
// goroutines.
func NewScan(rdb redis.UniversalClient, pattern string, known func(name string) bool) *Scan {
	if known == nil {
		known = func(string) bool { return false }
	}
	return &Scan{rdb: rdb, pattern: pattern, known: known}
}

// Step sends at most n SCAN requests to each master, and one pipeline after each of them. It returns the names that it
// has found, sorted, also with an error, and reports whether the pass is done: then the next Step begins another one.
// After an error, too.
func (s *Scan) Step(ctx context.Context, n int) (names []string, done bool, err error) {
	if s.shards == nil {
		if err := s.start(ctx); err != nil {
			s.shards = nil
			return nil, false, err
		}
	}
	found, errs := make([][]string, len(s.shards)), make([]error, len(s.shards))
	var all sync.WaitGroup
	for i, one := range s.shards {
		waitgroup.Go(&all, func() { found[i], errs[i] = one.step(ctx, n) })
	}
	all.Wait()
	done = !slices.ContainsFunc(s.shards, func(one *shard) bool { return len(one.passes) > 0 })
	if err = errors.Join(errs...); err != nil || done {
		s.shards = nil
	}
	names = slices.Concat(found...)
	slices.Sort(names)
	return slices.Compact(names), done, err
}

// start begins a pass on all masters.
func (s *Scan) start(ctx context.Context) error {
	var mu sync.Mutex // guards s.shards
	begin := func(one redis.UniversalClient) {
		begun := &shard{one: one, passes: []pass{
			{s.pattern, "hash", func(ctx context.Context, keys []string) []string { return s.likeLocks(ctx, one, keys) }},
			{"{" + s.pattern + "}:timeout", "zset", semaphores},
			{s.pattern + ":timeout", "zset", semaphores},
		}}
		mu.Lock()
		defer mu.Unlock()
		s.shards = append(s.shards, begun)
	}
	if cluster := send.ClusterOf(s.rdb); cluster != nil {
		return cluster.ForEachMaster(ctx, func(_ context.Context, one *redis.Client) error {
			begin(one)
			return nil
		})
	}
	if one, _ := send.OptionsOf(s.rdb); one == nil {
		return errors.New("the locks of this kind of Redis client cannot be listed")
	}
	begin(s.rdb)
	return nil
}

// A shard is the part of a scan that is on one master.
type shard struct {
	one    redis.UniversalClient
	passes []pass // what is left
	cursor uint64 // of the first of them
}

// A pass is a scan for keys of one type.
type pass struct {
	pattern, kind string
	likely        func(ctx context.Context, keys []string) (names []string)
}

// step sends at most n SCAN requests. After an error it returns what those before have found.
func (s *shard) step(ctx context.Context, n int) (names []string, err error) {
	for ; n > 0 && len(s.passes) > 0; n-- {
		p := s.passes[0]
		keys, next, err := s.one.ScanType(ctx, s.cursor, p.pattern, atOnce, p.kind).Result()
		if err != nil {
			return names, err
		}
		names = append(names, p.likely(ctx, keys)...)
		if s.cursor = next; next == 0 {
			s.passes = s.passes[1:]
		}
	}
	return names, nil
}

// semaphores returns the names of the semaphores to which the keys belong, as the keys of permits that are held:
// {name}:timeout, and name:timeout if the name contains a brace.
func semaphores(_ context.Context, keys []string) (names []string) {
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

// likeLocks returns the hashes that look like locks by two of their fields, or whose fields cannot be read, and those
// that are known to be locks.
func (s *Scan) likeLocks(ctx context.Context, one redis.UniversalClient, hashes []string) (likely []string) {
	looks := make([]*redis.StringSliceCmd, len(hashes))
	pipe := one.Pipeline()
	for i, name := range hashes {
		if !s.known(name) {
			looks[i] = pipe.HRandField(ctx, name, 2)
		}
	}
	_, _ = pipe.Exec(ctx) // each look has its own error
	for i, name := range hashes {
		if looks[i] == nil {
			likely = append(likely, name)
		} else if fields, err := looks[i].Result(); err != nil || slices.ContainsFunc(fields, isHold) {
			likely = append(likely, name)
		}
	}
	return likely
}

// isHold reports whether a field begins like that of a holder: with a UUID. Of any two fields of a lock at least one does,
// because a lock has only one other field, mode.
func isHold(field string) bool {
	id, _, found := strings.Cut(field, ":")
	return found && uuid.Validate(id) == nil
}

// A Finding is what Inspect has found.
type Finding struct {
	Locks   []relock.Inspection // the locks that are held, in the order of their names
	LeftOut []error             // an error for each key that could not be inspected
}

// Inspect inspects the locks with the given names, and passes each of them to trim, which may be nil and is called by
// several goroutines. An error means that no lock can be inspected.
func Inspect(
	ctx context.Context, client *relock.Client, names []string, trim func(*relock.Inspection),
) (Finding, error) {
	found := make([]relock.Inspection, len(names))
	errs := make([]error, len(names))
	next := make(chan int)
	var all sync.WaitGroup
	for range min(workers, len(names)) {
		waitgroup.Go(&all, func() {
			for i := range next {
				if found[i], errs[i] = client.Inspect(ctx, names[i]); errs[i] == nil && trim != nil {
					trim(&found[i])
				}
			}
		})
	}
	for i := range names {
		next <- i
	}
	close(next)
	all.Wait()
	var f Finding
	for i, err := range errs {
		switch {
		case err == nil:
			if len(found[i].Holders) > 0 {
				f.Locks = append(f.Locks, found[i])
			}
		case keyRefused(err) || errors.Is(err, relock.ErrNotALock) && !isForeign(names[i], err):
			f.LeftOut = append(f.LeftOut, err)
		case !errors.Is(err, relock.ErrNotALock) && !errors.Is(err, relock.ErrInvalid):
			return Finding{}, err
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
