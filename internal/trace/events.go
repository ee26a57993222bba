package trace

// The events of a trace: what the scripts noted, and what the clients believed, in one order.
//
// Rules: this file decides nothing about locks. An event names the script and the state after it, and the specification
// has to explain them. Between two scripts only leases expire: a state that has changed there is the event "expire", at
// the moment at which the lease expired.

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Belief is a period in which an owner of a client believed that it held a lock.
type Belief struct {
	Lock, Client string
	From, To     time.Time
}

// A note describes one run of a script.
type note struct {
	Verb   Verb
	Lock   string
	Args   []string
	Time   [2]string
	Before state
	After  state
	Heard  []string
	Told   [][2]string
	Answer []float64 // a token is too large for the integers of cjson
	Err    string
}

func (n note) at() (time.Time, error) {
	s, err1 := strconv.ParseInt(n.Time[0], 10, 64)
	us, err2 := strconv.ParseInt(n.Time[1], 10, 64)
	return time.Unix(s, us*1000), cmp.Or(err1, err2)
}

// An event is one step of a trace. Its text is a record of TLA+.
type event struct {
	at   time.Time
	rank int // among those of the same moment
	text string
}

// The ranks: the exact limits of a belief are not known, so it is taken to end before a script of the same moment, and
// to begin after it.
const (
	beliefEnds = iota
	scriptRuns
	beliefBegins
)

// A Trace has the events of one lock.
type Trace struct {
	Name    string
	events  []event
	late    []string // fields of requests that ran after the field had ended
	clients int
	Scripts int // number of runs that were noted
}

// Read returns the traces of all locks that the scripts have noted in rdb, in the order of their names.
func Read(ctx context.Context, rdb *redis.Client, beliefs []Belief) ([]Trace, error) {
	texts, err := rdb.LRange(ctx, notes, 0, -1).Result()
	if err != nil {
		return nil, err
	}
	locks := make(map[string]*converter)
	for _, text := range texts {
		var n note
		if err := json.Unmarshal([]byte(text), &n); err != nil {
			return nil, fmt.Errorf("%s: %w", text, err)
		}
		c := locks[n.Lock]
		if c == nil {
			c = &converter{trace: Trace{Name: n.Lock}, clients: make(clients), over: make(map[string]bool)}
			c.last, _ = c.clients.of(state{})
			locks[n.Lock] = c
		}
		if err := c.add(n); err != nil {
			return nil, fmt.Errorf("%s: %w", text, err)
		}
	}
	var all []Trace
	for lock, c := range locks {
		all = append(all, c.finish(lock, beliefs))
	}
	slices.SortFunc(all, func(a, b Trace) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// A converter makes the trace of one lock.
type converter struct {
	trace   Trace
	clients clients
	over    map[string]bool // fields that have ended
	last    abstract        // the state after the last event
	leased  time.Time       // when the lease of the last record expires
	ran     time.Time       // when the last script ran
	clock   time.Time       // when this one runs
}

func (c *converter) add(n note) error {
	at, err := n.at()
	if err != nil {
		return err
	}
	c.ran = c.clock
	if at.After(c.clock) { // the clock of the machine may be set back
		c.clock = at
	}
	c.trace.Scripts++
	before, err := c.clients.of(n.Before)
	if err != nil {
		return err
	}
	after, err := c.clients.of(n.After)
	if err != nil {
		return err
	}
	if !before.equal(c.last) {
		c.note(c.expired(), `k|->"expire"`, before)
	}
	if err := c.run(n, before, after); err != nil {
		return err
	}
	c.leased = time.UnixMilli(n.After.Expires)
	return nil
}

// expired returns when the lease has expired: after the last script, and before this one.
func (c *converter) expired() time.Time {
	switch {
	case c.leased.Before(c.ran):
		return c.ran
	case c.leased.After(c.clock):
		return c.clock
	}
	return c.leased
}

// note appends an event that leads to the state after.
func (c *converter) note(at time.Time, what string, after abstract) {
	text := fmt.Sprintf("[%s,r|->%s,l|-><<%s>>]", what, after.record, strings.Join(after.line, ","))
	c.trace.events = append(c.trace.events, event{at, scriptRuns, text})
	c.last = after
}

// run appends the event of a script.
func (c *converter) run(n note, before, after abstract) error {
	switch {
	case n.Err != "":
		return fmt.Errorf("the script failed: %s", n.Err)
	case n.Verb == Ask && n.arg(2, "1") == "1":
		return c.ask(n, after)
	case n.Verb == End && n.arg(4, "0") == "0":
		return c.end(n, after)
	case !before.equal(after) || len(n.Told) > 0:
		c.note(c.clock, fmt.Sprintf(`k|->"%s"`, n.Verb), after)
	}
	return nil
}

// arg returns the argument with this index, which may be left out if all behind it are.
func (n *note) arg(i int, ifLeftOut string) string {
	if i < len(n.Args) {
		return n.Args[i]
	}
	return ifLeftOut
}

func (c *converter) ask(n note, after abstract) error {
	field, err := c.clients.field(n.Args[0])
	if err != nil {
		return err
	}
	if c.over[field] {
		c.trace.late = append(c.trace.late, field)
	}
	delivery := n.arg(3, "defer")
	if !slices.Contains([]string{"push", "defer", "barge"}, delivery) {
		return fmt.Errorf("the specification has no delivery %q", delivery)
	}
	answer := "yours"
	if n.Answer[0] != 1 {
		answer = []string{"busy", "joined", "java", "busy"}[int(n.Answer[2])%4]
	}
	if delivery == "push" && !slices.Contains(n.Heard, n.Args[0][:36]) {
		delivery = "defer" // a client without a subscription cannot join
	}
	told, err := c.told(n)
	c.note(
		c.clock,
		fmt.Sprintf(`k|->"ask",f|->%s,delivery|->%q,%s,a|->%q,%s`, field, delivery, c.heard(n), answer, told),
		after,
	)
	return err
}

func (c *converter) end(n note, after abstract) error {
	field, err := c.clients.field(n.Args[0])
	if err != nil {
		return err
	}
	c.over[field] = true
	answer := "gone"
	if n.Answer[0] == 1 {
		answer = "done"
	}
	told, err := c.told(n)
	toAll := strings.ToUpper(strconv.FormatBool(c.toldAll(n)))
	c.note(c.clock, fmt.Sprintf(`k|->"end",f|->%s,%s,a|->%q,%s,all|->%s`, field, c.heard(n), answer, told, toAll), after)
	return err
}

// heard returns the clients that are subscribed to their channel.
func (c *converter) heard(n note) string {
	var all []string
	for _, client := range n.Heard {
		all = append(all, strconv.Quote(c.clients.name(client)))
	}
	slices.Sort(all)
	return "h|->{" + strings.Join(all, ",") + "}"
}

// toldAll reports whether a connection received a message on the channel of the lock: that of Java; or of a client
// whose subscription to its own channel was lost, which counts as Java until it has subscribed again.
func (c *converter) toldAll(n note) bool {
	return slices.ContainsFunc(
		n.Told,
		func(m [2]string) bool { return c.clients[m[0][strings.LastIndex(m[0], ":")+1:]] == "" },
	)
}

// told returns the messages to clients that reached them.
func (c *converter) told(n note) (string, error) {
	var all []string
	for _, m := range n.Told {
		client := m[0][strings.LastIndex(m[0], ":")+1:]
		if c.clients[client] == "" { // the channel of the lock
			continue
		}
		what, rest, _ := strings.Cut(m[1], " ")
		to := c.clients.name(client)
		if what == "grant" {
			field, err := c.clients.field(strings.Fields(rest)[0])
			if err != nil {
				return "", err
			}
			if !strings.HasPrefix(field, "<<"+strconv.Quote(to)) {
				return "", fmt.Errorf("%s was told of a grant to %s", to, field)
			}
		}
		all = append(all, fmt.Sprintf("<<%q,%q>>", to, what))
	}
	return "m|->{" + strings.Join(all, ",") + "}", nil
}

// finish adds the beliefs, and returns the trace.
func (c *converter) finish(lock string, beliefs []Belief) Trace {
	for _, b := range beliefs {
		if b.Lock == lock && b.To.After(b.From) {
			p := c.clients.name(b.Client)
			c.trace.events = append(c.trace.events,
				event{b.From, beliefBegins, fmt.Sprintf(`[k|->"believe",p|->%q]`, p)},
				event{b.To, beliefEnds, fmt.Sprintf(`[k|->"doubt",p|->%q]`, p)})
		}
	}
	slices.SortStableFunc(c.trace.events, func(a, b event) int {
		return cmp.Or(a.at.Compare(b.at), a.rank-b.rank)
	})
	c.trace.clients = len(c.clients)
	return c.trace
}
