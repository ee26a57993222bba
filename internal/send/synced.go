package send

// Calls that replicas have confirmed: a WAIT behind each call that takes or renews something.
//
// Rules: a WAIT counts for the writes of its own connection, so the WAIT goes over the
// same connection, to one master, also on a Cluster. A call that has taken nothing is
// followed by no WAIT: the WAIT would wait for the writes of others, and keep a
// connection. ErrNotSynced says that the call has run all the same: the caller undoes an
// attempt and does not count a renewal. A release waits for no replica: a release that
// a failover loses ends with its lease.

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Synced is how many replicas have to confirm a call, and within which time.
type Synced struct {
	Replicas int // 0: no replica is asked
	Within   time.Duration
}

// wait returns the WAIT behind a call.
func (s Synced) wait(ctx context.Context) onceCmd {
	up := time.Millisecond - 1 // Redis counts in milliseconds
	return newOnceCmd(ctx, "wait", s.Replicas, (s.Within + up).Milliseconds())
}

// verdict reports whether the answer to a WAIT is enough.
func (s Synced) verdict(answer any, err error) error {
	confirmed, ok := answer.(int64)
	switch {
	case err != nil && Answered(err):
		return fmt.Errorf("%w: WithSyncedReplicas needs WAIT, which this Redis refuses: %w", ErrNotSynced, err)
	case err != nil:
		return fmt.Errorf("%w: no answer to WAIT: %w", ErrNotSynced, err)
	case !ok:
		return fmt.Errorf("%w: unexpected answer to WAIT: %s", ErrNotSynced, ShortName(fmt.Sprint(answer)))
	case confirmed < int64(s.Replicas):
		return fmt.Errorf("%w: %d of %d within %v", ErrNotSynced, confirmed, s.Replicas, s.Within)
	}
	return nil
}

// runSynced runs a call that takes something. The error is ErrNotSynced if the call has taken it and too few replicas
// have confirmed the call.
func (r *Redis) runSynced(ctx context.Context, c Call) (any, error) {
	switch rdb := r.rdb.(type) {
	case *redis.Client:
		return r.synced.runOn(ctx, rdb, c, false)
	case *redis.ClusterClient: // would send the WAIT to any node
		master, err := rdb.MasterForKey(ctx, c.Keys[0])
		if err != nil {
			return nil, err
		}
		answer, err := r.synced.runOn(ctx, master, c, false)
		if there, ask := redirection(ctx, rdb, err); there != nil {
			return r.synced.runOn(ctx, there, c, ask)
		}
		return answer, err
	}
	return nil, Invalid("WithSyncedReplicas needs a *redis.Client or a *redis.ClusterClient")
}

// runOn runs a call on a server, and a WAIT behind the call if the call has taken something.
func (s Synced) runOn(ctx context.Context, rdb *redis.Client, c Call, ask bool) (any, error) {
	conn := rdb.Conn()
	defer conn.Close()
	to := processor(conn)
	if ask {
		to = asking{conn}
	}
	answer, err := runOn(ctx, to, c)
	replies, err := ParseReplies(answer, err)
	if err == nil && len(replies) > 0 && replies[len(replies)-1][0] == 1 {
		wait := s.wait(ctx)
		_ = conn.Process(ctx, wait)
		err = s.verdict(wait.Result())
	}
	return answer, err
}

// asking is a connection to a server to which a slot is on its way.
type asking struct{ processor }

func (a asking) Process(ctx context.Context, cmd redis.Cmder) error {
	_ = a.processor.Process(ctx, newOnceCmd(ctx, "asking")) // for the next command alone
	return a.processor.Process(ctx, cmd)
}

// runAllSynced runs calls in pipelines, one to each master, each with a WAIT at its end.
func (r *Redis) runAllSynced(ctx context.Context, calls []Call) []Outcome {
	cluster, ok := r.rdb.(*redis.ClusterClient)
	if !ok {
		return pipeline{rdb: r.rdb, synced: r.synced}.run(ctx, calls)
	}
	// A ClusterClient would send the WAIT to any node.
	outcomes := make([]Outcome, len(calls))
	shares := make(map[*redis.Client][]int) // the numbers of the calls of each master
	for i, c := range calls {
		master, err := cluster.MasterForKey(ctx, c.Keys[0])
		if err == nil {
			shares[master] = append(shares[master], i)
		}
		outcomes[i].Err = err
	}
	var all sync.WaitGroup
	for master, share := range shares {
		all.Add(1)
		go func() {
			defer all.Done()
			r.runShare(ctx, cluster, master, calls, share, outcomes)
		}()
	}
	all.Wait()
	return outcomes
}

// runShare runs the calls of one master, and notes their outcomes. A panic of a hook is the error of all of them.
func (r *Redis) runShare(ctx context.Context, cluster *redis.ClusterClient, master *redis.Client, calls []Call, share []int, outcomes []Outcome) {
	mine := make([]Call, len(share))
	for i, n := range share {
		mine[i], outcomes[n].Err = calls[n], ErrHookExited // unless the goroutine goes on
	}
	err := CatchPanic(func() error {
		for i, o := range (pipeline{rdb: master, synced: r.synced}).run(ctx, mine) {
			outcomes[share[i]] = r.redirected(ctx, cluster, mine[i], o)
		}
		return nil
	})
	for _, n := range share {
		if err != nil {
			outcomes[n] = Outcome{Err: err}
		}
	}
}

// redirected runs a call on the node that its answer names, if the answer names one.
func (r *Redis) redirected(ctx context.Context, cluster *redis.ClusterClient, c Call, o Outcome) Outcome {
	if there, ask := redirection(ctx, cluster, o.Err); there != nil {
		return pipeline{there, r.synced, ask}.run(ctx, []Call{c})[0]
	}
	return o
}

// redirection is the node that err names, and whether the slot is only on its way there; nil where err names
// none, or one that go-redis does not know yet.
func redirection(ctx context.Context, cluster *redis.ClusterClient, err error) (there *redis.Client, ask bool) {
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
