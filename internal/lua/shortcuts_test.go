package lua_test

// The short cuts of scripts do what the code behind them does. Random requests run on
// two databases of a real Redis, with the scripts as they are sent and with those without short cuts. The answers, the
// data, the leases and the messages are the same.
//
//	go test -run '^TestShortCutsDoWhatTheCodeBehindThemDoes$' -shortcuts.seed=7 ./internal/lua   # one sequence once more

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/lua"
	"github.com/relock-go/relock/internal/lua/luatest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/tests/seeds"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var shortCuts = seeds.New("shortcuts")

// Rules: the scripts run by a clock of their own, so that the two databases cannot differ by the time between two runs:
// see luatest.
const sequenceSteps = 60

// A twin is one of the two databases.
type twin struct {
	*locktest.Bench
	scripts map[*send.Script]*redis.Script
}

// An effect is what a request has done.
type effect struct {
	reply      []any
	told, data string
	ran        int // commands
}

func (w *twin) run(now time.Time, c send.Call) effect {
	e, err := luatest.Run(context.Background(), w.Rdb, w.scripts[c.Script], now, c.Keys, c.Args...)
	w.Must(err)
	return effect{e.Reply, fmt.Sprint(e.Messages), strings.TrimSpace(e.Data), len(e.Commands)}
}

var (
	heldRecord  = regexp.MustCompile(`(?m)^(lock hash|\{lock\}:timeout zset) .*`)
	fieldOfLock = regexp.MustCompile(`[0-9a-f-]{36}:\d:\d+(\+\d)?`)
)

const lockName = "lock" // of a sequence

type makesRecord = func(c *Client, name string) contract.Record

// A twinBench draws requests.
type twinBench struct {
	*testing.T
	twins   [2]*twin // with short cuts, and without
	ears    *redis.PubSub
	clients []*Client
	heard   map[string]bool // what ears is subscribed to
	taken   map[string]int  // how often each short cut was taken

	rng     *rand.Rand
	seed    uint64
	digest  *seeds.Digest
	ids     *strings.Replacer // of clients, which are new in each run
	verb    string            // that publishes
	fenced  bool
	denied  string          // the command that the user may not run, or ""
	messed  bool            // the line had other data
	ruled   bool            // the rules of the line are checked: see line_rules_test.go
	permits bool            // the lock is a semaphore
	told    map[string]bool // clients that know that the lock is free
	now     time.Time
	data    string // after the last request
	history []string
}

// long returns a script without its common case and its short cuts. A short cut is the code between a line --[[short cut]]
// and the next line --[[end]]. It does in common cases what the code behind it does in all cases, so a script has the
// same effects without it. The common case is the shortest of them.
func long(name string) string { return shortCut.ReplaceAllString(lua.Source(name), "") }

var shortCut = regexp.MustCompile(`(?ms)^ *--\[\[(common case|short cut)\]\]\n.*?^ *--\[\[end\]\]\n`)

// These scripts have short cuts. The others have none.
func TestShortCutsAreMarked(t *testing.T) {
	t.Parallel()
	var found []string
	for _, name := range lua.Names() {
		require.NotContains(t, long(name), "--[[", name)
		if lua.Source(name) != long(name) {
			found = append(found, name)
		}
	}
	assert.Equal(t, []string{
		"fair_acquire", "fair_release", "lock_acquire", "lock_release", "read_acquire", "read_release",
		"semaphore_acquire", "semaphore_release", "write_acquire", "write_release",
	}, found)
}

func newTwinBench(t *testing.T) *twinBench {
	s := testredis.Start(t)
	b := &twinBench{T: t, heard: make(map[string]bool), taken: make(map[string]int)}
	for i, source := range []func(name string) string{lua.Source, long} {
		rdb := testredis.Client(t, s.Addr(), func(o *redis.Options) { o.DB = i })
		w := &twin{&locktest.Bench{T: t, Addr: s.Addr(), Rdb: rdb, LockName: lockName}, make(map[*send.Script]*redis.Script)}
		for name, script := range record.Scripts {
			w.scripts[script] = luatest.New(source(name))
		}
		b.twins[i] = w
	}
	rdb := b.twins[0].Rdb
	b.ears = rdb.Subscribe(t.Context())
	t.Cleanup(func() { assert.NoError(t, b.ears.Close()) })
	var ids []string
	for i := range 3 {
		b.clients = append(b.clients, b.twins[0].Client())
		ids = append(ids, b.clients[i].ID(), fmt.Sprint("client ", i))
	}
	b.ids = strings.NewReplacer(ids...)
	return b
}

// hears subscribes to a channel, or to all, and waits until that is done. A sequence whose messages are sharded
// subscribes to sharded channels.
func (b *twinBench) hears(channel string, on bool) {
	do, kind := b.ears.Unsubscribe, "unsubscribe"
	switch sharded := b.verb == "spublish"; {
	case channel == "*" && on:
		do, kind = b.ears.PSubscribe, "psubscribe"
	case channel == "*":
		do, kind = b.ears.PUnsubscribe, "punsubscribe"
	case on && sharded:
		do, kind = b.ears.SSubscribe, "ssubscribe"
	case on:
		do, kind = b.ears.Subscribe, "subscribe"
	case sharded:
		do, kind = b.ears.SUnsubscribe, "sunsubscribe"
	}
	what := strings.TrimPrefix(kind, "un") + channel
	if what = strings.Replace(what, "unsub", "sub", 1); b.heard[what] == on {
		return
	}
	b.heard[what] = on
	require.NoError(b, do(b.Context(), channel))
	for { // messages come before the confirmation
		m, err := b.ears.ReceiveTimeout(b.Context(), locktest.Soon)
		require.NoError(b, err)
		if s, ok := m.(*redis.Subscription); ok && s.Kind == kind && s.Channel == channel {
			return
		}
	}
}

func (b *twinBench) oneIn(n int) bool { return b.rng.IntN(n) == 0 }

func pick[T any](b *twinBench, of ...T) T { return of[b.rng.IntN(len(of))] }

// fields returns the fields of a client in data, each once. Their order depends on the seed alone, as the IDs of clients
// do not.
func fields(c *Client, data string) []string {
	all := slices.DeleteFunc(fieldOfLock.FindAllString(data, -1), func(f string) bool { return !strings.HasPrefix(f, c.ID()) })
	slices.Sort(all)
	return slices.Compact(all)
}

// field returns one of the fields of a client: with a probability of known in 10 one that is in Redis. A hold of a read
// lock and one of another lock never have the same field. Here the number of a read lock's field contains a 5.
func (b *twinBench) field(c *Client, reads bool, known int) string {
	there := slices.DeleteFunc(fields(c, b.data), func(field string) bool {
		return strings.Contains(field[strings.LastIndex(field, ":"):], "5") != reads
	})
	if len(there) > 0 && b.rng.IntN(10) < known {
		field, _, _ := strings.Cut(pick(b, there...), "+")
		return field
	}
	return fmt.Sprintf("%s:%d:%s%d", c.ID(), 1+b.rng.IntN(2), map[bool]string{true: "5"}[reads], 1+b.rng.IntN(2))
}

// holder returns a field that has the lock, or "".
func (b *twinBench) holder() string {
	record, all := heldRecord.FindString(b.data), []string{}
	for _, c := range b.clients {
		all = append(all, fields(c, record)...)
	}
	if len(all) == 0 {
		return ""
	}
	return pick(b, all...)
}

// attempt draws what a client asks for.
func (b *twinBench) attempt(c *Client, reads bool) contract.Attempt {
	return contract.Attempt{
		Field: b.field(c, reads, 5), Lease: pick[time.Duration](b, 3, 20, 60) * time.Second, HoldCount: 1 + b.rng.IntN(6)/5,
		Delivery: pick(b, contract.Barge, contract.Defer, contract.Push, contract.Push, contract.Push, contract.Poll),
		Asked:    uint64(1 + b.rng.IntN(9)), Late: b.oneIn(20), NoWait: b.oneIn(4), AdoptsRecord: b.oneIn(4),
		Share: pick[time.Duration](b, 0, time.Second, time.Hour),
	}
}

// request draws a request for a lock, whose type is one of kinds.
func (b *twinBench) request(kinds []makesRecord) (send.Call, string) {
	c := pick(b, b.clients...)
	l := pick(b, kinds...)(c, lockName)
	reads := l.Traits().Type == string(TypeRead)
	a := b.attempt(c, reads)
	if n := l.Traits().Permits(); n > 1 {
		a.Field += fmt.Sprint("+", n)
	}
	end := a // of a hold or a wait that there is, as a rule
	end.Field = b.holder()
	if end.Field == "" || b.oneIn(2) {
		end.Field = strings.Replace(a.Field, strings.Split(a.Field, "+")[0], b.field(c, reads, 8), 1)
	}
	release := contract.Release{Field: end.Field, HoldCount: b.rng.IntN(6) / 5, Late: b.oneIn(20), Share: a.Share}
	number := strings.LastIndexByte(end.Field, ':') + 1
	to := contract.Rename{
		From: end.Field, To: end.Field[:number] + "9" + end.Field[number:], Lease: a.Lease, Late: b.oneIn(2),
	}
	var one send.Call
	switch b.rng.IntN(20) {
	default:
		one = l.Acquire(a)
	case 10, 11, 12, 13, 14, 15:
		one = l.Release(release)
	case 16:
		one = l.RollBack(end)
	case 17:
		one = pick(b, l.Renew(end.Field, a.Lease, b.oneIn(2)), l.Rename(to))
	}
	one.Args = slices.Clone(one.Args)
	for i, arg := range one.Args {
		if arg == "publish" || arg == "spublish" {
			one.Args[i] = b.verb
		}
	}
	for name, script := range record.Scripts {
		if script == one.Script {
			return one, name
		}
	}
	return one, ""
}

// happens draws something that is no request: leases expire, clients subscribe and die, other programs write.
func (b *twinBench) happens(kinds []makesRecord) {
	name := lockName
	line, what := record.WritersLineKeys(name), ""
	if c := pick(b, kinds...)(b.clients[0], name).Rename(contract.Rename{}); c.Keys[1] != line[1] {
		line = record.LineKeys(name)
	}
	do := func(text string, command ...any) {
		what = text
		for _, w := range b.twins {
			w.Must(w.Rdb.Do(b.Context(), command...).Err())
		}
	}
	switch b.rng.IntN(16) {
	case 0, 1:
		do("the lease expires", "del", name)
	case 2:
		if b.oneIn(3) {
			lost := pick(b, line[0], line[1])
			do("a key of the line is lost: "+lost, "del", lost)
			b.messed = true
		}
	case 3:
		id, lease := pick(b, b.clients...).ID(), pick(b, "5000", "30000")
		place := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(line[1]) + `.*` + id + `=(push) \d+ ([^,\n]*)`).FindStringSubmatch(b.data)
		if place != nil {
			do(id+" has a grant of "+lease, "hset", line[1], id, place[1]+" "+lease+" "+place[2])
		}
	case 4:
		if b.twins[0].Rdb.Exists(b.Context(), name).Val() != 0 {
			break
		}
		do("Java has it", "hset", name, locktest.JavaThread, 1)
		do("Java has it", "pexpire", name, 100_000_000)
		do("Java has it", "hset", luatest.ClockKey, "ends "+name, b.now.UnixMilli()+30_000)
	case 5:
		on := b.oneIn(2)
		b.hears("*", on)
		what = fmt.Sprint("a pattern is heard: ", on)
	case 6:
		channel, on := pick(b, announced(lockName)...), b.oneIn(2)
		b.hears(channel, on)
		what = fmt.Sprint(channel, " is heard: ", on)
	case 7:
		if !b.fenced && !b.ruled { // a request that fails may draw a token, and one with a short cut may draw two
			command := pick(b, "", "", "", "hset", "hget", "hmget", "hdel", "hlen", "pexpire", "pttl", "publish",
				"pubsub", "time", "del", "zrem", "incrby")
			do("without "+command, "hset", luatest.ClockKey, "denied", command)
			b.denied = command
		}
	case 8:
		if b.oneIn(3) && !b.ruled {
			b.mess(do, line)
			b.messed = true
		}
	default:
		c, on := pick(b, b.clients...), b.oneIn(2)
		for _, l := range kinds {
			b.hears(l(c, name).Grants(contract.Attempt{}), on)
		}
		what = fmt.Sprintf("%s listens: %t", c.ID(), on)
	}
	b.history = append(b.history, what)
}

// mess puts other data into the line.
func (b *twinBench) mess(do func(text string, command ...any), line []string) {
	field := pick(b, "shared", "1", b.clients[0].ID())
	value := pick(b, "", "x", "7", "-1", locktest.VeryMany, b.clients[1].ID(), "push 8000 0 1 "+b.clients[1].ID()+":1:1 1")
	if b.oneIn(4) {
		key := pick(b, line...)
		do(key+" is a text", "del", key)
		do(key+" is a text", "set", key, value)
		return
	}
	if kind := b.twins[0].Rdb.Type(b.Context(), line[0]).Val(); b.oneIn(4) && (kind == "zset" || kind == "none") {
		number := pick(b, "0", "1", "1e15", "+inf")
		do("another has the number "+number, "zadd", line[0], number, pick(b, b.clients[1].ID(), "x"))
		return
	}
	if b.oneIn(4) && b.twins[0].Rdb.Type(b.Context(), lockName).Val() == "hash" {
		do("another program holds it, too", "hset", lockName, locktest.JavaOther, 1)
		return
	}
	if b.twins[0].Rdb.Type(b.Context(), line[1]).Val() == "hash" {
		do("the line has "+field+" "+value, "hset", line[1], field, value)
	}
}

// announced returns the channels on which the release of a lock is announced.
func announced(name string) []string {
	return []string{record.PrefixName("redisson_lock__channel", name), record.PrefixName("redisson_rwlock", name),
		record.PrefixName("redisson_sc", name)}
}

// play plays the sequence of requests of a seed.
func (b *twinBench) play(s *seeds.Sequence) {
	outer := b.T
	b.T, b.twins[0].T, b.twins[1].T = s.T, s.T, s.T
	defer func() { b.T, b.twins[0].T, b.twins[1].T = outer, outer, outer }()
	b.rng, b.seed, b.digest = rand.New(rand.NewPCG(s.Seed, 1)), s.Seed, s.Digest
	b.history, b.data, b.denied, b.messed = nil, "", "", false
	b.now, b.verb, b.fenced = time.Unix(1_700_000_000, 0), pick(b, "publish", "publish", "publish+spublish", "spublish"), b.oneIn(3)
	if b.ruled { // on a Cluster, requests that defer name the command that publishes: see Acquire of the plain lock
		b.verb = "publish"
	}
	for _, w := range b.twins {
		w.Must(w.Rdb.FlushDB(b.Context()).Err())
	}
	plain, fair, reader, writer := locktest.RecordOfLock, locktest.RecordOfFair, locktest.RecordOfReader, locktest.RecordOfWriter
	if b.fenced {
		fencedOf := func(of func(c *Client, name string) Locker) makesRecord {
			return func(c *Client, name string) contract.Record { return locktest.RecordOf(of(c, name)) }
		}
		plain = fencedOf(func(c *Client, name string) Locker { return c.NewLock(name, Fenced()) })
		fair = fencedOf(func(c *Client, name string) Locker { return c.NewFairLock(name, Fenced()) })
		writer = fencedOf(func(c *Client, name string) Locker { return c.NewRWLock(name, Fenced()).Write() })
	}
	kinds := [][]makesRecord{
		{plain}, {plain}, {plain, plain, plain, writer}, {plain, plain, writer}, {plain, plain, reader, writer},
		{plain, plain, fair}, {fair}, {reader}, {reader}, {reader, writer}, {writer},
		{permitsFor(1, 3), permitsFor(1, 3), permitsFor(2, 3), permitsFor(1, 4)},
	}
	all := pick(b, kinds...)
	b.permits = all[0](b.clients[0], lockName).Traits().Type == string(TypeSemaphore)
	b.told = make(map[string]bool)
	b.hears("*", false)
	for _, channel := range announced(lockName) {
		b.hears(channel, false)
	}
	for _, c := range b.clients {
		for _, l := range all {
			b.hears(l(c, lockName).Grants(contract.Attempt{}), b.rng.IntN(4) > 0)
		}
	}
	for range sequenceSteps {
		b.now = b.now.Add(pick[time.Duration](b, 0, 0, 1, 1, 30, 30, 200, 200, -300, 2_000, 9_000)*time.Millisecond +
			time.Duration(b.rng.IntN(1000))*time.Microsecond)
		if b.oneIn(3) {
			b.happens(all)
		}
		if !b.step(b.request(all)) {
			return
		}
	}
}

// permitsFor returns how to make the record of holds that have n of so many permits.
func permitsFor(n, of int) makesRecord {
	return func(c *Client, name string) contract.Record {
		s := c.NewSemaphore(name, of)
		if n == 1 {
			return locktest.RecordOf(s)
		}
		return locktest.SeveralOf(s, n)
	}
}

// step runs a request in both databases. It reports false if they differ from now on. The code behind a short cut may
// need a command that the user may not run, or refuse a line that the short cut does not read whole.
func (b *twinBench) step(c send.Call, name string) bool {
	b.history = append(b.history, fmt.Sprint(name, c.Keys, c.Args))
	var before []seenLine
	if b.ruled {
		before = b.seesLines()
	}
	short, long := b.twins[0].run(b.now, c), b.twins[1].run(b.now, c)
	b.digest.Note(b.ids.Replace(fmt.Sprint(b.history[len(b.history)-1], long.reply, long.told)))
	if strings.Contains(fmt.Sprint(short.reply, long.reply), "user_script") {
		require.Fail(b, "an error in a script", "%v, %v, %s", short.reply, long.reply, b)
	}
	same := slices.Equal(short.reply, long.reply) && short.told == long.told && short.data == long.data
	if !same && b.denied != "" && (short.reply[0] != "error" || long.reply[0] == "error") ||
		b.messed && short.reply[0] != "error" && long.reply[0] == "error" {
		return false
	}
	require.Equal(b, long.reply, short.reply, "the answer: %s", b)
	require.Equal(b, long.told, short.told, "the messages: %s", b)
	require.Equal(b, long.data, short.data, "the data: %s", b)
	b.data = short.data
	for _, line := range before {
		b.followsTheRules(c, name, line, short)
	}
	if short.ran < long.ran || name == "lock_release" {
		b.taken[fmt.Sprint(name, short.reply[0])+map[bool]string{true: " and passes on"}[strings.Contains(short.told, " grant ")]]++
	}
	return true
}

// String returns what has happened in this sequence.
func (b *twinBench) String() string {
	return fmt.Sprintf("seed %d, after\n%s", b.seed, strings.Join(b.history, "\n"))
}

func TestShortCutsDoWhatTheCodeBehindThemDoes(t *testing.T) {
	t.Parallel()
	b := newTwinBench(t)
	shortCuts.Play(t, locktest.Full(100, 1_000), b.play)
	t.Logf("short cuts taken: %v", b.taken)
	if shortCuts.IsChosen() {
		return
	}
	for _, name := range []string{"lock_acquire1", "lock_acquire0", "lock_release1", "lock_release1 and passes on",
		"fair_acquire1", "fair_release1", "write_acquire1", "write_release1", "read_acquire1", "read_release1",
		"semaphore_acquire1", "semaphore_release1"} {
		assert.GreaterOrEqual(t, b.taken[name], locktest.Full(5, 20), name)
	}
}
