package history

// The checker is applied to histories that are wrong on purpose. Every rule finds its own, and accepts one that is
// almost the same.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

const ms = time.Millisecond

var testRules = Rules{Timeout: 900 * ms, Slack: 100 * ms, Free: 1000 * ms, Calm: 500 * ms, Wait: 5000 * ms, Fair: true}

// hold returns a hold by owner that was asked for at call, granted at from, and released at until.
func hold(owner string, call, from, until time.Duration, changes ...func(*Hold)) Hold {
	h := Hold{
		Take:    Op{Kind: Take, Name: "x", Owner: owner, Call: call, Return: from, Level: 1},
		Trusted: until, Untold: until,
	}
	for _, change := range changes {
		change(&h)
	}
	if n := len(h.Then); n == 0 || h.Then[n-1].Kind != Give {
		gives(0, until, until+10)(&h)
	}
	return h
}

func shared(h *Hold) { h.Take.Shared = true }
func unreleased(h *Hold) {
	h.Then = append(h.Then, Op{Kind: Give, Outcome: Unsure, Call: h.Trusted, Return: h.Trusted})
}
func token(n int64) func(*Hold) { return func(h *Hold) { h.Take.Token = n } }
func lease(d time.Duration) func(*Hold) {
	return func(h *Hold) { h.Take.Lease = d }
}
func untold(at time.Duration) func(*Hold) { return func(h *Hold) { h.Untold = at } }

func overtaken(at time.Duration) func(*Hold) { return func(h *Hold) { h.Overtaken = at } }

func does(kind Kind, outcome Outcome, level int, call, back time.Duration) func(*Hold) {
	return func(h *Hold) {
		h.Then = append(
			h.Then,
			Op{Kind: kind, Name: "x", Owner: h.Take.Owner, Call: call, Return: back, Level: level, Outcome: outcome},
		)
	}
}

func gives(left int, call, back time.Duration) func(*Hold) { return does(Give, Done, left, call, back) }

func failed(owner string, call, back time.Duration, outcome Outcome, changes ...func(*Op)) Op {
	op := Op{Kind: Take, Name: "x", Owner: owner, Call: call, Return: back, Outcome: outcome}
	for _, change := range changes {
		change(&op)
	}
	return op
}

func once(op *Op)                             { op.Once = true }
func until(at time.Duration) func(*Op)        { return func(op *Op) { op.GiveUp = at } }
func holds(all ...Hold) History               { return History{Holds: all} }
func (h History) and(faults ...Fault) History { h.Faults = append(h.Faults, faults...); return h }
func (h History) but(ops ...Op) History       { h.Failed = append(h.Failed, ops...); return h }
func (h History) seen(all ...Queued) History  { h.Queued = append(h.Queued, all...); return h }

func fault(kind FaultKind, from, to time.Duration) Fault {
	return Fault{Kind: kind, What: "a fault", Client: AllClients, From: from, To: to}
}

func TestCheckFindsEachBrokenRule(t *testing.T) {
	caught := make(map[string]bool)
	for _, test := range []struct {
		rule  string // the rule that finds it; "": none, because the history is possible
		also  string // another rule that may find it
		name  string
		given History
	}{
		{"", "", "one after the other", holds(hold("a", 0, 10, 20), hold("b", 5, 25, 40))},
		{"exclusion", "", "two at a time", holds(hold("a", 0, 10, 20), hold("b", 5, 19, 40))},
		{"", "", "two locks", holds(hold("a", 0, 10, 20), hold("b", 5, 19, 40, func(h *Hold) { h.Take.Name = "y" }))},
		{"exclusion", "", "before its trust has ended", holds(hold("a", 0, 10, 20, unreleased), hold("b", 5, 19, 40))},

		{"", "", "two readers", holds(hold("a", 0, 10, 20, shared), hold("b", 5, 15, 40, shared))},
		{"exclusion", "", "a reader and a writer", holds(hold("a", 0, 10, 20, shared), hold("b", 5, 15, 40))},
		{"exclusion", "", "a writer and a reader", holds(hold("a", 0, 10, 20), hold("b", 5, 15, 40, shared))},
		{"", "", "a downgrade", holds(hold("a", 0, 10, 30), hold("a", 15, 20, 60, shared), hold("b", 5, 35, 40, shared))},

		{"", "", "Redis forgot the first", holds(hold("a", 0, 10, 20), hold("b", 5, 19, 40)).and(fault(Forgets, 12, 13))},
		{"exclusion", "", "Redis forgot before",
			holds(hold("a", 3, 10, 20), hold("b", 5, 15, 40)).and(fault(Forgets, 1, 2))},

		{"", "", "tokens grow", holds(hold("a", 0, 10, 20, token(1)), hold("b", 15, 25, 40, token(2)))},
		{"token", "", "a token falls", holds(hold("a", 0, 10, 20, token(2)), hold("b", 15, 25, 40, token(1)))},
		{"token", "", "a token comes twice", holds(hold("a", 0, 10, 20, token(2)), hold("b", 5, 25, 40, token(2)))},
		{"", "", "asked at the same time", holds(hold("a", 0, 20, 22, token(2)), hold("b", 10, 18, 19, token(1)))},
		{"token", "", "asked at the same time, granted the wrong way round",
			holds(hold("a", 0, 20, 22, token(1)), hold("b", 10, 18, 19, token(2)))},

		{"fence", "", "overtaken while it is trusted", holds(hold("a", 0, 10, 20, token(1), overtaken(19)))},
		{"", "", "overtaken when Redis had forgotten it",
			holds(hold("a", 0, 10, 20, token(1), overtaken(19))).and(fault(Forgets, 12, 13))},

		{"lease", "", "trusted beyond its lease", holds(hold("a", 0, 10, 111, lease(100), unreleased))},
		{"", "", "a longer one inside", holds(hold("a", 0, 10, 111, lease(100), does(Take, Done, 2, 20, 30),
			func(h *Hold) { h.Then[0].Lease = 90 }, unreleased))},
		{"lease", "", "told too late", holds(hold("a", 0, 10, 109, lease(100), unreleased, untold(101*ms)))},
		{"", "", "told too late by a machine that stood still",
			holds(hold("a", 0, 10, 109, lease(100), unreleased, untold(101*ms))).and(fault(Stalls, 1*ms, 3*ms))},

		{"", "", "trust ends in a silence",
			holds(hold("a", 0, 10, 1900*ms, unreleased)).and(fault(Silences, 1000*ms, 3000*ms))},
		{"silence", "", "trust goes on in a silence",
			holds(hold("a", 0, 10, 1901*ms, unreleased)).and(fault(Silences, 1000*ms, 3000*ms))},
		{"", "", "a silence is over in time", holds(hold("a", 0, 10, 3000*ms)).and(fault(Silences, 1000*ms, 1800*ms))},
		{"silence", "", "a loss in a silence is reported late",
			holds(hold("a", 0, 10, 1800*ms, unreleased, untold(2100*ms))).and(fault(Silences, 1000*ms, 3000*ms))},
		{"", "", "the silence of another client",
			holds(hold("a", 0, 10, 1950*ms)).and(Fault{Kind: Silences, Client: 7, From: 1000 * ms, To: 3000 * ms})},

		{"", "", "told that it is forgotten",
			holds(hold("a", 0, 10, 1300*ms, unreleased)).and(fault(Forgets, 1000*ms, 1001*ms))},
		{"told", "", "not told that it is forgotten",
			holds(hold("a", 0, 10, 1500*ms, unreleased)).and(fault(Forgets, 1000*ms, 1001*ms))},
		{"", "", "forgotten and disturbed", holds(hold("a", 0, 10, 1500*ms, unreleased)).and(fault(Forgets, 1000*ms, 1001*ms),
			fault(Disturbs, 1100*ms, 1101*ms))},

		{"loss", "", "lost for no reason", holds(hold("a", 0, 10, 20, does(Give, Lost, 0, 20, 30)))},
		{"", "", "lost in a fault", holds(hold("a", 0, 10, 20, does(Give, Lost, 0, 20, 30))).and(fault(Disturbs, 12, 13))},
		{"", "", "lost as Redis forgot",
			holds(hold("a", 0, 10, 20, does(Give, Lost, 0, 20, 30))).and(fault(Forgets, 12, 13))},
		{"answer", "", "told that it holds nothing", holds(hold("a", 0, 10, 20, does(Give, NotHeld, 0, 20, 30)))},

		{"", "", "levels", holds(hold("a", 0, 10, 70, does(Take, Done, 2, 20, 30), does(Count, Done, 2, 31, 32),
			gives(1, 40, 50), does(Count, Done, 1, 51, 52), gives(0, 70, 71)))},
		{"count", "", "a level too many", holds(hold("a", 0, 10, 70, does(Take, Done, 2, 20, 30),
			does(Count, Done, 3, 31, 32), gives(1, 40, 50), gives(0, 70, 71)))},
		{"count", "", "an acquire that is not released", holds(hold("a", 0, 10, 70, does(Take, Done, 2, 20, 30),
			gives(1, 40, 50), does(Count, Done, 2, 51, 52), gives(0, 70, 71)))},

		{"refusal", "", "refused while it was free", holds(hold("a", 0, 10, 20)).but(failed("b", 32, 33, Refused, once))},
		{"", "", "refused by a record that was left",
			holds(hold("a", 0, 10, 20, unreleased)).but(failed("b", 32, 33, Refused, once))},
		{"", "", "refused by a record that a failed try left",
			holds().but(failed("a", 10, 20, Unsure), failed("b", 500*ms, 501*ms, Refused, once))},

		{"", "", "first come, first served",
			holds(hold("a", 0, 10, 50), hold("b", 12, 60, 70), hold("c", 21, 80, 90)).seen(Queued{"x", "b", 15, 20})},
		{"order", "", "a later one jumped the queue",
			holds(hold("a", 0, 10, 50), hold("b", 12, 80, 90), hold("c", 21, 60, 70)).seen(Queued{"x", "b", 15, 20})},
		{"order", "", "of one whose lease lasts", holds(hold("a", 0, 10, 50), hold("b", 12, 80, 90, lease(61)),
			hold("c", 21, 60, 70)).seen(Queued{"x", "b", 15, 20})},
		{"", "", "of one that may have been granted a lease before", holds(hold("a", 0, 10, 50),
			hold("b", 12, 80, 90, lease(60)), hold("c", 21, 60, 70)).seen(Queued{"x", "b", 15, 20})},
		{"", "", "asked before the other was seen",
			holds(hold("a", 0, 10, 50), hold("b", 12, 80, 90), hold("c", 19, 60, 70)).seen(Queued{"x", "b", 15, 20})},
		{"", "", "jumped the queue in a fault", holds(hold("a", 0, 10, 50), hold("b", 12, 80, 90),
			hold("c", 21, 60, 70)).seen(Queued{"x", "b", 15, 20}).and(fault(Disturbs, 30, 31))},
		{"", "", "the sight was of a wait before",
			holds(hold("a", 0, 10, 50), hold("b", 16, 80, 90), hold("c", 21, 60, 70)).seen(Queued{"x", "b", 15, 20})},
		{"", "", "the sight may be of a wait before", holds(hold("a", 0, 10, 50), hold("b", 12, 80, 90),
			hold("c", 21, 60, 70)).but(failed("b", 5, 11, Refused)).seen(Queued{"x", "b", 15, 20})},

		{"", "", "gave up in time", holds(hold("a", 0, 10, 500*ms)).but(failed("b", 10, 200*ms, Refused, until(150*ms)))},
		{"late", "", "gave up too late",
			holds(hold("a", 0, 10, 500*ms)).but(failed("b", 10, 251*ms, Refused, until(150*ms)))},
		{"late", "", "never came back", History{Pending: []Op{failed("b", 10, 20, Done)}}},

		{"stuck", "", "waited while it was free", holds(hold("a", 0, 10, 500*ms), hold("b", 10, 1501*ms, 1502*ms))},
		{"", "", "waited while it was free and nothing ran",
			holds(hold("a", 0, 10, 500*ms), hold("b", 10, 1501*ms, 1502*ms)).and(fault(Stalls, 600*ms, 700*ms))},
		{"stuck", "", "waited in the calm while it was free",
			holds(hold("a", 0, 10, 500*ms), hold("b", 10, 1001*ms, 1002*ms))},
		{"stuck", "", "waited for ever", holds(hold("a", 0, 10, 5010*ms), hold("b", 10, 5020*ms, 5021*ms))},
	} {
		t.Run(test.name, func(t *testing.T) {
			found := Check(test.given, testRules)
			var rules []string // the rules that are violated
			for _, v := range found {
				rules = append(rules, v.Rule)
				caught[v.Rule] = true
			}
			if test.rule == "" {
				assert.Empty(t, found)
			} else {
				assert.Contains(t, rules, test.rule, "%v", found)
			}
			for _, rule := range rules {
				assert.Contains(t, []string{test.rule, test.also}, rule, "found by one more: %v", found)
			}
		})
	}
	for _, rule := range rules {
		assert.True(t, caught[rule.name], "no case is found by %s", rule.name)
	}
}
