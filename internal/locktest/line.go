package locktest

// The line, which is the wait queue of a lock in Redis: what it holds, and clients whose requests a test sends itself.

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const minute = 60_000 // ms

func NewLineBench(t *testing.T, addr string) *Bench {
	b := NewBench(t, addr)
	b.Opts = []relock.Option{relock.WithPollInterval(time.Hour)}
	for _, script := range AllScripts() {
		// Loaded before, so that each request is one command.
		b.Must(b.Rdb.ScriptLoad(ctx, script.Source()).Err())
	}
	return b
}

// LineKeys returns the keys of the line of the bench's lock: those of the writers, if there are any.
func (b *Bench) LineKeys() []string {
	if writers := record.WritersLineKeys(b.LockName); b.Rdb.Exists(ctx, writers...).Val() > 0 {
		return writers
	}
	return record.LineKeys(b.LockName)
}

// WaitsKey returns the key of the places in this line.
func (b *Bench) WaitsKey() string { return b.LineKeys()[1] }

func (b *Bench) ReleaseChannel() string {
	return record.PrefixName("redisson_lock__channel", b.LockName)
}

// Tombstones returns the fields of the bench's lock that have ended.
func (b *Bench) Tombstones() []string {
	b.Helper()
	fields, err := b.Rdb.HKeys(ctx, b.WaitsKey()).Result()
	b.Must(err)
	return slices.DeleteFunc(fields, func(field string) bool { return len(field) <= 36 })
}

// A KeptPlace is an entry of the line, as it is stored in Redis.
type KeptPlace struct {
	Number   int
	Delivery string
	Lease    int
	Fenced   bool
	Asked    uint64
	Field    string
	since    int64 // epoch seconds
	Client   string
}

// Places returns the entries of the line, in order.
func (b *Bench) Places() []KeptPlace { return b.PlacesIn(b.LineKeys()) }

// PlacesIn returns the entries of the line with these keys, in order.
func (b *Bench) PlacesIn(keys []string) (all []KeptPlace) {
	b.Helper()
	order, err := b.Rdb.ZRangeWithScores(ctx, keys[0], 0, -1).Result()
	b.Must(err)
	places, err := b.Rdb.HGetAll(ctx, keys[1]).Result()
	b.Must(err)
	for _, z := range order {
		client := z.Member.(string)
		words := strings.Fields(places[client])
		if len(words) == 0 {
			continue // the hash was lost
		}
		if !assert.Len(b, words, 6, "the place of %s", client) {
			continue
		}
		lease, err := strconv.Atoi(words[1])
		b.Must(err)
		asked, err := strconv.ParseUint(words[3], 10, 64)
		b.Must(err)
		since, err := strconv.ParseInt(words[5], 10, 64)
		b.Must(err)
		all = append(all, KeptPlace{int(z.Score), words[0], lease, words[2] == "1", asked, words[4], since, client})
	}
	return all
}

// ClientsInLine returns the clients that have an entry, in order.
func (b *Bench) ClientsInLine() (all []string) {
	b.Helper()
	for _, p := range b.Places() {
		all = append(all, p.Client)
	}
	return all
}

// Holder returns the field in the record, or "".
func (b *Bench) Holder() string {
	b.Helper()
	fields, err := b.Rdb.HKeys(ctx, b.LockName).Result()
	b.Must(err)
	require.LessOrEqual(b, len(fields), 1, "fields of the record")
	return strings.Join(fields, "")
}

// A Manual is a client whose requests the test sends.
type Manual struct {
	*Bench
	ID     string
	Field  string
	Lease  int // in milliseconds
	Fenced bool
	Asked  int
	Hears  *redis.PubSub // the channel of grants, or nil
}

// Manual returns a client with a field of its own. The keys are deleted at the end of the test.
func (b *Bench) Manual() *Manual {
	id := uuid.NewString()
	b.Cleanup(b.Forget)
	return &Manual{Bench: b, ID: id, Field: id + ":1:1", Lease: minute}
}

func (m *Manual) run(s *send.Script, args ...any) send.Reply {
	m.Helper()
	keys := append([]string{m.LockName}, m.LineKeys()...)
	if m.Fenced {
		keys = append(keys, record.TokenKey(m.LockName))
	}
	r, err := Run(ctx, m.Rdb, send.Call{Script: s, Keys: keys, Args: args})
	m.Must(err)
	return r
}

// Ask asks for the lock; delivery is as in internal/lua/lock_acquire.lua.
func (m *Manual) Ask(delivery string) send.Reply {
	m.Helper()
	m.Asked++
	return m.run(record.Script("lock_acquire"), m.Field, m.Lease, 1, delivery, 1, "publish", m.Asked, m.ReleaseChannel())
}

// Takes acquires a lock that must be free.
func (m *Manual) Takes() *Manual {
	m.Helper()
	r := m.Ask(contract.Barge)
	require.Equal(m, int64(1), r[0], "the lock is not free")
	return m
}

// Joins enters the line. Without a channel of grants the client is not subscribed from then on.
func (m *Manual) Joins() *Manual {
	m.Helper()
	if m.Hears == nil {
		s := m.Subscribe(m.Grants())
		defer testredis.Await(m, "it does not listen any more", Soon, func() bool { return m.Hearers(m.Grants()) == 0 })
		defer func() { _ = s.Close() }()
	}
	require.Equal(m, int64(1), m.Ask(contract.Push)[2]%4, "no place")
	return m
}

// Release releases the lock or leaves the line. The hand-off window never ends, so that the lock passes to the first
// entry.
func (m *Manual) Release(late bool) send.Reply {
	m.Helper()
	return m.ReleaseIn(time.Since(time.Unix(0, 0))*2, late)
}

func (m *Manual) ReleaseIn(slice time.Duration, late bool) send.Reply {
	m.Helper()
	return m.run(record.Script("lock_release"), m.Field, m.ReleaseChannel(), "publish", slice.Milliseconds(), 0, late)
}

func (m *Manual) Grants() string { return m.ReleaseChannel() + ":" + m.ID }

// Listens subscribes to the channel of grants.
func (m *Manual) Listens() *Manual {
	m.Helper()
	m.Hears = m.Subscribe(m.Grants())
	return m
}

// Subscribe returns a subscription that Redis has confirmed.
func (b *Bench) Subscribe(channel string) *redis.PubSub {
	b.Helper()
	s := b.Rdb.Subscribe(ctx, channel)
	b.Cleanup(func() { _ = s.Close() })
	_, err := s.Receive(ctx)
	b.Must(err)
	return s
}
