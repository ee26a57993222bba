package send

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

var (
	takes = NewScript("redis.call('set', KEYS[1], 1) return '1 0 0'")
	busy  = NewScript("redis.call('set', KEYS[1], 1) return '0 0 0'")
)

func TestVerdictOnTheAnswerToWait(t *testing.T) {
	s := Synced{Replicas: 2, Within: 300 * time.Millisecond}
	assert.NoError(t, s.verdict(int64(2), nil))
	assert.NoError(t, s.verdict(int64(3), nil))
	for want, err := range map[string]error{
		"1 of 2 within 300ms":               s.verdict(int64(1), nil),
		"needs WAIT, which this Redis":      s.verdict(nil, refusal("ERR unknown command")),
		"no answer to WAIT: EOF":            s.verdict(nil, io.EOF),
		`unexpected answer to WAIT: "OK"`:   s.verdict("OK", nil),
		"not confirmed by enough replicas:": s.verdict(nil, nil),
	} {
		assert.ErrorIs(t, err, ErrNotSynced)
		assert.ErrorContains(t, err, want)
		assert.True(t, Answered(err), "the call has run")
		assert.True(t, MayHaveRun(err))
		assert.False(t, Transient(err))
	}
}

func TestWaitIsRoundedUpToMilliseconds(t *testing.T) {
	for within, want := range map[time.Duration]int64{time.Millisecond: 1, time.Millisecond + 1: 2,
		2*time.Millisecond - 1: 2, time.Second: 1000} {
		assert.Equal(t, []any{"wait", 1, want}, Synced{1, within}.wait(context.Background()).Args())
	}
}

// Only a call that has acquired something waits for replicas. There are none here, so a WAIT would take its whole
// time.
func TestOnlyACallThatHasTakenSomethingWaits(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	ctx := context.Background()
	const within = time.Second / 2
	r := NewRedis(s.Client(), Synced{Replicas: 1, Within: within})
	call := func(s *Script) Call { return Call{Script: s, Keys: []string{"x"}} }
	for name, test := range map[string]struct {
		script *Script
		taking bool
		waits  bool
	}{
		"taken":             {takes, true, true},
		"busy":              {busy, true, false},
		"a release":         {takes, false, false},
		"the common case":   {NewScript("redis.call('set', KEYS[1], 1) return 0"), true, true},
		"what is no answer": {NewScript("return redis.status_reply('OK')"), true, false},
	} {
		start := time.Now()
		_, err := r.Run(ctx, call(test.script), test.taking)
		assert.Equal(t, test.waits, errors.Is(err, ErrNotSynced), "%s: %v", name, err)
		assert.Equal(t, test.waits, time.Since(start) >= within, name)
	}
	outcomes := r.RunAll(ctx, []Call{call(takes), call(busy)}, true)
	assert.ErrorIs(t, outcomes[0].Err, ErrNotSynced)
	assert.NoError(t, outcomes[1].Err)
	assert.NoError(t, r.RunAll(ctx, []Call{call(takes)}, false)[0].Err)
}

func TestRedisWithoutWaitIsNotSynced(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"no permission": {"--user", "default", "on", "nopass", "~*", "&*", "+@all", "-wait"},
		"no such thing": {"--rename-command", "WAIT", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewRedis(testredis.Start(t, args...).Client(), Synced{Replicas: 1, Within: 20 * time.Millisecond})
			_, err := r.Run(context.Background(), Call{Script: takes, Keys: []string{"x"}}, true)
			assert.ErrorIs(t, err, ErrNotSynced)
			assert.ErrorContains(t, err, "WAIT")
		})
	}
}

// Connections that are opened at the same time are no data race, with the options that go-redis has by default.
func TestSyncedCallsConnectAtTheSameTime(t *testing.T) {
	t.Parallel()
	calls := []bool{true, true, false}
	var refused, all sync.WaitGroup
	refused.Add(len(calls))
	r := NewRedis(testredis.Start(t).Client(func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return meeting{conn, &refused}, err
		}
	}), Synced{Replicas: 1, Within: time.Millisecond})
	for _, taking := range calls {
		waitgroup.Go(&all, func() {
			_, err := r.Run(context.Background(), Call{Script: busy, Keys: []string{"x"}}, taking)
			assert.NoError(t, err)
		})
	}
	all.Wait()
}

// A meeting is a connection that waits for the others when Redis has refused to notify it of maintenance.
type meeting struct {
	net.Conn
	refused *sync.WaitGroup
}

func (m meeting) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	if bytes.Contains(b[:n], []byte("maint_notifications")) {
		m.refused.Done()
		m.refused.Wait()
	}
	return n, err
}

func TestSyncedReplicasNeedAServerOrACluster(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": "127.0.0.1:1"}})
	defer func() { assert.NoError(t, ring.Close()) }()
	_, err := NewRedis(ring, Synced{Replicas: 1}).Run(context.Background(), Call{Script: takes, Keys: []string{"x"}}, true)
	assert.ErrorIs(t, err, ErrInvalid)
}

// On a Cluster the WAIT is sent to the master of the key, also while the slot is being moved to another one.
func TestSyncedCallsFollowTheirSlot(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 1)
	ctx := context.Background()
	r := NewRedis(cluster.Client(), Synced{Replicas: 1, Within: time.Second})
	run := func(key string) error {
		_, err := ParseReply(r.Run(ctx, Call{Script: takes, Keys: []string{key}}, true))
		return err
	}
	runAll := func(keys ...string) error {
		var calls []Call
		for _, key := range keys {
			calls = append(calls, Call{Script: takes, Keys: []string{key}})
		}
		_, errs := parseOutcomes(r.RunAll(ctx, calls, true))
		return errors.Join(errs...)
	}
	require.NoError(t, run("{a}1"))
	require.NoError(t, runAll("{a}1", "{b}1", "{c}1", "{d}1"), "of all masters")

	from, to := cluster.MasterOf("{a}"), cluster.Nodes()[0]
	if to == from {
		to = cluster.Nodes()[1]
	}
	finish := cluster.BeginMigration("{a}", to)
	assert.NoError(t, run("{a}2"), "ASK: a new key is there already")
	assert.NoError(t, runAll("{a}3", "{b}3"), "ASK in a pipeline")
	finish()
	assert.NoError(t, run("{a}4"), "MOVED")
	assert.NoError(t, runAll("{a}5", "{b}5"), "MOVED in a pipeline")

	to.RefuseReplicas()
	defer to.AcceptReplicas()
	assert.ErrorIs(t, run("{a}6"), ErrNotSynced)
	assert.ErrorIs(t, runAll("{a}7"), ErrNotSynced)
	assert.NoError(
		t,
		func() error { _, err := r.Run(ctx, Call{Script: takes, Keys: []string{"{a}8"}}, false); return err }(),
		"a release",
	)
}
