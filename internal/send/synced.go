package send

// Calls that replicas confirm: a WAIT follows each call that acquires or renews something.
//
// Rules: a WAIT applies to the writes of its own connection, so it is sent over the same connection, to one master,
// also on a Cluster. No WAIT follows calls that have acquired nothing: it would wait for the writes of others, and
// occupy a connection. ErrNotSynced means that the call has run nevertheless, so the caller rolls back an attempt and
// does not count a renewal. A release waits for no replica: if a failover loses a release, the lock expires with its
// lease.

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Synced describes how many replicas have to confirm a call, and within which time.
type Synced struct {
	Replicas int // 0: no confirmation is needed
	Within   time.Duration
}

// wait returns the WAIT that follows a call.
func (s Synced) wait(ctx context.Context) onceCmd {
	up := time.Millisecond - 1 // Redis counts in milliseconds
	return newOnceCmd(ctx, "wait", s.Replicas, (s.Within + up).Milliseconds())
}

// verdict returns nil if the answer to a WAIT reports enough replicas.
func (s Synced) verdict(answer any, err error) error {
	confirmed, ok := answer.(int64)
	switch {
	case err != nil && Answered(err):
		return fmt.Errorf("%w: WithSyncedReplicas needs WAIT, which this Redis rejects: %w", ErrNotSynced, err)
	case err != nil:
		return fmt.Errorf("%w: no answer to WAIT: %w", ErrNotSynced, err)
	case !ok:
		return fmt.Errorf("%w: unexpected answer to WAIT: %s", ErrNotSynced, ShortName(fmt.Sprint(answer)))
	case confirmed < int64(s.Replicas):
		return fmt.Errorf("%w: %d of %d within %v", ErrNotSynced, confirmed, s.Replicas, s.Within)
	}
	return nil
}

// run runs calls on a server, followed by a WAIT if any of them has acquired or renewed something. A Watch without keys
// sends nothing, and its Tx keeps one connection. So does a Conn, but while it connects, go-redis 9.22 and 9.23 write
// the options of its client without their lock.
func (s Synced) run(ctx context.Context, rdb redis.UniversalClient, calls []Call, asking bool) (outcomes []Outcome) {
	err := rdb.Watch(ctx, func(tx *redis.Tx) error {
		outcomes = pipeline{tx, asking}.run(ctx, calls)
		var taken []*Outcome
		for i := range outcomes {
			o := &outcomes[i]
			if reply, err := ParseReply(o.Answer, o.Err); err == nil && reply[0] == 1 {
				taken = append(taken, o)
			}
		}
		if len(taken) == 0 {
			return nil
		}
		wait := s.wait(ctx)
		_ = tx.Process(ctx, wait)
		unsynced := s.verdict(wait.Result())
		for _, o := range taken {
			o.Err = unsynced
		}
		return nil
	})
	if outcomes == nil { // there was no connection
		return failed(calls, err)
	}
	return outcomes
}

// runSynced runs calls in a pipeline, which a WAIT follows. Those for other masters than the first one are redirected.
func (r *Redis) runSynced(ctx context.Context, calls []Call) []Outcome {
	if one, _ := OptionsOf(r.rdb); one != nil {
		return r.synced.run(ctx, r.rdb, calls, false)
	}
	cluster := ClusterOf(r.rdb)
	if cluster == nil {
		return failed(calls, Invalid("WithSyncedReplicas needs a *redis.Client or a *redis.ClusterClient"))
	}
	// A ClusterClient would send the WAIT to an arbitrary node.
	master, err := cluster.MasterForKey(ctx, calls[0].key())
	if err != nil {
		return failed(calls, err)
	}
	outcomes := r.synced.run(ctx, master, calls, false)
	for i, o := range outcomes {
		if there, ask := redirection(ctx, cluster, o.Err); there != nil {
			outcomes[i] = r.synced.run(ctx, there, calls[i:i+1], ask)[0]
		}
	}
	return outcomes
}

// failed returns the outcomes of calls of which none was sent, or all have the same error.
func failed(calls []Call, err error) []Outcome {
	return slices.Repeat([]Outcome{{Err: err}}, len(calls))
}

// redirection returns the node to which err redirects, and whether the slot is only being moved there. It returns nil
// if err is not a redirection, or redirects to a node that go-redis does not know yet.
func redirection(ctx context.Context, cluster Cluster, err error) (there *redis.Client, ask bool) {
	addr, moved := redis.IsMovedError(err)
	if !moved {
		if addr, ask = redis.IsAskError(err); !ask {
			return nil, false
		}
	}
	cluster.ReloadState(ctx)
	var mu sync.Mutex // guards there
	_ = cluster.ForEachMaster(ctx, func(_ context.Context, rdb *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		if rdb.Options().Addr == addr {
			there = rdb
		}
		return nil
	})
	return there, ask
}
