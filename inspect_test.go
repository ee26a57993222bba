package relock

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/testredis"
)

const (
	javaThread = "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10:42"
	javaOther  = "6b3e8c2f-5d13-4c9f-8e30-1d6b4f208b21:7"
)

func (b *bench) inspect(c *Client) Inspection {
	b.Helper()
	i, err := c.Inspect(context.Background(), b.name)
	b.must(err)
	if i.Name != b.name {
		b.Errorf("the name is %q", i.Name)
	}
	if off := time.Since(i.At).Abs(); off > time.Minute {
		b.Errorf("looked at at %v", i.At)
	}
	return i
}

// about says whether d is close to want, and not more.
func about(d, want time.Duration) bool { return d > want-10*time.Second && d <= want }

func TestInspectPlain(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		holder, looker := b.client(), b.client()
		if i := b.inspect(looker); i.Kind != KindNone || i.Held() || i.TTL != 0 || i.Holders != nil || i.Waiters != nil || i.Token != 0 {
			t.Errorf("nobody holds it: %+v", i)
		}

		lock, me := holder.NewLock(b.name, Fenced()), WithOwner(context.Background())
		b.must(lock.Lock(me))
		b.must(lock.Lock(me))
		token, err := lock.Token(me)
		b.must(err)
		i := b.inspect(looker)
		if i.Kind != KindPlain || !i.Held() || i.Mode != "" || !about(i.TTL, 30*time.Second) || i.Token != token || i.Waiters != nil {
			t.Errorf("%+v, the token is %d", i, token)
		}
		if len(i.Holders) != 1 {
			t.Fatalf("held by %+v", i.Holders)
		}
		h := i.Holders[0]
		if h.Client != holder.ID() || h.Owner != ownerOf(me).String() || h.Levels != 2 || h.Lease != i.TTL || h.Write {
			t.Errorf("held by %+v", h)
		}
		if fields := b.rdb.HKeys(me, b.name).Val(); !slices.Equal(fields, []string{h.Field}) {
			t.Errorf("field %s of %v", h.Field, fields)
		}

		b.must(lock.Unlock(me))
		b.must(lock.Unlock(me))
		if i := b.inspect(looker); i.Kind != KindNone || i.Held() || i.Token != token {
			t.Errorf("nobody holds it any more: %+v", i)
		}
	})
}

// A handover is not seen in Redis: the record says who took the lock there.
func TestInspectAfterAHandover(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	c := b.client(WithHandoverSlice(time.Minute))
	lock, first, second := c.NewLock(b.name), WithOwner(context.Background()), WithOwner(context.Background())
	b.must(lock.Lock(first))
	got := make(chan error, 1)
	go func() { got <- lock.Lock(second) }()
	testredis.Await(t, "one waits at the gate", soon, func() bool { return b.waitsAtGate(lock) })
	b.must(lock.Unlock(first))
	b.must(<-got)
	b.must(lock.Lock(second))
	if i := b.inspect(c); len(i.Holders) != 1 || i.Holders[0].Owner != ownerOf(first).String() || i.Holders[0].Levels != 2 {
		t.Errorf("%+v", i)
	}
	b.must(lock.Unlock(second))
	b.must(lock.Unlock(second))
}

func TestInspectFair(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c := b.client()
		lock, me := c.NewFairLock(b.name), WithOwner(ctx)
		b.must(lock.Lock(me))
		if i := b.inspect(c); i.Kind != KindPlain || len(i.Holders) != 1 {
			t.Errorf("nobody waits: %+v", i)
		}
		var waiters []Contender
		got := make(chan error, 2)
		wait := func() {
			t.Helper()
			w := WithOwner(ctx)
			go func() {
				err := lock.Lock(w)
				if err == nil {
					err = lock.Unlock(w)
				}
				got <- err
			}()
			testredis.Await(t, "it waits", soon, func() bool { return len(b.inspect(c).Waiters) == len(waiters)+1 })
			waiters = append(waiters, Contender{Client: c.ID(), Owner: ownerOf(w).String()})
		}
		wait()
		java := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		b.must(b.rdb.RPush(ctx, "redisson_lock_queue:{"+b.name+"}", javaThread).Err())
		b.must(b.rdb.ZAdd(ctx, "redisson_lock_timeout:{"+b.name+"}", redis.Z{Score: float64(java.UnixMilli()), Member: javaThread}).Err())
		waiters = append(waiters, contender(javaThread))
		wait()

		i := b.inspect(c)
		if i.Kind != KindFair || len(i.Holders) != 1 || len(i.Waiters) != 3 {
			t.Fatalf("%+v", i)
		}
		for n, w := range i.Waiters {
			if w.Client != waiters[n].Client || w.Owner != waiters[n].Owner {
				t.Errorf("waiter %d is %+v, want %+v", n, w, waiters[n])
			}
			if isJava := n == 1; isJava && (!w.Deadline.Equal(java) || !w.Alive.IsZero()) ||
				!isJava && (w.Deadline.Before(i.At) || !about(w.Alive.Sub(i.At), fairLife)) {
				t.Errorf("at %v, waiter %d: %+v", i.At, n, w)
			}
		}

		// A queue that its holder has left.
		b.must(b.rdb.Del(ctx, b.name).Err())
		if i := b.inspect(c); i.Kind != KindFair || i.Held() && i.Holders[0].Owner != waiters[0].Owner { // who asks now and then, too
			t.Errorf("it was deleted: %+v", i)
		}
		b.must(b.rdb.LRem(ctx, "redisson_lock_queue:{"+b.name+"}", 1, javaThread).Err())
		b.must(b.rdb.ZRem(ctx, "redisson_lock_timeout:{"+b.name+"}", javaThread).Err())
		for range 2 {
			b.must(<-got)
		}
	})
}

func TestInspectReadWrite(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c, other := b.client(), b.client()
		rw, me, them := c.NewRWLock(b.name), WithOwner(ctx), WithOwner(ctx)
		b.must(rw.Write().Lock(me))
		b.must(rw.Read().LockLease(me, time.Hour))
		i := b.inspect(other)
		if i.Kind != KindReadWrite || i.Mode != "write" || len(i.Holders) != 2 || !i.Held() {
			t.Fatalf("%+v", i)
		}
		w, r := i.Holders[0], i.Holders[1]
		if !w.Write || w.Client != c.ID() || w.Owner != ownerOf(me).String() || w.Levels != 1 || w.Field == w.Owner || !strings.HasSuffix(w.Field, ":write") {
			t.Errorf("the writer is %+v", w)
		}
		if r.Write || r.Client != c.ID() || r.Owner != ownerOf(me).String() || r.Levels != 1 || !about(r.Lease, time.Hour) {
			t.Errorf("the reader is %+v", r)
		}
		b.must(rw.Write().Unlock(me))

		b.must(other.NewRWLock(b.name).Read().LockLease(them, time.Minute))
		b.must(b.rdb.HSet(ctx, b.name, javaThread, 2, javaOther, 1).Err())
		b.must(b.rdb.Set(ctx, "{"+b.name+"}:"+javaThread+":rwlock_timeout:2", 1, 10*time.Minute).Err())
		i = b.inspect(other)
		leases := map[string]time.Duration{}
		for _, h := range i.Holders {
			if h.Write {
				t.Errorf("a writer: %+v", h)
			}
			leases[h.Client+" "+h.Owner] = h.Lease
		}
		if i.Mode != "read" || len(i.Holders) != 4 || !about(i.TTL, time.Hour) ||
			!about(leases[c.ID()+" "+ownerOf(me).String()], time.Hour) ||
			!about(leases[other.ID()+" "+ownerOf(them).String()], time.Minute) ||
			!about(leases[javaThread[:36]+" thread 42"], 10*time.Minute) ||
			leases[javaOther[:36]+" thread 7"] != 0 {
			t.Errorf("%+v", i)
		}
		b.must(b.rdb.HDel(ctx, b.name, javaThread, javaOther).Err())
		b.must(b.rdb.Del(ctx, "{"+b.name+"}:"+javaThread+":rwlock_timeout:2").Err())

		writer, got := WithOwner(ctx), make(chan error, 1)
		go func() { got <- other.NewRWLock(b.name).Write().Lock(writer) }()
		testredis.Await(t, "a writer waits", soon, func() bool { return len(b.inspect(c).Waiters) == 1 })
		if w := b.inspect(c).Waiters[0]; w.Client != other.ID() || w.Owner != ownerOf(writer).String() || !w.Deadline.IsZero() || w.Alive.Before(time.Now()) {
			t.Errorf("the waiting writer is %+v", w)
		}
		b.must(rw.Read().Unlock(me))
		b.must(other.NewRWLock(b.name).Read().Unlock(them))
		b.must(<-got)
		b.must(other.NewRWLock(b.name).Write().Unlock(writer))
	})
}

// A reader that waits to write, too, is one waiter.
func TestInspectUpgradingReader(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	c := b.client()
	rw, reader := c.NewRWLock(b.name), WithOwner(context.Background())
	other := b.client().NewRWLock(b.name).Read()
	b.must(rw.Read().Lock(reader))
	b.must(other.Lock(reader))
	ctx, giveUp := context.WithCancel(reader)
	got := make(chan error, 1)
	go func() { got <- rw.Write().Lock(ctx) }()
	testredis.Await(t, "a reader waits to write", soon, func() bool { return b.rdb.ZCard(ctx, "relock_rwlock_writers:{"+b.name+"}").Val() == 2 })
	if i := b.inspect(c); len(i.Waiters) != 1 || i.Waiters[0].Owner != ownerOf(reader).String() || len(i.Holders) != 2 {
		t.Errorf("%+v", i)
	}
	giveUp()
	b.mustBe(<-got, context.Canceled)
	b.must(rw.Read().Unlock(reader))
	b.must(other.Unlock(reader))
}

// Nothing but reads, and one request; whatever the name.
func TestInspectOnlyReads(t *testing.T) {
	s := testredis.Start(t)
	b := newBench(t, s.Addr())
	c, ctx := b.client(), context.Background()
	rw := c.NewRWLock(b.name + "-rw").Read()
	b.must(c.NewLock(b.name + "-lock").Lock(ctx))
	b.must(rw.Lock(ctx))
	b.inspect(c) // now the server knows the script
	b.must(b.rdb.ConfigResetStat(ctx).Err())
	names := []string{b.name + "-lock", b.name + "-rw", b.name + "\x00\xff\n%", b.name + "{", "{" + b.name + "}:y", b.name + strings.Repeat("x", 100_000)}
	for _, name := range names {
		if i, err := c.Inspect(ctx, name); err != nil || i.Name != name {
			t.Errorf("%v", err)
		}
	}
	for line := range strings.Lines(b.rdb.Info(ctx, "commandstats").Val()) {
		command, _, found := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		if !found {
			continue
		}
		if !slices.Contains([]string{"evalsha", "hgetall", "hget", "hrandfield", "pttl", "time", "lrange", "zrangebyscore", "get", "config|resetstat"}, command) {
			t.Errorf("it sends %s", line)
		}
		if want := "calls=" + strconv.Itoa(len(names)) + ","; command == "evalsha" && !strings.Contains(line, want) {
			t.Errorf("for %d names: %s", len(names), line)
		}
	}
	b.must(rw.Unlock(ctx))
	b.must(c.NewLock(b.name + "-lock").Unlock(ctx))
}

// The rights of one who may only look, as docs/security.md has them.
func TestInspectRights(t *testing.T) {
	s := testredis.Start(t)
	b := newBench(t, s.Addr())
	d := &deployment{admins: []*redis.Client{b.rdb}, client: func(name, password string) redis.UniversalClient {
		return s.Client(func(o *redis.Options) { o.Username, o.Password = name, password })
	}}
	ctx := context.Background()
	rw := b.client().NewRWLock("lock:orders:" + b.name).Read()
	b.must(rw.Lock(ctx))
	commands := []string{"+evalsha", "+eval", "+hgetall", "+hget", "+hrandfield", "+pttl", "+lrange", "+zrangebyscore", "+get", "+time"}
	rights := slices.Concat(smallestKeys, commands)
	if i, err := d.user(b, rights).Inspect(ctx, rw.Name()); err != nil || len(i.Holders) != 1 {
		t.Errorf("%+v, %v", i, err)
	}
	for _, right := range slices.Concat(smallestKeys, commands[2:]) {
		if _, err := d.user(b, without(rights, right)).Inspect(ctx, rw.Name()); !refused(err) {
			t.Errorf("without %s: %v", right, err)
		}
	}
	b.must(rw.Unlock(ctx))
}

func TestInspectWhatIsNoLock(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		ctx := context.Background()
		for text, make := range map[string]func(b *bench) error{
			`" holds a string that`: func(b *bench) error { return b.rdb.Set(ctx, b.name, "a string", 0).Err() },
			`" holds a set that`:    func(b *bench) error { return b.rdb.SAdd(ctx, b.name, "a set").Err() },
			`"redisson_lock_queue:{`: func(b *bench) error {
				return b.rdb.Set(ctx, "redisson_lock_queue:{"+b.name+"}", "a string", 0).Err()
			},
			`"relock_lock_alive:{`: func(b *bench) error { return b.rdb.RPush(ctx, "relock_lock_alive:{"+b.name+"}", "a list").Err() },
			`holds a hash that no lock makes (field "colour")`: func(b *bench) error {
				return b.rdb.HSet(ctx, b.name, "colour", "red", javaThread, 7).Err()
			},
			`holds a hash that no lock makes (field "n")`: func(b *bench) error { return b.rdb.HSet(ctx, b.name, "n", 0).Err() },
			`holds a hash that no lock makes (field "mode")`: func(b *bench) error {
				return b.rdb.HSet(ctx, b.name, "mode", "dark"+strings.Repeat("!", 500), "n", math.MaxInt64).Err()
			},
			`holds a token counter that is no number`: func(b *bench) error {
				return b.rdb.Set(ctx, "redisson_lock_token:{"+b.name+"}", "many", 0).Err()
			},
		} {
			b := newBench(t, addr)
			b.must(make(b))
			i, err := b.client().Inspect(ctx, b.name)
			if !errors.Is(err, ErrNotALock) || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), strconv.Quote(b.name)) || len(err.Error()) > 300 {
				t.Errorf("%q: %+v, %v", text, i, err)
			}
			b.forget()
		}
	})
}

func TestInspectRefuses(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	c, ctx := b.client(), context.Background()
	for name, want := range map[string]string{"": "the name is empty", strings.Repeat("x", longestName+1): "bytes"} {
		if _, err := c.Inspect(ctx, name); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
	}
	if _, err := (*Client)(nil).Inspect(ctx, b.name); !errors.Is(err, ErrInvalid) {
		t.Errorf("%v", err)
	}
	//lint:ignore SA1012 that is what is tested
	if _, err := c.Inspect(nil, b.name); !errors.Is(err, ErrInvalid) {
		t.Errorf("%v", err)
	}
	ended, end := context.WithCancel(ctx)
	end()
	if _, err := c.Inspect(ended, b.name); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	b.must(c.Close())
	if _, err := c.Inspect(ctx, b.name); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
}

func TestContender(t *testing.T) {
	const client = "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10"
	for field, want := range map[string]Contender{
		client + ":7:1":    {Client: client, Owner: "goroutine 7"},
		client + ":-7:12":  {Client: client, Owner: "owner 7"},
		client + ":42":     {Client: client, Owner: "thread 42"},
		client + ":42:tx9": {Client: client, Owner: "thread 42"},
		client:             {Owner: client},
		client + ":":       {Owner: client + ":"},
		client + ":x":      {Owner: client + ":x"},
		client + "7:7":     {Owner: client + "7:7"},
		"{" + client + "}": {Owner: "{" + client + "}"},
		"somebody":         {Owner: "somebody"},
		"":                 {},
	} {
		want.Field = field
		if got := contender(field); got != want {
			t.Errorf("%s: %+v", field, got)
		}
	}
}

func TestParseRecords(t *testing.T) {
	list := func(all ...any) []any { return all }
	good := list(int64(1), int64(2), list("f", "1", int64(2)), list("f"), list("f", "1.5e3"), list("f", "-inf"), list("f", "9e15"), "")
	r, err := parseRecords(good)
	if err != nil || len(r.entries) != 1 || len(r.queue) != 1 || r.timeouts["f"] != 1500 || r.beats["f"] != 1 || epochTime(r.awaiting["f"]).UTC().Year() != 9999 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, bad := range []any{nil, int64(1), "", list(), good[:7]} {
		if _, err := parseRecords(bad); !errors.Is(err, errReply) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	for i := range good {
		for _, part := range []any{nil, true, list("f"), list("f", "many"), list("f", "nan"), list(int64(1), "1", int64(2)), list(list())} {
			if _, isQueue := part.([]any); isQueue && i == 3 {
				continue
			}
			bad := slices.Clone(good)
			bad[i] = part
			if _, err := parseRecords(bad); !errors.Is(err, errReply) {
				t.Errorf("part %d: %v: %v", i, part, err)
			}
		}
	}
}

func TestInspectOnACluster(t *testing.T) {
	t.Parallel()
	b := newClusterBench(t, testredis.StartCluster(t, 3, 0))
	c, ctx := b.client(), context.Background()
	for _, name := range []string{b.name, "{" + b.name + "}:x", b.name + "-c"} {
		lock := c.NewLock(name)
		b.must(lock.Lock(ctx))
		if i, err := c.Inspect(ctx, name); err != nil || i.Kind != KindPlain || len(i.Holders) != 1 {
			t.Errorf("%+v, %v", i, err)
		}
		b.must(lock.Unlock(ctx))

		rw := c.NewRWLock(name).Read()
		b.must(rw.LockLease(ctx, time.Hour))
		if i, err := c.Inspect(ctx, name); err != nil || i.Kind != KindReadWrite || len(i.Holders) != 1 || !about(i.Holders[0].Lease, time.Hour) {
			t.Errorf("%+v, %v", i, err)
		}
		b.must(rw.Unlock(ctx))
	}
	if _, err := c.Inspect(ctx, "{}"+b.name); !errors.Is(err, ErrInvalid) {
		t.Errorf("its keys are in several slots: %v", err)
	}
}
