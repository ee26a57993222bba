package trace

// The conversion of notes into the words of the specification.

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/send"
)

const (
	clientA = "aaaaaaaa-0000-0000-0000-000000000000"
	clientB = "bbbbbbbb-0000-0000-0000-000000000000"
	clientC = "cccccccc-0000-0000-0000-000000000000"
)

// abstractOf returns the state of a record of holder and a line with these fields. Clients A, B and C are p1, p2 and
// p3.
func abstractOf(t *testing.T, holder string, fields ...string) abstract {
	c := make(clients)
	for _, client := range []string{clientA, clientB, clientC} {
		c.name(client)
	}
	s := state{Line: fields}
	if holder != "" {
		s.Record = []string{holder, "1"}
	}
	a, err := c.of(s)
	require.NoError(t, err)
	return a
}

func TestStateHasThePlacesInOrder(t *testing.T) {
	a := abstractOf(t, clientC+":1:07", "first", "9", "last", "11",
		"11", clientA, clientA, "11 new push 1000 0 5 "+clientA+":1:02",
		"9", clientB, clientB, "9 suspect push 1000 0 5 "+clientB+":-1:03")
	assert.Equal(t, abstract{record: `<<"p3",7>>`, granted: nobody,
		line: []string{`[f|-><<"p2",3>>,kind|->"suspect"]`, `[f|-><<"p1",2>>,kind|->"new"]`}}, a)
}

func TestStateHasTheGrantOfItsHolder(t *testing.T) {
	line := []string{"first", "2", "last", "1", "granted", clientA + ":1:02", clientA,
		"1 new push 1000 0 5 " + clientA + ":1:02"}
	assert.Equal(t, abstract{record: `<<"p1",2>>`, granted: `<<"p1",2>>`}, abstractOf(t, clientA+":1:02", line...))
	line[len(line)-1] = "1 new push 1000 0 5 " + clientA + ":1:03"
	assert.Equal(t, abstract{record: `<<"p1",2>>`, granted: nobody}, abstractOf(t, clientA+":1:02", line...),
		"a later wait has the place")
}

// The place comes back before a script has noticed that the lease has expired.
func TestStateHasThePlaceWhoseGrantExpired(t *testing.T) {
	line := []string{"first", "2", "last", "2", "granted", clientA + ":1:02", clientA,
		"1 new push 1000 0 5 " + clientA + ":1:02",
		"2", clientB, clientB, "2 confirmed push 1000 0 5 " + clientB + ":1:03"}
	places := []string{`[f|-><<"p1",2>>,kind|->"suspect"]`, `[f|-><<"p2",3>>,kind|->"confirmed"]`}
	assert.Equal(t, abstract{record: nobody, granted: nobody, line: places}, abstractOf(t, "", line...))
	assert.Equal(t, abstract{record: `<<"p3",7>>`, granted: nobody, line: places}, abstractOf(t, clientC+":1:07", line...),
		"another client has taken the lock")
}

func TestStateRefusesWhatTheSpecificationHasNot(t *testing.T) {
	for what, s := range map[string]state{
		"a hold of Redisson": {Record: []string{clientA + ":1", "1"}},
		"two holds":          {Record: []string{clientA + ":1:01", "1", clientB + ":1:01", "1"}},
		"a place that hears no grant": {Line: []string{"first", "1", "last", "1", "1", clientA, clientA,
			"1 new poll 1000 0 5 " + clientA + ":1:02"}},
		"a text that is no place": {Line: []string{"first", "1", "last", "1", "1", clientA, clientA, "1 new push"}},
	} {
		_, err := make(clients).of(s)
		assert.Error(t, err, what)
	}
}

// The limits of a belief are not known exactly: it neither begins before the script that granted the lock nor ends
// after the script that released it.
func TestBeliefsAreBetweenTheScripts(t *testing.T) {
	c := &converter{clients: make(clients), over: make(map[string]bool)}
	c.last, _ = c.clients.of(state{})
	held := state{Record: []string{clientA + ":1:01", "1"}, Expires: 11_000}
	require.NoError(t, c.add(note{Verb: Ask, Time: [2]string{"10", "0"}, After: held, Answer: []float64{1, 0, 0},
		Args: []string{clientA + ":1:01", "1000", "1", "barge"}}))
	require.NoError(t, c.add(note{Verb: End, Time: [2]string{"10", "500"}, Before: held, Answer: []float64{1, 0, 0},
		Args: []string{clientA + ":1:01"}}))
	tr := c.finish("lock", []Belief{{"lock", clientA, time.Unix(10, 0), time.Unix(10, 500_000)},
		{"other", clientB, time.Unix(1, 0), time.Unix(2, 0)}})
	assert.Equal(t, []string{"ask", "believe", "doubt", "end"}, kinds(tr))
}

// A change between two scripts is an expiry, at the end of the lease. A script that changes nothing is not an event.
func TestExpiriesAreAtTheEndOfTheLease(t *testing.T) {
	c := &converter{clients: make(clients), over: make(map[string]bool)}
	c.last, _ = c.clients.of(state{})
	held := state{Record: []string{clientA + ":1:01", "1"}, Expires: 11_000}
	require.NoError(t, c.add(note{Verb: Ask, Time: [2]string{"10", "0"}, After: held, Answer: []float64{1, 0, 0},
		Args: []string{clientA + ":1:01", "1000", "1", "barge"}}))
	held.Expires = 12_500
	require.NoError(t, c.add(note{Verb: "renew", Time: [2]string{"10", "500000"}, Before: held, After: held,
		Args: []string{clientA + ":1:01", "2000"}}))
	require.NoError(t, c.add(note{Verb: End, Time: [2]string{"20", "0"}, Answer: []float64{-1, 0, 0},
		Args: []string{clientA + ":1:01"}}))
	require.NoError(t, c.add(note{Verb: Ask, Time: [2]string{"21", "0"}, Answer: []float64{0, -2, 0},
		Args: []string{clientA + ":1:01", "1000", "1", "push"}}))
	tr := c.finish("lock", nil)
	assert.Equal(t, []string{"ask", "expire", "end", "ask"}, kinds(tr))
	assert.True(t, time.Unix(12, 500_000_000).Equal(tr.events[1].at), "when the expiry was: %v", tr.events[1].at)
	assert.Equal(t, []string{`<<"p1",1>>`}, tr.late, "fields that asked after their end")
	assert.Equal(t, 4, tr.Scripts)
}

// kinds returns the kinds of the events.
func kinds(t Trace) (all []string) {
	for _, e := range t.events {
		var kind string
		for _, k := range []string{"ask", "end", "expire", "believe", "doubt"} {
			if len(e.text) > 7+len(k) && e.text[:7+len(k)] == `[k|->"`+k+`"` {
				kind = k
			}
		}
		all = append(all, kind)
	}
	return all
}

func TestGrantToAnotherClientThanTheOneThatIsToldIsAnError(t *testing.T) {
	c := &converter{clients: make(clients), over: make(map[string]bool)}
	c.clients.name(clientA)
	_, err := c.told(note{Told: [][2]string{{"channel:" + clientA, "grant " + clientB + ":1:01 5 1000 0"}}})
	require.Error(t, err)
	told, err := c.told(note{Told: [][2]string{{"channel:" + clientA, "free"}, {"channel", "0"}}})
	require.NoError(t, err)
	assert.Equal(t, `m|->{<<"p1","free">>}`, told)
}

func TestVerdictsAreThoseOfTLC(t *testing.T) {
	traces := []Trace{{Name: "one"}, {Name: "two", events: []event{{text: "first"}, {text: "second"}}}}
	out := "noise\n<<\"accepted\", 1>>\n<< \"rejected\",\n   2,\n   2,\n   [ record |-> <<\"p1\", 2>>,\n     over |-> " +
		"{} ] >>\nnoise\n"
	all, err := verdicts(out, traces)
	require.NoError(t, err)
	assert.Equal(t, 0, all[0].Event)
	assert.Equal(t, 2, all[1].Event)
	assert.Equal(t, "1: 00.000000 first\n2: 00.000000 second\nthe state before it: [ record |-> <<\"p1\", 2>>, over "+
		"|-> {} ]", all[1].Text())
	_, err = verdicts("<<\"accepted\", 1>>\n", traces)
	assert.Error(t, err, "no verdict on a trace")
}

func TestRecorderKeepsOtherScripts(t *testing.T) {
	known, other := send.NewScript("return {1, 0, 0}"), send.NewScript("return {0, 0, 0}")
	r := Record(map[*send.Script]Verb{known: Ask}, func(source string) string { return source })
	assert.Same(t, other, r.Sent(other))
	assert.Contains(t, r.Sent(known).Source(), known.Source())
	assert.Contains(t, r.Sent(known).Source(), "verb = 'ask'")
}
