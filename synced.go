package relock

// Locks that replicas have confirmed: WAIT behind whatever takes or renews a lock.
//
// Rules: a WAIT counts for what its own connection has written, so it goes over
// the same one, to one master. What too few replicas have confirmed is not
// held: the engine undoes an attempt and does not count a renewal. Giving back
// waits for nobody: a release that a failover loses ends with its lease.

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// synced is how many replicas have to confirm, and within which time.
type synced struct {
	replicas int // 0: nobody is asked
	within   time.Duration
}

// wait is the WAIT behind what is to be confirmed.
func (s synced) wait(ctx context.Context) onceCmd {
	return newOnceCmd(ctx, "wait", s.replicas, milliseconds(s.within))
}

// verdict says whether the answer to a WAIT is enough.
func (s synced) verdict(answer any, err error) error {
	confirmed, ok := answer.(int64)
	switch {
	case err != nil && answered(err):
		return fmt.Errorf("%w: WithSyncedReplicas needs WAIT, which this Redis refuses: %w", ErrNotSynced, err)
	case err != nil:
		return fmt.Errorf("%w: no answer to WAIT: %w", ErrNotSynced, err)
	case !ok:
		return fmt.Errorf("%w: unexpected answer to WAIT: %s", ErrNotSynced, shortName(fmt.Sprint(answer)))
	case confirmed < int64(s.replicas):
		return fmt.Errorf("%w: %d of %d within %v", ErrNotSynced, confirmed, s.replicas, s.within)
	}
	return nil
}

// attempt sends a call that takes something. It is ErrNotSynced if that is held
// now and too few replicas have confirmed it.
func (c *Client) attempt(ctx context.Context, what call) ([]reply, error) {
	if c.synced.replicas == 0 {
		return parseReplies(c.call(ctx, what))
	}
	switch rdb := c.rdb.(type) {
	case *redis.Client:
		return c.attemptOn(ctx, rdb, what, false)
	case *redis.ClusterClient: // which would send the WAIT to any node
		master, err := rdb.MasterForKey(ctx, what.keys[0])
		if err != nil {
			return nil, err
		}
		replies, err := c.attemptOn(ctx, master, what, false)
		if there, ask := redirection(ctx, rdb, err); there != nil {
			return c.attemptOn(ctx, there, what, ask)
		}
		return replies, err
	}
	return nil, invalid("WithSyncedReplicas needs a *redis.Client or a *redis.ClusterClient")
}

// attemptOne is attempt for a call that takes one lock.
func (c *Client) attemptOne(ctx context.Context, what call) (reply, error) {
	if c.synced.replicas == 0 {
		return c.send(ctx, what)
	}
	return oneReply(c.attempt(ctx, what))
}

// attemptOn sends the call, and the WAIT only where something was taken: for who
// was told "busy" it would wait for what others have written, and keep a connection.
func (c *Client) attemptOn(ctx context.Context, rdb *redis.Client, what call, ask bool) ([]reply, error) {
	conn := rdb.Conn()
	defer conn.Close()
	to := processor(conn)
	if ask {
		to = asking{conn}
	}
	replies, err := parseReplies(send(ctx, to, what))
	if err == nil && len(replies) > 0 && replies[len(replies)-1][0] == 1 {
		wait := c.synced.wait(ctx)
		_ = conn.Process(ctx, wait)
		err = c.synced.verdict(wait.Result())
	}
	return replies, err
}

// asking is a connection to a server that a slot is on its way to.
type asking struct{ processor }

func (a asking) Process(ctx context.Context, cmd redis.Cmder) error {
	_ = a.processor.Process(ctx, newOnceCmd(ctx, "asking")) // for the next command alone
	return a.processor.Process(ctx, cmd)
}

// runAll sends calls that renew something. It is ErrNotSynced for those that too
// few replicas have confirmed.
func (c *Client) runAll(ctx context.Context, calls []call) ([]reply, []error) {
	var outcomes []outcome
	if c.synced.replicas == 0 {
		outcomes = sendAll(ctx, c.rdb, calls, pipelineOptions{})
	} else {
		outcomes = c.sendSynced(ctx, calls)
	}
	replies, errs := make([]reply, len(calls)), make([]error, len(calls))
	for i, o := range outcomes {
		if replies[i], errs[i] = parseReply(o.answer, o.err); errs[i] == nil && replies[i][0] == 1 {
			errs[i] = o.unsynced
		}
	}
	return replies, errs
}

// sendSynced sends calls, each with a WAIT behind it, to their masters.
func (c *Client) sendSynced(ctx context.Context, calls []call) []outcome {
	cluster, ok := c.rdb.(*redis.ClusterClient)
	if !ok {
		return sendAll(ctx, c.rdb, calls, pipelineOptions{synced: c.synced})
	}
	// A ClusterClient would send the WAIT to any node.
	outcomes := make([]outcome, len(calls))
	parts := make(map[*redis.Client][]int)
	for i, one := range calls {
		master, err := cluster.MasterForKey(ctx, one.keys[0])
		if err == nil {
			parts[master] = append(parts[master], i)
		}
		outcomes[i].err = err
	}
	var all sync.WaitGroup
	for master, part := range parts {
		all.Go(func() {
			mine := make([]call, len(part))
			for i, n := range part {
				mine[i] = calls[n]
			}
			for i, o := range sendAll(ctx, master, mine, pipelineOptions{synced: c.synced}) {
				outcomes[part[i]] = c.redirected(ctx, cluster, mine[i], o)
			}
		})
	}
	all.Wait()
	return outcomes
}

// redirected sends a call to the node that the answer names, if it names one.
func (c *Client) redirected(ctx context.Context, cluster *redis.ClusterClient, what call, o outcome) outcome {
	if there, ask := redirection(ctx, cluster, o.err); there != nil {
		return sendAll(ctx, there, []call{what}, pipelineOptions{synced: c.synced, asking: ask})[0]
	}
	return o
}

// redirection is the node that err names, and whether it has to be asked as one
// that the slot is on its way to; nil where it names none, or one that go-redis does not know yet.
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
