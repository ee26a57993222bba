package relock

// The label of a process: the display name of the process that holds a lock.
//
// Rules: a Client with a label keeps one hash in Redis, relock_client:{ID}, with an expiry that one goroutine renews,
// until Close. It begins with the first acquire if the user has passed the label. The default label is worth a request
// only where somebody may look at it: it begins when a call waits for Redis, or a hold is old. No lock waits for it, and
// no lock depends on it. A Client without a label writes nothing. Inspect reads the hashes of the clients that it has found, in one pipeline. If Redis refuses the request or
// is slow, there are no labels.

import (
	"cmp"
	"context"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
)

const (
	labelPause = 30 * time.Second
	labelLife  = 3 * labelPause // the expiry of the hash, after which a process that has crashed is forgotten
	labelTime  = time.Second    // how long a request for labels may take
)

// A label is the hash of one Client in Redis.
type label struct {
	client  *Client
	text    string // "": the default
	started atomic.Bool
}

// start makes sure that the hash is kept in Redis until Close. Only the first call has an effect. It does not block.
func (l *label) start() {
	if !l.started.Load() && l.started.CompareAndSwap(false, true) {
		l.client.engine().Spawn(l.keep)
	}
}

// keep writes the hash repeatedly, and deletes it at Close.
func (l *label) keep() {
	key := record.LabelKey(l.client.ID())
	host, _ := os.Hostname()
	text := cmp.Or(l.text, defaultLabel(host))
	for {
		err := l.send(func(ctx context.Context, p redis.Pipeliner) {
			p.HSet(ctx, key, "label", text, "host", host, "pid", strconv.Itoa(os.Getpid()))
			p.PExpire(ctx, key, labelLife)
		})
		if send.Forbidden(err) {
			return // each further try would be an entry of the ACL log
		}
		if l.client.engine().Pause(context.Background(), labelPause) != nil {
			break
		}
	}
	_ = l.send(func(ctx context.Context, p redis.Pipeliner) { p.Del(ctx, key) })
}

// defaultLabel returns the label of a process for which none was passed. A host name that cannot be a label, or is not
// known, is left out.
func defaultLabel(host string) string {
	pid := strconv.Itoa(os.Getpid())
	if text := host + ":" + pid; host != "" && checkLabel(text) == nil {
		return text
	}
	return "pid " + pid
}

// send sends a pipeline. If it fails, the label is not stored, and nothing else happens.
func (l *label) send(fill func(context.Context, redis.Pipeliner)) error {
	ctx, cancel := context.WithTimeout(context.Background(), labelTime)
	defer cancel()
	return l.client.pipeline(ctx, func(p redis.Pipeliner) { fill(ctx, p) })
}

// pipeline sends what fill adds to a pipeline, and logs the first failure, which it returns as well: the caller goes on
// without labels.
func (c *Client) pipeline(ctx context.Context, fill func(redis.Pipeliner)) error {
	err := c.pipelined(ctx, fill)
	if err != nil && c.in().labelsRefused.CompareAndSwap(false, true) {
		c.engine().Later(func() {
			c.engine().Log.Debug(
				"relock: Redis does not store or return labels; "+
					"after NOPERM, grant this user access to the keys relock_client:*",
				"error",
				err,
			)
		})
	}
	return err
}

// A process is the label and the host of one Client.
type process struct{ label, host string }

// addLabels adds the labels of the clients of this package to the contenders of i.
func (c *Client) addLabels(ctx context.Context, i *Inspection) {
	var all []*Contender
	for n := range i.Holders {
		all = append(all, &i.Holders[n].Contender)
	}
	for n := range i.Waiters {
		all = append(all, &i.Waiters[n].Contender)
	}
	var ids []string
	known := make(map[string]bool, len(all))
	for _, who := range all {
		if who.usesRelock() && !known[who.Client] {
			known[who.Client] = true
			ids = append(ids, who.Client)
		}
	}
	if len(ids) == 0 {
		return
	}
	found := c.processes(ctx, ids)
	for _, who := range all {
		p := found[who.Client]
		who.Label, who.Host = p.label, p.host
	}
}

// usesRelock reports whether the contender is of this package: its field has the form client:owner:number.
func (c *Contender) usesRelock() bool {
	return c.Client != "" && !strings.HasPrefix(c.Owner, "thread ")
}

// processes reads the labels of clients. It waits for Redis no longer than labelTime.
func (c *Client) processes(ctx context.Context, ids []string) map[string]process {
	ctx, cancel := context.WithTimeout(ctx, labelTime)
	defer cancel()
	answers := make(chan map[string]process, 1)
	c.engine().Spawn(func() { answers <- c.askProcesses(ctx, ids) })
	select {
	case found := <-answers:
		return found
	case <-ctx.Done():
		return nil
	}
}

func (c *Client) askProcesses(ctx context.Context, ids []string) map[string]process {
	if c.in().labelsForbidden.Load() {
		return nil
	}
	cmds := make([]*redis.SliceCmd, len(ids))
	err := c.pipeline(ctx, func(p redis.Pipeliner) {
		for n, id := range ids {
			cmds[n] = p.HMGet(ctx, record.LabelKey(id), "label", "host")
		}
	})
	c.in().labelsForbidden.Store(send.Forbidden(err))
	found := make(map[string]process)
	for n, cmd := range cmds {
		if cmd == nil || cmd.Err() != nil || len(cmd.Val()) != 2 {
			continue
		}
		label, _ := cmd.Val()[0].(string)
		host, _ := cmd.Val()[1].(string)
		found[ids[n]] = process{printable(label), printable(host)}
	}
	return found
}

// printable returns a label or a host that was read from Redis, where any program may have written it, as text: what
// WithLabel would not accept is quoted, and cut if it is long.
func printable(s string) string {
	if checkLabel(s) != nil {
		return shortName(s)
	}
	return s
}
