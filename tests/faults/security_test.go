package faults

// Security: TLS, the smallest set of permissions, and texts without secrets. docs/security.md describes them for users.

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/inside"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// permissionsOnPage returns the permissions that docs/security.md grants to a service, on a single server and in a
// Cluster, where other words take the place of the last line.
func permissionsOnPage(t *testing.T) (server, cluster []string) {
	_, section, _ := strings.Cut(locktest.Pages(t)["docs/security.md"], "## The smallest set of permissions")
	blocks := strings.Split(section, "```\n")
	require.Greater(t, len(blocks), 3)
	lines := strings.Split(strings.TrimSpace(blocks[1]), "\n")
	first, ok := strings.CutPrefix(lines[0], "ACL SETUSER orders-service reset on >PASSWORD")
	require.True(t, ok, lines[0])
	common, last := lines[1:len(lines)-1], lines[len(lines)-1]
	words := strings.Fields(first + " " + strings.Join(common, " "))
	return append(slices.Clone(words), strings.Fields(last)...), append(words, strings.Fields(blocks[3])...)
}

// The page grants what the tests below try.
func TestPermissionsOnThePageAreThoseThatAreTested(t *testing.T) {
	server, cluster := permissionsOnPage(t)
	common := slices.Concat(locktest.SmallestKeys, locktest.SmallestChannels, locktest.SmallestCommands)
	assert.ElementsMatch(t, slices.Concat(common, locktest.SmallestWakeups, locktest.OptionalRights), server)
	assert.ElementsMatch(t, slices.Concat(common, locktest.SmallestClusterWakeups, locktest.SmallestCluster, locktest.OptionalRights[:4],
		locktest.OptionalClusterRights), cluster)
}

// With the permissions on the page Redis refuses nothing, whatever a service does: ACL LOG stays empty, and neither
// go-redis nor a Client logs anything. A process of its own does it, because the Logger of go-redis is a global
// variable.
func TestPermissionsOnThePageAreRefusedNothing(t *testing.T) {
	if addrs := os.Getenv(asServiceEnv); addrs != "" {
		testAsService(t, strings.Split(addrs, ","))
		return
	}
	t.Parallel()
	server, cluster := permissionsOnPage(t)
	for name, test := range map[string]struct {
		rights []string
		start  func(t *testing.T) []*testredis.Server
	}{
		"server": {server, func(t *testing.T) []*testredis.Server {
			return []*testredis.Server{testredis.Start(t)}
		}},
		"cluster": {cluster, func(t *testing.T) []*testredis.Server {
			return testredis.StartCluster(t, 3, 0).Nodes()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var admins []*redis.Client
			var addrs []string
			for _, s := range test.start(t) {
				admin := s.Client()
				admins, addrs = append(admins, admin), append(addrs, s.Addr())
				args := []any{"acl", "setuser", serviceUser, "reset", "on", ">" + serviceUser}
				for _, right := range test.rights {
					args = append(args, right)
				}
				require.NoError(t, admin.Do(ctx, args...).Err())
				_ = admin.Do(ctx, "acl", "setuser", serviceUser, "+client|setinfo").Err() // Redis 7.0 does not know it
			}
			service := exec.Command(os.Args[0], "-test.run=^TestPermissionsOnThePageAreRefusedNothing$")
			service.Env = append(os.Environ(), asServiceEnv+"="+strings.Join(addrs, ","))
			var out, errs bytes.Buffer
			service.Stdout, service.Stderr = &out, &errs
			assert.NoError(t, service.Run(), out.String())
			assert.Contains(t, out.String(), "PASS")
			assert.Empty(t, errs.String(), "stderr")
			for n, admin := range admins {
				entries, err := admin.ACLLog(ctx, 128).Result()
				require.NoError(t, err)
				for _, e := range entries {
					assert.Fail(t, "refused", "node %d: %s, %s: %s", n, e.Reason, e.Context, e.Object)
				}
			}
		})
	}
}

const (
	asServiceEnv = "RELOCK_TEST_AS_SERVICE" // the addresses of the servers
	serviceUser  = "orders-service"         // and its password
)

// testAsService does everything that services do, as the user of the page.
func testAsService(t *testing.T, addrs []string) {
	logging.Enable()
	b := &locktest.Bench{T: t, LockName: "orders"}
	var logged locktest.LockedBuffer
	log := slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	service := func(label string) *Client {
		var rdb redis.UniversalClient = redis.NewClient(&redis.Options{
			Addr: addrs[0], Username: serviceUser, Password: serviceUser,
		})
		if len(addrs) > 1 {
			_ = rdb.Close()
			rdb = redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: addrs, Username: serviceUser, Password: serviceUser,
				MaintNotificationsConfig: testredis.NoNotifications(), // go-redis does not end their goroutines
			})
		}
		t.Cleanup(func() { assert.NoError(t, rdb.Close()) })
		return b.ClientOn(rdb, WithPollInterval(time.Hour), WithWatchdogTimeout(locktest.UserLease), WithLogger(log),
			WithLabel(label), WithWaitWarning(time.Second))
	}
	one, other := service("one"), service("other")
	var each sync.WaitGroup
	for _, kind := range clusterLocks {
		waitgroup.Go(&each, func() {
			assert.NoError(t, use{b, one, other, locktest.ClusterSoon}.all(kind.One, kind.Rival, locktest.OrderName()), kind.Name)
		})
	}
	waitgroup.Go(&each, func() { // what use.all does not do
		s := one.NewSemaphore(locktest.OrderName(), 5)
		permits, err := s.AcquireN(ctx, 3)
		b.Must(err)
		b.Must(s.SetPermits(ctx, 4))
		b.Must(locktest.Second(s.Permits(ctx)))
		b.Must(locktest.Second(other.Inspect(ctx, s.Name())))
		b.Must(permits.Release(ctx))

		lock := one.NewLock(locktest.OrderName(), Fenced())
		h, err := lock.Acquire(ctx)
		b.Must(err)
		ticket, err := h.Detach(ctx, 0)
		b.Must(err)
		h, err = other.Attach(ctx, ticket)
		b.Must(err)
		got := make(chan error, 1)
		waiting, giveUp := context.WithCancel(ctx)
		go func() { got <- lock.Lock(waiting) }()
		time.Sleep(3 * time.Second) // the wait is logged, with the holder, and the connection is pinged
		giveUp()
		b.MustBe(<-got, context.Canceled)
		b.Must(locktest.Second(lock.ForceUnlock(ctx))) // the holder listens
		locktest.Await(b, "the holder hears of it", h.Context().Done())

		e := one.NewElection(locktest.OrderName())
		term, err := e.Campaign(ctx)
		b.Must(err)
		_, _, err = other.NewElection(e.Name()).Leader(ctx)
		b.Must(err)
		b.Must(term.Resign(ctx))
	})
	each.Wait()
	for line := range strings.Lines(logged.String()) {
		assert.Regexp(t, "have waited for a lock for a long time|(was|were) lost", line)
	}
	assert.Contains(t, logged.String(), "(other on ", "the label of the holder")
}

// A use does everything that a user does with a lock. It has the longest time that a notification may take.
type use struct {
	*locktest.Bench
	user, other *Client
	soon        time.Duration
}

// all calls every method of locks that exclude one another, and returns the calls that failed.
func (u use) all(one, rival locktest.LockMaker, name string) (err error) {
	mine, theirs := one(u.user, name), rival(u.other, name)
	me, me2, them, them2 := ContextWithOwner(ctx), ContextWithOwner(ctx), ContextWithOwner(ctx), ContextWithOwner(ctx)
	defer func() { // releases what is left, for the other tests
		_, _ = theirs.ForceUnlock(ctx)
		_, _ = rival(u.other, name).ForceUnlock(ctx)
		_, _ = one(u.other, name).ForceUnlock(ctx)
	}()
	within := func(ctx context.Context, l Locker) (<-chan error, context.CancelFunc) {
		ctx, cancel := context.WithTimeout(ctx, u.soon)
		u.Cleanup(cancel)
		got := make(chan error, 1)
		go func() { got <- l.Lock(ctx) }()
		return got, cancel
	}
	steps := []struct {
		what string
		do   func() error
	}{
		{"the other one locks", func() error { return theirs.Lock(them) }},
		{"wait", func() error {
			first, giveUp := within(me2, mine)
			locktest.AwaitListener(u, mine, first)
			got, _ := within(me, mine)
			time.Sleep(100 * time.Millisecond) // for the second attempt after the subscription
			rdb, place := inside.Of(u.other).Redis, ""
			await := func(what string, cond func() bool) {
				testredis.Await(u, what, locktest.ClusterSoon, func() bool { return cond() || len(got) > 0 || len(first) > 0 })
			}
			asked := func() bool { // in a place of the line, for the first time or again
				old := place
				place = rdb.HGet(ctx, record.LineKeys(name)[1], u.user.ID()).Val()
				_, lines := mine.(*Lock)
				return !lines || place != old
			}
			await("it has a place", asked)
			if _, queues := mine.(*FairLock); queues { // the waiter that leaves has another one behind it
				await("both are in the queue", func() bool {
					return rdb.LLen(ctx, record.PrefixName("redisson_lock_queue", name)).Val() == 2
				})
			}
			giveUp()
			err := <-first
			await("the next one asks with the same place", asked)
			if !errors.Is(err, context.Canceled) { // if it has the lock, they have lost it, and Unlock tells why
				return cmp.Or(err, theirs.Unlock(them), errors.New("two have the lock"))
			}
			if err := theirs.Unlock(them); err != nil {
				return err
			}
			return <-got
		}},
		{"re-enter", func() error { return mine.Lock(me) }},
		{"ask", func() error {
			n, err := mine.HoldCount(me)
			if err == nil && n != 2 {
				err = fmt.Errorf("%d levels", n)
			}
			return errors.Join(err, locktest.Second(mine.TTL(me)), locktest.Second(mine.IsLocked(me)))
		}},
		{"renew", func() error {
			guarded, err := mine.Guard(me)
			if err != nil {
				return err
			}
			select {
			case <-guarded.Done():
				return context.Cause(guarded)
			case <-time.After(locktest.UserLease + 200*time.Millisecond):
				return nil
			}
		}},
		{"unlock, and wake", func() error {
			got, _ := within(them, theirs)
			time.Sleep(150 * time.Millisecond) // until the waiter has asked; it is not awaited, because its permissions differ
			last, _ := within(them2, theirs)
			time.Sleep(150 * time.Millisecond)
			// Its release takes one waiter out of the queue, and moves the other one up.
			if _, queues := mine.(*FairLock); queues {
				testredis.Await(u, "both can be granted the lock", locktest.ClusterSoon, func() bool {
					return len(locktest.FairPlaces(inside.Of(u.other).Redis, name)) == 2 || len(got) > 0 || len(last) > 0
				})
			}
			if err := errors.Join(mine.Unlock(me), mine.Unlock(me)); err != nil {
				return err
			}
			select { // not every lock guarantees an order
			case err = <-got:
				return errors.Join(err, theirs.Unlock(them), <-last, theirs.Unlock(them2))
			case err = <-last:
				return errors.Join(err, theirs.Unlock(them2), <-got, theirs.Unlock(them))
			}
		}},
		{"lock for a while", func() error { return mine.LockLease(me, time.Minute) }},
		{"force", func() error { return locktest.Second(mine.ForceUnlock(me)) }},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return nil
}

// No script calls a command that the page does not list: some are called seldom.
func TestScriptsCallNoOtherCommands(t *testing.T) {
	t.Parallel()
	ofUse := []string{"+publish", "+spublish", "+pubsub", "+info", "+type"}
	ofLock := "+del +hdel +hexists +hget +hmget +hlen +hrandfield +hset +pexpire +pttl +time +exists +incr +set " +
		"+zadd +zcard +zrangebyscore +zrank +zrem +zrevrange +zscore"
	ofType := map[string]string{ // and of scripts whose names begin like this
		"lock": ofLock, "force": ofLock, "renew": ofLock, "free": ofLock,
		"fair": ofLock + " +rpush +llen +lindex +lpos +lrange +lrem",
		"semaphore": "+get +incrby +zcount +zadd +zrem +zscore +zcard +zrangebyscore +zrevrange +del +exists +pexpire +pttl +set +time " +
			"+hdel +hexists +hget +hmget +hrandfield +hset +zrank",
	}
	for name, script := range record.Scripts {
		kind, _, _ := strings.Cut(name, "_")
		for _, m := range regexp.MustCompile(`call\('(\w+)'`).FindAllStringSubmatch(script.Source(), -1) {
			assert.Contains(t, slices.Concat(locktest.SmallestCommands, ofUse), "+"+m[1], name)
			if of := ofType[kind]; of != "" {
				assert.Contains(t, slices.Concat(strings.Fields(of), ofUse), "+"+m[1], name)
			}
		}
	}
}

// Over TLS, with certificates on both sides, everything works.
func TestLocksWorkOverTLS(t *testing.T) {
	t.Parallel()
	s, addr, config := testredis.StartTLS(t)
	b := locktest.NewBench(t, s.Addr())
	over := func() *Client {
		return b.ClientOn(testredis.Client(t, addr, func(o *redis.Options) { o.TLSConfig = config }),
			WithPollInterval(time.Hour), WithWatchdogTimeout(locktest.UserLease))
	}
	var all sync.WaitGroup
	for _, kind := range clusterLocks {
		u := use{b, over(), over(), locktest.Soon}
		waitgroup.Go(&all, func() {
			assert.NoError(t, u.all(kind.One, kind.Rival, locktest.OrderName()), kind.Name)
		})
	}
	for what, config := range map[string]*tls.Config{
		"a server that the client does not trust": {MinVersion: tls.VersionTLS12, Certificates: config.Certificates},
		"a client that the server does not trust": {MinVersion: tls.VersionTLS12, RootCAs: config.RootCAs},
	} {
		c := b.ClientOn(testredis.Client(t, addr, func(o *redis.Options) { o.TLSConfig = config }))
		waitgroup.Go(&all, func() {
			err := c.NewLock(locktest.OrderName()).Lock(ctx)
			// With TLS 1.3 the server refuses a client after its first message, which may arrive before the reason.
			assert.Regexp(t, "certificate|connection reset|broken pipe", fmt.Sprint(err), what)
		})
	}
	all.Wait()
}

func TestSmallestPermissionsAreEnoughAndNeeded(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	b := locktest.NewBench(t, s.Addr())
	d := b.Deployment(s)
	all := slices.Concat(locktest.SmallestKeys, locktest.SmallestChannels, locktest.SmallestCommands, locktest.SmallestWakeups)
	testWithoutEval(t, b, d, all)
	testEnough(t, b, d, all)

	// Every other permission is needed by a lock type, whose error names it.
	type lack struct{ right, kind string }
	var lacks []lack
	for kind, rights := range map[string]string{
		"lock":      "~lock:orders:* ~relock_*:{lock:orders:* +exists +evalsha +del +pttl +pexpire +hset +hget +hmget +hlen +hexists +hrandfield +zrank",
		"semaphore": "+get +incrby +zcount +zrangebyscore",
		"fenced":    "~redisson_lock_token:{lock:orders:* +incr",
		"read":      "~{lock:orders:* +set +hdel",
		"write":     "+time +hgetall +zadd +zrem +zrevrange",
		"fair": "~redisson_lock_queue:{lock:orders:* ~redisson_lock_timeout:{lock:orders:* " +
			"+rpush +llen +lindex +lpos +zscore +zcard",
	} {
		for _, right := range strings.Fields(rights) {
			lacks = append(lacks, lack{right, kind})
		}
	}
	assert.Len(
		t,
		lacks,
		len(locktest.SmallestKeys)+len(locktest.SmallestCommands)-3,
		"rights that are tried; +eval: see above; "+
			"without +lrem and +lrange a waiter that gives up leaves a little later",
	)
	var each sync.WaitGroup
	other := d.User(b, []string{"allkeys", "allchannels", "allcommands"})
	for _, l := range lacks {
		u := use{b, d.User(b, locktest.Without(all, l.right)), other, 8 * time.Second} // all of them at the same time
		k := locktest.KindCalled(l.kind)
		waitgroup.Go(&each, func() {
			err := u.all(k.One, k.Rival, locktest.OrderName())
			assert.True(t, locktest.Refused(err), "without %s, %s: %v", l.right, l.kind, err)
		})
	}
	each.Wait()
}

func TestSmallestPermissionsOnAClusterAreEnoughAndNeeded(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 0)
	b := &locktest.Bench{T: t, LockName: "orders"}
	d := &locktest.Deployment{Client: func(name, password string) redis.UniversalClient {
		return cluster.Client(func(o *redis.ClusterOptions) { o.Username, o.Password = name, password })
	}}
	for _, node := range cluster.Nodes() {
		d.Admins = append(d.Admins, node.Client())
	}
	all := slices.Concat(locktest.SmallestKeys, locktest.SmallestChannels, locktest.SmallestCommands, locktest.SmallestClusterWakeups, locktest.SmallestCluster)
	testWithoutEval(t, b, d, all)
	testEnough(t, b, d, all)
	for _, right := range locktest.SmallestCluster {
		assert.Error(
			t,
			d.User(b, locktest.Without(all, right)).NewLock(locktest.OrderName()).Lock(ctx),
			"it works without %s",
			right,
		)
	}
}

// testWithoutEval comes first, because no server has loaded the scripts yet.
func testWithoutEval(t *testing.T, b *locktest.Bench, d *locktest.Deployment, all []string) {
	err := d.User(b, locktest.Without(all, "+eval")).NewLock(locktest.OrderName()).Lock(ctx)
	assert.True(t, locktest.Refused(err), "without +eval")
	assert.ErrorContains(t, err, "'eval'", "without +eval")
}

// testEnough makes users with all of these permissions do everything.
func testEnough(t *testing.T, b *locktest.Bench, d *locktest.Deployment, all []string) {
	var logged locktest.LockedBuffer
	log := WithLogger(slog.New(slog.NewTextHandler(&logged, nil)))
	var each sync.WaitGroup
	for _, kind := range clusterLocks {
		u := use{b, d.User(b, all, log), d.User(b, all, log), locktest.ClusterSoon}
		waitgroup.Go(&each, func() {
			assert.NoError(t, u.all(kind.One, kind.Rival, locktest.OrderName()), kind.Name)
		})
	}
	each.Wait()
	for line := range strings.Lines(logged.String()) {
		assert.Regexp(t, "it was released by force|more locks were lost", line)
	}
}

// A user without permission for the channel of its Client notices a forced release at its next renewal. Nothing else
// changes, nothing is logged except at debug level, and Redis is asked once.
func TestRefusedClientChannelCostsNothingElse(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	b := locktest.NewBench(t, s.Addr())
	d := b.Deployment(s)
	all := slices.Concat(locktest.SmallestKeys, locktest.SmallestChannels, locktest.SmallestCommands, locktest.SmallestWakeups)
	var logged locktest.LockedBuffer
	user := d.User(b, locktest.Without(all, locktest.SmallestChannels[3]), WithWatchdogTimeout(10*time.Second),
		WithLogger(slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))))
	refusals := func() (n int) {
		entries, err := b.Rdb.ACLLog(ctx, 128).Result()
		b.Must(err)
		for _, e := range entries {
			if strings.HasPrefix(e.Object, "relock_client:") {
				n += int(e.Count)
			}
		}
		return n
	}
	name := locktest.OrderName()
	w := b.Watch(user.NewLock(name), d.User(b, all).NewLock(name), func(l Locker, owner context.Context) error { return l.Lock(owner) })
	testredis.Await(b, "the channel is refused", locktest.Soon, func() bool { return refusals() == 1 })
	testredis.Await(b, "the refusal is logged", locktest.Soon, func() bool { return strings.Contains(logged.String(), "relock_client:*") })

	// Its other subscriptions work.
	waited := locktest.OrderName()
	held := d.User(b, all).NewLock(waited)
	for range 3 {
		b.Must(held.Lock(ctx))
		owner := ContextWithOwner(ctx)
		got := make(chan error, 1)
		l := user.NewLock(waited)
		go func() { got <- l.Lock(owner) }()
		testredis.Await(b, "it waits", locktest.Soon, func() bool { return b.Hearers(locktest.RecordOf(l).Grants(contract.Attempt{})) == 1 })
		b.Must(held.Unlock(ctx))
		b.Must(locktest.Await(b, "the waiter is notified", got))
		b.Must(l.Unlock(owner))
	}
	freed, err := w.Forced.ForceUnlock(ctx)
	b.Must(err)
	assert.True(t, freed)
	locktest.Await(b, "the next renewal finds no record", w.Guarded.Done())
	b.MustBe(w.Release(ctx), ErrLockLost)
	assert.Equal(t, 1, refusals(), "refusals")
	assert.NotContains(t, logged.String(), "level=WARN msg=\"relock: Redis refuses")
	assert.Equal(t, 1, strings.Count(logged.String(), "relock_client:*"), logged.String())
}

// No text has a secret in it, or a long name, whatever goes wrong.
func TestTextsHaveNoSecrets(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	b := locktest.NewBench(t, s.Addr())
	const user, password = "alice-the-user", "hunter2-the-password"
	secret := strings.Repeat("s", 100) + "-the-end-of-a-name" // a name of more than 64 bytes
	var logged locktest.LockedBuffer
	logger := slog.New(slog.NewTextHandler(&logged, nil)) // at the default level
	var mu sync.Mutex
	texts := map[string]bool{}
	note := func(err error) {
		if err == nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		texts[err.Error()] = true
	}
	connect := func(addr, user, password string) *Client {
		o, err := redis.ParseURL("redis://" + user + ":" + password + "@" + addr + "/0")
		b.Must(err)
		rdb := redis.NewClient(o)
		b.Cleanup(func() { _ = rdb.Close() })
		return b.ClientOn(rdb, WithLogger(logger), WithPollInterval(50*time.Millisecond), WithWatchdogTimeout(time.Second))
	}
	rights := func(rights ...any) {
		b.Must(b.Rdb.Do(ctx, append([]any{"acl", "setuser", user, "reset", "on", ">" + password}, rights...)...).Err())
	}
	rights("allkeys", "allchannels", "allcommands")
	good := connect(s.Addr(), user, password)
	wrong := connect(s.Addr(), user, "not-"+password)
	away := connect("127.0.0.1:1", user, password)

	everything := func(l Locker) {
		within, cancel := context.WithTimeout(ctx, 2*time.Second) // go-redis dials for about 400ms
		defer cancel()
		within = ContextWithOwner(within)
		note(l.Lock(within))
		note(locktest.Second(l.TryLock(within, time.Millisecond, 0)))
		note(locktest.Second(l.Guard(within)))
		note(locktest.Second(l.IsLocked(within)))
		note(locktest.Second(l.HoldCount(within)))
		note(locktest.Second(l.TTL(within)))
		note(l.Do(within, func(context.Context) error { return nil }))
		note(locktest.Second(l.ForceUnlock(within)))
		note(l.LockLease(within, -1))
		note(l.Unlock(within))
		note(l.Unlock(within))
	}
	var each sync.WaitGroup
	many := func(c *Client, name string) {
		for _, kind := range clusterLocks {
			waitgroup.Go(&each, func() { everything(kind.One(c, name)) })
		}
		waitgroup.Go(&each, func() {
			everything(c.NewRedLock(c.NewLock(name), wrong.NewLock(name), away.NewLock(name)))
			everything(
				c.NewRedLock(good.NewLock(name), connect("127.0.0.1:2", user, password).NewLock(name), away.NewLock(name)),
			)
		})
	}
	many(wrong, secret+"-wrong")
	many(away, secret+"-away")
	many(good, secret+strings.Repeat("x", record.LongestName))
	for i, kind := range clusterLocks {
		name := fmt.Sprint(secret, "-type-", i)
		for _, key := range []string{name, "{" + name + "}1"} {
			b.Must(b.Rdb.Set(ctx, key, password, 0).Err()) // of another type
			defer b.Rdb.Del(ctx, key)
		}
		waitgroup.Go(&each, func() { everything(kind.One(good, name)) })
		// The lock is lost while one owner waits for it and another one asks.
		waitgroup.Go(&each, func() {
			l, me, them := kind.One(good, name+"-lost"), ContextWithOwner(ctx), ContextWithOwner(ctx)
			note(l.Lock(me))
			note(l.Unlock(them))
			note(locktest.Second(l.Guard(them)))
			guarded, err := l.Guard(me)
			note(err)
			if !assert.NoError(t, err, kind.Name) {
				return
			}
			note(locktest.Second(kind.One(b.Client(), name+"-lost").ForceUnlock(ctx)))
			select {
			case <-guarded.Done():
				note(context.Cause(guarded))
			case <-time.After(locktest.Soon):
				assert.Fail(t, kind.Name+" is not lost")
			}
			note(l.Unlock(me))
		})
	}
	each.Wait()
	rights("allkeys", "resetchannels", "allcommands")
	restricted := connect(s.Addr(), user, password)
	held := b.Client().NewLock(secret + "-unsubscribed")
	b.Must(held.Lock(ctx))
	everything(restricted.NewLock(secret + "-unsubscribed"))
	rights("resetkeys", "+eval", "+evalsha")
	many(connect(s.Addr(), user, password), secret+"-no-rights")
	each.Wait()
	note(locktest.Second(New(nil)))
	note(locktest.Second(New(b.Rdb, WithWatchdogTimeout(1))))

	testredis.Await(t, "both kinds of warnings", locktest.Soon, func() bool {
		return strings.Contains(logged.String(), "lost") && strings.Contains(logged.String(), "refuses the subscription")
	})
	for line := range strings.Lines(logged.String()) {
		texts["logged: "+line] = true
	}
	assert.GreaterOrEqual(t, len(texts), 100, "texts")
	all := strings.Join(slices.Collect(maps.Keys(texts)), "\n")
	for _, want := range []string{"WRONGPASS", "not a lock", "NOPERM", "refused", "lost", "invalid", "not held"} {
		assert.True(t, strings.Contains(all, want), "no text has to do with %q", want)
	}
	for text := range texts {
		// Redis 7.2 and later names the user whose command it rejects.
		names := strings.ReplaceAll(text, "User "+user, "")
		switch {
		case strings.Contains(text, password):
			assert.Fail(t, fmt.Sprintf("the password: %.500s", text))
		case strings.Contains(names, user):
			assert.Fail(t, fmt.Sprintf("the user: %.500s", text))
		case strings.Contains(text, "the-end-of-a-name"):
			assert.Fail(t, fmt.Sprintf("a whole name: %.500s", text))
		case strings.Contains(text, good.ID()), strings.Contains(text, restricted.ID()):
			assert.Fail(t, fmt.Sprintf("the field of a hold: %.500s", text))
		case len(text) > 4000:
			assert.Fail(t, fmt.Sprintf("%d bytes: %.500s", len(text), text))
		}
	}
}
