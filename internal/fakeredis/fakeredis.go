// Package fakeredis has a Redis server that knows one type of lock, in the time of a synctest bubble, for tests of
// the engine. It can be slow, lose answers, and run requests late.
//
// Rules: the first argument of a call names a verb, which takes the place of a script: "acquire", "release", "renew",
// "rename" or "force". A Redis is the Transport of a send.Sender.
package fakeredis

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
	"github.com/relock-go/relock/internal/wake/waketest"
)

// New returns a Redis without records.
func New() *Redis { return &Redis{Records: make(map[string]*Record), buried: make(map[string]bool)} }

// Redis keeps records in the time of the bubble, and can be slow, lose answers, and run requests late.
type Redis struct {
	PubSub waketest.Server

	mu       sync.Mutex // guards below
	Records  map[string]*Record
	buried   map[string]bool // the fields that have tombstones; only renames leave them, and look at them
	Tokens   int64
	Requests []string                // "acquire", "release", ...
	Fault    func(verb string) Fault // returns the fault of the next request
	Latency  time.Duration           // in each direction
	Bound    bool                    // requests are not sent once their context is done
	More     bool                    // a forced release says that another one may release more
}

// A Record is the record of a lock.
type Record struct {
	Field   string
	Levels  int
	Expires time.Time
}

// A Fault describes what goes wrong with one request.
type Fault struct {
	Err    error         // is returned after the request has run
	Block  error         // is returned instead of running the request
	Late   time.Duration // the delay before the request runs; the answer follows
	Ghost  time.Duration // io.EOF is returned at once, and the request runs after this time
	Answer time.Duration // the delay from the run of the request to its answer
	Panics bool          // like a hook of the Redis client that panics
}

// Subscribe opens a connection for subscriptions.
func (r *Redis) Subscribe() wake.Subscriber { return r.PubSub.Dial() }

// Record returns the record of name, or nil if its lease has expired. It must be called inside Set.
func (r *Redis) Record(name string) *Record {
	rec := r.Records[name]
	if rec != nil && !time.Now().Before(rec.Expires) {
		delete(r.Records, name)
		return nil
	}
	return rec
}

// do runs f as one request.
func (r *Redis) do(verb string, f func()) error {
	r.mu.Lock()
	var fault Fault
	if r.Fault != nil {
		fault = r.Fault(verb)
	}
	latency := r.Latency
	r.Requests = append(r.Requests, verb)
	r.mu.Unlock()
	if fault.Ghost > 0 {
		time.AfterFunc(fault.Ghost, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			f()
		})
		return io.EOF
	}
	if fault.Panics {
		panic("a hook")
	}
	time.Sleep(latency + fault.Late)
	if fault.Block != nil {
		return fault.Block
	}
	r.mu.Lock()
	f()
	r.mu.Unlock()
	time.Sleep(latency + fault.Answer)
	return fault.Err
}

// Set calls f while no request runs.
func (r *Redis) Set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// Count returns the number of requests with a verb.
func (r *Redis) Count(verb string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, v := range r.Requests {
		if v == verb {
			n++
		}
	}
	return n
}

// Holder returns the field that holds name, or "".
func (r *Redis) Holder(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec := r.Record(name); rec != nil {
		return rec.Field
	}
	return ""
}

// Run runs a call: it implements send.Transport.
func (r *Redis) Run(ctx context.Context, c send.Call, _ bool) (any, error) {
	if err := ctx.Err(); r.Bound && err != nil {
		return nil, err
	}
	var answer string // an attempt that runs late writes to it later
	err := r.do(c.Args[0].(string), func() { answer = text(r.run(c)) })
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// Prompt returns the configuration with which callers send the calls of t themselves, after the first one.
func Prompt(t send.Transport) send.Config {
	p := &prompt{Transport: t}
	return send.Config{Transport: p, Bounded: p, Idle: func(string) int { return int(p.idle.Load()) }}
}

type prompt struct {
	send.Transport
	idle atomic.Int64 // 1: the last call has not failed
}

func (*prompt) Bound() time.Duration { return 4 * send.ResendTime }

func (p *prompt) Run(ctx context.Context, c send.Call, taking bool) (any, error) {
	p.idle.Store(0)
	answer, err := p.Transport.Run(ctx, c, taking)
	if err == nil {
		p.idle.Store(1)
	}
	return answer, err
}

func (p *prompt) RunBounded(ctx context.Context, _ time.Time, c send.Call) (any, error, bool) {
	answer, err := p.Run(context.WithoutCancel(ctx), c, false)
	return answer, err, true
}

// text returns the answer of Redis that a reply is read from.
func text(reply send.Reply) string { return strings.Trim(fmt.Sprint(reply), "[]") }

// RunAll runs calls as one request.
func (r *Redis) RunAll(_ context.Context, calls []send.Call, _ bool) []send.Outcome {
	outcomes := make([]send.Outcome, len(calls))
	err := r.do(calls[0].Args[0].(string), func() {
		for i, c := range calls {
			outcomes[i].Answer = text(r.run(c))
		}
	})
	if err != nil {
		outcomes = slices.Repeat([]send.Outcome{{Err: err}}, len(calls))
	}
	return outcomes
}

func (r *Redis) run(c send.Call) send.Reply {
	name, args := c.Keys[0], c.Args[1:]
	rec := r.Record(name)
	switch c.Args[0] {
	case "acquire":
		tokens := 1
		if len(args) > 3 {
			tokens = max(1, args[3].(int))
		}
		return r.acquire(rec, name, args[0].(string), args[1].(time.Duration), args[2].(int), tokens)
	case "release":
		if rec == nil || rec.Field != args[0].(string) {
			return send.Reply{-1}
		}
		if rec.Levels = args[1].(int); rec.Levels == 0 {
			delete(r.Records, name)
			return send.Reply{1, int64(r.PubSub.Publish("channel:" + name))}
		}
		return send.Reply{1}
	case "renew":
		if rec == nil || rec.Field != args[0].(string) {
			return send.Reply{-1}
		}
		if end := time.Now().Add(args[1].(time.Duration)); args[2].(bool) || end.After(rec.Expires) {
			rec.Expires = end
		}
		return send.Reply{1}
	case "rename":
		return r.rename(rec, args[0].(string), args[1].(string), args[2].(time.Duration), args[3].(int64), args[4].(int64), args[5].(bool))
	case "force":
		return r.force(rec, name)
	case "inspect":
		return rec.inspect(args[0].(string))
	}
	panic(fmt.Sprint("no such verb: ", c.Args[0]))
}

func (rec *Record) inspect(field string) send.Reply {
	switch {
	case rec == nil:
		return send.Reply{0, 0, -2}
	case rec.Field == field:
		return send.Reply{1, int64(rec.Levels), send.Milliseconds(time.Until(rec.Expires))}
	}
	return send.Reply{1, 0, send.Milliseconds(time.Until(rec.Expires))}
}

func (r *Redis) force(rec *Record, name string) send.Reply {
	if rec == nil {
		return send.Reply{}
	}
	delete(r.Records, name)
	r.PubSub.Publish("channel:" + name)
	if r.More {
		return send.Reply{1, 1}
	}
	return send.Reply{1}
}

// rename is the script of that name, for a record that is not shared.
func (r *Redis) rename(rec *Record, from, to string, lease time.Duration, until, ends int64, late bool) send.Reply {
	now := time.Now()
	r.buried[from] = r.buried[from] || late
	if until > 0 {
		lease = min(lease, time.UnixMilli(until).Sub(now))
	}
	switch {
	case rec == nil, r.buried[to], rec.Field != from && rec.Field != to, rec.Field == from && ends > 0 && now.UnixMilli() >= ends:
		return send.Reply{-1, 0, now.UnixMilli()}
	case rec.Field == from || ends > 0:
		rec.Field, rec.Expires = to, now.Add(lease)
	default:
		lease = time.Until(rec.Expires)
	}
	return send.Reply{1, send.Milliseconds(lease), now.UnixMilli()}
}

func (r *Redis) acquire(rec *Record, name, field string, lease time.Duration, level, tokens int) send.Reply {
	switch {
	case rec == nil && level == 1:
		r.Records[name] = &Record{field, 1, time.Now().Add(lease)}
		r.Tokens++
		return send.Reply{1, r.Tokens}
	case rec == nil || rec.Field != field && level > 1:
		return send.Reply{-1}
	case rec.Field != field:
		return send.Reply{0, send.Milliseconds(time.Until(rec.Expires))}
	}
	rec.Levels = level
	if end := time.Now().Add(lease); end.After(rec.Expires) {
		rec.Expires = end
	}
	if level > 1 {
		return send.Reply{1}
	}
	first := r.Tokens + 1
	r.Tokens += int64(tokens)
	return send.Reply{1, first, int64(tokens - 1)}
}
