package trace

// The conversion of notes into the words of the specification.

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/send"
)

const (
	clientA = "aaaaaaaa-0000-0000-0000-000000000000"
	clientB = "bbbbbbbb-0000-0000-0000-000000000000"
)

func TestStateRefusesWhatTheSpecificationHasNot(t *testing.T) {
	for what, s := range map[string]state{
		"a hold of Redisson":          {Record: []string{clientA + ":1", "1"}},
		"two holds":                   {Record: []string{clientA + ":1:1", "1", clientB + ":1:1", "1"}},
		"a place that hears no grant": {Line: []string{clientA, "poll 1000 0 5 " + clientA + ":1:2"}},
		"a text that is no place":     {Line: []string{clientA, "push"}},
	} {
		_, err := make(clients).of(s)
		assert.Error(t, err, what)
	}
}

func TestGrantToAnotherClientThanTheOneThatIsToldIsAnError(t *testing.T) {
	c := &converter{clients: make(clients), over: make(map[string]bool)}
	c.clients.name(clientA)
	_, err := c.told(note{Told: [][2]string{{"channel:" + clientA, "grant " + clientB + ":1:1 5 1000 0"}}})
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
