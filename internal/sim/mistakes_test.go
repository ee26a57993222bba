//go:build go1.25

package sim

// The simulator finds mistakes: each of those that trace_test.go makes in the scripts, and defects that relock had
// once.
//
// Rules: a mistake is a change of the text of a script on its way to Redis. The mistakes of trace_test.go are read from
// its source, so that they stay the same. One that is not found in so many seeds fails the test.

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var simMistakes = flag.Int("sim.mistakes", 0,
	"in how many seeds TestSimulationFindsMistakes looks for each of them; 0: not at all")

// A mistake is a change of scripts that leaves out one of their cares.
type mistake struct {
	name     string
	from, to string
	focus    Focus
	also     [2]string // another text, and what it becomes, where one is not enough; or nothing
}

// missed are the mistakes that this simulator does not find, and why.
var missed = map[string]string{}

// foci are the faults in which a mistake of trace_test.go is looked for, where all of them would take too long.
var foci = map[string][]string{
	"noTombstone":     {"late requests"},
	"tombstoneUnseen": {"late requests"},
}

// defects are what relock once did wrong, and the mistakes of the specification that trace_test.go does not make.
var defects = []mistake{
	{name: "deadTakenForJava", from: "elseif is_relocks(first) then", to: "elseif false then",
		focus: Focus{[]Kind{Fair}, []string{"kill", "vanish", "outage"}}},
	{name: "heartbeatOfTheFuture", from: "if first and not last_run then", to: "if false then",
		focus: Focus{[]Kind{Fair}, []string{"kill", "vanish", "clock back"}}},
	{name: "writerOfTheFuture", from: "tonumber(last[2]) > now + farthest_beat then", to: "false then",
		focus: Focus{[]Kind{ReadWrite}, []string{"kill", "vanish", "clock back"}}},
	{name: "sliceOfTheFuture", from: " or line.shared > now", to: "",
		focus: Focus{[]Kind{Multi}, []string{"clock back"}}},
	{name: "queueWithoutALease", from: "set_lease(q, tonumber(timeout))", to: "",
		focus: Focus{[]Kind{Fair}, []string{"kill", "vanish", "outage"}}},
	{name: "unheardNotPassedOver", from: "is_heard(q, waiter, heard) then", to: "true then",
		focus: Focus{[]Kind{Fair}, []string{"kill", "vanish"}}},

	// Of the specification.
	{name: "barge", from: "line.exists and ear ~= 'pass' and not guest then", to: "line.exists and false then", focus: Focus{Locks: []Kind{Plain, Multi}}},
	{name: "newsLost", from: "local to = heard == 0 and pass_on", to: "local to = had and heard == 0 and pass_on", focus: Focus{Locks: []Kind{Plain, Multi}}},
	{name: "uncounted", from: "return heard ~= 0", to: "return true",
		also:  [2]string{"return p.ear == 'asks' or listeners(grants_to(channel, p), how) ~= 0", "return true"},
		focus: Focus{[]Kind{Plain, FencedOne}, []string{"kill", "cut", "refuse"}}},
	{name: "joinDeaf", from: "return ear == 'hears' and listeners(channel .. ':' .. client_of(field), how) == 0", to: "return false",
		focus: Focus{[]Kind{Plain, FencedOne}, []string{"cut", "refuse", "hold down"}}},
	{name: "confirmLease", from: "if pttl < lease then", to: "if pttl < 0 then", focus: Focus{Locks: []Kind{Plain, FencedOne}}},
	{name: "leaseShortened", from: "if pttl < lease then", to: "if true then", focus: Focus{Locks: []Kind{Plain, FencedOne}}},
	{name: "lateConfirm", from: "if redis.call('hexists', lock, field) == 0 then\n    return {-1, 0, 0}\nend\nif exact", to: "if exact",
		focus: Focus{Locks: []Kind{Plain, FencedOne}}},
	{name: "permitBarge", from: "if not (wants and ear == 'pass') then", to: "if not wants then", focus: Focus{Locks: []Kind{Permits}}},
	{name: "permitGivenTwice", from: "if ends then\n    redis.call('zrem', taken, id)", to: "if true then\n    redis.call('zrem', taken, id)",
		focus: Focus{Locks: []Kind{Permits}}},
	{name: "handsOn", from: "line.exists and count_free(free) > 0) then", to: "line.exists) then", focus: Focus{Locks: []Kind{Permits}}},
	{name: "javaLapse", from: "not still_held(lock, line.granted) then", to: "not still_held(lock, line.granted) then\n        redis.call('incrby', tokens, 1)",
		focus: Focus{[]Kind{Permits}, []string{"kill", "vanish", "pause", "hold"}}},
	{name: "keepsPlace", from: "local stays = before and (before.unsaved or stands(line, before))", to: "local stays = before",
		focus: Focus{Locks: []Kind{Permits}}},
	{name: "lapseTwice", from: "redis.call('zrem', taken, unpack(expired))", to: "", focus: Focus{Locks: []Kind{Permits}}},
	{name: "permitNewsLost", from: "if count_free(free) <= 0 then\n            return line, false", to: "if not ends then\n            return line, false",
		focus: Focus{Locks: []Kind{Permits}}},
	{name: "permitNoTombstone", from: "wants = wants and not (line and is_over(line, id))", to: "", focus: Focus{[]Kind{Permits}, []string{"late requests"}}},
	{name: "notIdempotent", from: "local wants = not ends and level == '1'", to: "local wants = level == '1'",
		also: [2]string{"if added ~= 1 then", "if type(added) == 'table' then"}, focus: Focus{[]Kind{Permits}, []string{"lost answers", "slow"}}},
	{name: "oneGrant", from: "local most_passed = 1000", to: "local most_passed = 1", focus: Focus{Locks: []Kind{Permits}}},
	{name: "silentRelease", from: "return pass_permits(free, taken, line, id, channel, how, nil)", to: "return line, true",
		focus: Focus{Locks: []Kind{Permits}}},

	// Of the numbers of permits, and of Java's locks.
	{name: "setForgetsTaken", from: "available = permits - redis.call('zcard', taken)\n    redis.call('set'",
		to: "available = permits\n    redis.call('set'", focus: Focus{[]Kind{Permits}, []string{"delete", "wipe"}}},
	{name: "numberForgetsTaken", from: "local available = permits - redis.call('zcard', taken)\nif before",
		to: "local available = permits\nif before", focus: Focus{Locks: []Kind{Permits}}},
	{name: "readerWithoutALease", from: "redis.call('set', lease_key(prefix, field, 1), '1', 'PX', ms(longest))", to: "",
		focus: Focus{Locks: []Kind{JavaReadWrite}}},
	{name: "permitForTwo", from: "redis.call('incrby', free, -1)", to: "", focus: Focus{Locks: []Kind{JavaPermits}}},
}

// ofTheSpecification are the mistakes in spec/mistakes, and which of those here are the same; or why none is. What is a
// mistake of the Go code is in mutations_test.go.
var ofTheSpecification = map[string]struct{ here, why string }{
	"Line-barge":              {here: "barge"},
	"Line-believeLate":        {here: "grantFromTheMessage"},
	"Line-dropUnknown":        {here: "lateAnswerIsKept lateGrantIsKept"},
	"Line-forgetSoon":         {here: "tombstoneDroppedSoon"},
	"Line-headLooks":          {here: "headLooks"},
	"Line-javaUnheard":        {here: "javaUnheard"},
	"Line-joinDeaf":           {here: "joinDeaf"},
	"Line-newsLost":           {here: "newsLost"},
	"Line-noDemotion":         {here: "noDemotion"},
	"Line-noLook":             {here: "nobodyLooks"},
	"Line-noTombstone":        {here: "noTombstone tombstoneUnseen noTombstoneAsked"},
	"Line-oldFlag":            {here: "oldSubscription"},
	"Line-rejoinAgain":        {why: "no script releases a lock and joins the line at once"},
	"Line-releaseByProcess":   {here: "foreignRelease"},
	"Line-sleepOn":            {here: "notWokenAfterReconnect"},
	"Line-staleBusy":          {here: "subscribedUnnoticed"},
	"Line-uncounted":          {here: "uncounted"},
	"Semaphore-barge":         {here: "permitBarge"},
	"Semaphore-believeLate":   {here: "grantFromTheMessage"},
	"Semaphore-forgetSoon":    {here: "tombstoneDroppedSoon"},
	"Semaphore-giveTwice":     {here: "permitGivenTwice"},
	"Semaphore-handsOn":       {here: "handsOn"},
	"Semaphore-javaLapse":     {here: "javaLapse"},
	"Semaphore-keepsPlace":    {here: "keepsPlace"},
	"Semaphore-lapseTwice":    {here: "lapseTwice"},
	"Semaphore-newsLost":      {here: "permitNewsLost"},
	"Semaphore-noLook":        {here: "sleepsForEver"},
	"Semaphore-noTombstone":   {here: "permitNoTombstone"},
	"Semaphore-notIdempotent": {here: "notIdempotent"},
	"Semaphore-oneGrant":      {here: "oneGrant"},
	"Semaphore-setOnly":       {why: "no worker of the simulator sets the number of permits"},
	"Semaphore-silentRelease": {here: "silentRelease"},
	"Semaphore-undoLost":      {here: "tryUndoesNothing"},
	"Trust-arrival":           {here: "grantFromTheMessage"},
	"Trust-busyCounts":        {here: "grantFromTheLastRequest"},
	"Trust-confirmArrival":    {here: "trustFromTheAnswer"},
	"Trust-confirmLease":      {here: "confirmLease"},
	"Trust-confirmTwice":      {here: "leaseShortened"},
	"Trust-lastAsk":           {here: "grantFromTheLastRequest"},
	"Trust-lateAnswer":        {why: "an answer goes to the goroutine that has asked"},
	"Trust-lateConfirm":       {here: "lateConfirm"},
	"Trust-messageToken":      {why: "no message is read after an answer that the lock is held"},
	"Trust-reach-again":       {why: "a false rule, which shows that the model is not empty"},
	"Trust-reach-message":     {why: "a false rule, which shows that the model is not empty"},
	"Trust-restart":           {here: "numbersRepeat"},
	"Trust-shortLease":        {why: "a grant whose lease is shorter than the usual one has the lease that was asked for"},
	"Trust-staleGrant":        {why: "the field of a grant is that of one wait, and the number of its request another secret"},
	"Trust-toAndFro":          {here: "alwaysLate"},
	"Trust-wholeLease":        {here: "wholeLeaseOfAGrant"},
}

// Each mistake of the specification is one of those here, or says why not.
func TestMistakesOfTheSpecification(t *testing.T) {
	files, err := filepath.Glob("../../spec/mistakes/*.cfg")
	require.NoError(t, err)
	require.Len(t, files, len(ofTheSpecification))
	var all []string
	for _, m := range slices.Concat(scriptMistakes(t), defects) {
		all = append(all, m.name)
	}
	for _, m := range mutations {
		all = append(all, m.name)
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".cfg")
		is, ok := ofTheSpecification[name]
		assert.True(t, ok && (is.here == "") != (is.why == ""), name)
		for _, here := range strings.Fields(is.here) {
			assert.Contains(t, all, here, name)
		}
	}
}

// scriptMistakes reads the table of trace_test.go.
func scriptMistakes(t *testing.T) (all []mistake) {
	file, err := parser.ParseFile(gotoken.NewFileSet(), "../../trace_test.go", nil, 0)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Names[0].Name != "scriptMistakes" {
			return true
		}
		for _, row := range spec.Values[0].(*ast.CompositeLit).Elts {
			var text []string
			for _, e := range row.(*ast.CompositeLit).Elts {
				s, err := strconv.Unquote(e.(*ast.BasicLit).Value)
				require.NoError(t, err)
				text = append(text, s)
			}
			kind := map[string]Kind{"plain": Plain, "fenced": FencedOne}[text[1]]
			all = append(all, mistake{name: text[0], from: text[2], to: text[3], focus: Focus{[]Kind{kind, Multi}, foci[text[0]]}})
		}
		return false
	})
	require.NotEmpty(t, all)
	return all
}

func TestSimulationFindsMistakes(t *testing.T) {
	if *simMistakes == 0 {
		t.Skip("-sim.mistakes says in how many seeds to look")
	}
	for _, m := range slices.Concat(scriptMistakes(t), defects) {
		t.Run(m.name, func(t *testing.T) {
			if why, ok := missed[m.name]; ok {
				t.Skip(why)
			}
			var changed atomic.Bool
			rewrite := func(source string) string {
				if strings.Contains(source, m.from) {
					changed.Store(true)
				}
				source = strings.ReplaceAll(source, m.from, m.to)
				if m.also[0] != "" {
					source = strings.ReplaceAll(source, m.also[0], m.also[1])
				}
				return source
			}
			first := rand.Uint64N(1_000_000_000) + 1
			for i := range *simMistakes {
				plan := Draw(first+uint64(i), m.focus)
				if i%4 < 2 { // with and without trouble
					plan = dense(plan, m.focus)
				}
				if v := Play(t, plan, options{rewrite}); v.Found != nil && failsOnlySo(t, plan) {
					fmt.Printf("mistake %s: found with seed %d, the %d. of them: %v\n", m.name, plan.Seed, i+1, v.Found)
					return
				}
			}
			assert.True(t, changed.Load(), "no script has the text that the mistake changes")
			assert.Fail(t, "not found", "%s in %d seeds from %d", m.name, *simMistakes, first)
		})
	}
}

// failsOnlySo says whether a plan that fails with a mistake is well without it.
func failsOnlySo(t *testing.T, plan Plan) bool {
	for range 2 {
		if Play(t, plan, options{}).Found != nil {
			return false
		}
	}
	return true
}
