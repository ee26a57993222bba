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

// keepLabel writes the hash repeatedly, and deletes it at Close. The default text is the host name and the process ID.
func (c *Client) keepLabel(text string) {
	key, pid := record.ClientKey(c.ID()), strconv.Itoa(os.Getpid())
	host, _ := os.Hostname()
	text = cmp.Or(text, host+":"+pid)
	for {
		err := c.askLabels(context.Background(), func(ctx context.Context, p redis.Pipeliner) {
			p.HSet(ctx, key, "label", text, "host", host, "pid", pid)
			p.PExpire(ctx, key, labelLife)
		})
		if send.Forbidden(err) {
			return // each further try would be an entry of the ACL log
		}
		if c.engine().Pause(context.Background(), labelPause) != nil {
			break
		}
	}
	_ = c.askLabels(context.Background(), func(ctx context.Context, p redis.Pipeliner) { p.Del(ctx, key) })
}

// askLabels sends a pipeline, for no longer than labelTime. If it fails, the caller goes on without labels. It logs the
// first time that Redis does not permit it.
func (c *Client) askLabels(ctx context.Context, fill func(context.Context, redis.Pipeliner)) error {
	ctx, cancel := context.WithTimeout(ctx, labelTime)
	defer cancel()
	err := c.pipelined(ctx, func(p redis.Pipeliner) { fill(ctx, p) })
	if send.Forbidden(err) && c.in().labelsForbidden.CompareAndSwap(false, true) {
		c.engine().Later(func() {
			c.engine().Log.Debug(
				"relock: Redis does not store or return labels: grant this user access to the keys relock_client:*",
				"error",
				err,
			)
		})
	}
	return err
}

// addLabels adds the labels of the clients of this package to the contenders of i.
func (c *Client) addLabels(ctx context.Context, i *Inspection) {
	all := make(map[string][]*Contender) // by their Clients
	add := func(who *Contender) {
		if who.usesRelock() {
			all[who.Client] = append(all[who.Client], who)
		}
	}
	for n := range i.Holders {
		add(&i.Holders[n].Contender)
	}
	for n := range i.Waiters {
		add(&i.Waiters[n].Contender)
	}
	if len(all) == 0 || c.in().labelsForbidden.Load() {
		return
	}
	cmds := make(map[string]*redis.SliceCmd)
	ask := func() {
		_ = c.askLabels(ctx, func(ctx context.Context, p redis.Pipeliner) {
			for id := range all {
				cmds[id] = p.HMGet(ctx, record.ClientKey(id), "label", "host")
			}
		})
	}
	if !c.engine().Within(ctx, labelTime, ask) { // the Redis client may look at its own timeouts only
		return
	}
	for id, cmd := range cmds {
		var is struct {
			Label string `redis:"label"`
			Host  string `redis:"host"`
		}
		_ = cmd.Scan(&is) // without an answer there is no label
		for _, who := range all[id] {
			who.Label, who.Host = printable(is.Label), printable(is.Host)
		}
	}
}

// usesRelock reports whether the contender is of this package: its field has the form client:owner:number.
func (c *Contender) usesRelock() bool {
	return c.Client != "" && !strings.HasPrefix(c.Owner, "thread ")
}

// printable returns a label or a host that was read from Redis, where any program may have written it, as text: what
// WithLabel would not accept is quoted, and cut if it is long.
func printable(s string) string {
	if !isLabel(s) {
		return shortName(s)
	}
	return s
}
