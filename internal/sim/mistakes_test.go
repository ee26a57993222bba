//go:build go1.25

package sim

// The simulator finds mistakes in scripts: those that trace_test.go makes, those of the specification that scripts
// can make, and bugs that relock once had.
//
// Rules: a mistake is a change of the text of a script on its way to Redis. The mistakes of trace_test.go are read
// from its source, so that both stay the same. A mistake that is not found in the given number of seeds fails the
// test. A plan that fails also without the mistake does not count.
//
// Of 40 mistakes 23 are found, after 1 to 43 seeds. The others are listed in missed, each with a reason.

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

var (
	simMistakes = flag.Int("sim.mistakes", 0,
		"in how many seeds TestSimulationFindsMistakes looks for each of them; 0: not at all")
	simMissed = flag.Bool("sim.missed", false, "look for mistakes and mutations too that are known not to be found")
)

// A mistake is a change of scripts that removes one of their precautions.
type mistake struct {
	name     string
	from, to string
	focus    Focus
	also     [2]string // another text and its replacement, if one change is not enough; or empty
}

// missed contains the mistakes that this simulator does not find, with the reasons.
var missed = map[string]string{
	"noTombstone": "the answer of a late request releases what the request has acquired. If the connection has failed, " +
		"it expires with its lease, as after any fault. Only a lease that ends long after the fault would be " +
		"noticed, and only if no answer has arrived until then",
	"tombstoneUnseen": "as noTombstone",
	"sameNumber": "the place that is lost belongs to a process whose grant has expired, and that of a process behind " +
		"it has expired, too. The process makes another attempt, later than others, which the fault excuses",
	"lateForgotten": "as sameNumber: the places belong to processes that were slow",
	"lapseForgotten": "the place of a grant that has expired is lost. Its process makes another attempt, later than " +
		"others, which the fault excuses",
	"alwaysLate": "a process whose grant has expired may lose the next one, too, and makes another attempt. It waits " +
		"longer, which the fault excuses",
	"unheardNotPassedOver": "a dead waiter is passed over when its heartbeat expires, and the witness allows that time " +
		"after a death",
	"newsLost": "the poller of the next process finds the free lock within a poll interval, if a waiter of another " +
		"type was notified and has left at that moment",
	"joinDeaf": "the poller finds that the place was dropped, and its process makes another attempt. A fault has cut " +
		"the connection, and excuses the delay",
	"leaseShortened": "a lease of the watchdog is usually the longest one, and is renewed at once",
	"permitBarge":    "a permit that a client acquires out of turn is one more turn, which the witness allows",
	"permitNewsLost": "a waiter for a permit polls once in each poll interval, and only a semaphore that is free must be " +
		"handed off at once",
	"permitNoTombstone": "as noTombstone",
	"oneGrant":          "as permitNewsLost",
	"writerOfTheFuture": "a writer would have to die in the seconds before the clock goes back, and be the only one " +
		"that waits. Not found in 200 seeds",
	"sliceOfTheFuture": "a release with an empty line also notifies Java clients, and lines are often empty, so no Java " +
		"service waits long enough. Not found in 200 seeds",
	"notIdempotent": "a semaphore loses at most one permit, because the last one is not available when the request runs " +
		"again. The new client asks for one permit only",
}

// foci contains the faults with which a mistake of trace_test.go is looked for, if all of them would take too long.
var foci = map[string][]string{
	"noTombstone":     {"late requests"},
	"tombstoneUnseen": {"late requests"},
}

// defects contains bugs that relock once had, and the mistakes of the specification that trace_test.go does not make.
var defects = []mistake{
	{
		name: "deadTakenForJava", focus: Focus{[]Kind{Fair}, []string{"kill", "vanish", "outage"}},
		from: "elseif is_relocks(first) then",
		to:   "elseif false then",
	},
	{
		name: "heartbeatOfTheFuture", focus: Focus{[]Kind{Fair}, []string{"kill", "vanish", "clock back"}},
		from: "if first and not last_run then",
		to:   "if false then",
	},
	{
		name: "writerOfTheFuture", focus: Focus{[]Kind{ReadWrite}, []string{"kill", "clock back"}},
		from: "tonumber(last[2]) > now + farthest_beat then",
		to:   "false then",
	},
	{
		name: "sliceOfTheFuture", focus: Focus{[]Kind{JavaPlain}, []string{"clock back"}},
		from: " or line.shared > now",
		to:   "",
	},
	{
		name: "queueWithoutALease", focus: Focus{[]Kind{Fair}, []string{"kill", "vanish", "outage"}},
		from: "set_lease(q, tonumber(timeout))",
		to:   "",
	},
	{
		name: "unheardNotPassedOver", focus: Focus{[]Kind{Fair}, []string{"kill", "vanish"}},
		from: "is_heard(q, waiter, heard) then",
		to:   "true then",
	},

	// Mistakes of the specification.
	{
		name: "barge", focus: Focus{Locks: []Kind{Plain, Multi}},
		from: "line.exists and ear ~= 'pass' and not guest then",
		to:   "line.exists and false then",
	},
	{
		name: "newsLost", focus: Focus{Locks: []Kind{Plain, Multi}},
		from: "local to = heard == 0 and pass_on",
		to:   "local to = had and heard == 0 and pass_on",
	},
	{
		name: "uncounted", focus: Focus{[]Kind{Plain, FencedOne}, []string{"kill", "cut", "refuse"}},
		from: "return heard ~= 0",
		to:   "return true",
		also: [2]string{
			"return p.ear == 'asks' or listeners(grants_to(channel, p), how) ~= 0",
			"return true",
		},
	},
	{
		name: "joinDeaf", focus: Focus{[]Kind{Plain, FencedOne}, []string{"cut", "refuse", "hold down"}},
		from: "return ear == 'hears' and listeners(channel .. ':' .. client_of(field), how) == 0",
		to:   "return false",
	},
	{
		name: "confirmLease", focus: Focus{Locks: []Kind{Plain, FencedOne}},
		from: "if pttl < lease then",
		to:   "if pttl < 0 then",
	},
	{
		name: "leaseShortened", focus: Focus{Locks: []Kind{Plain, FencedOne}},
		from: "if pttl < lease then",
		to:   "if true then",
	},
	{
		name: "lateConfirm", focus: Focus{Locks: []Kind{Plain, FencedOne}},
		from: "if redis.call('hexists', lock, field) == 0 then\n    return {-1, 0, 0}\nend\nif exact",
		to:   "if exact",
	},
	{
		name: "permitBarge", focus: Focus{Locks: []Kind{Permits}},
		from: "if not (wants and ear == 'pass') then",
		to:   "if not wants then",
	},
	{
		name: "permitGivenTwice", focus: Focus{Locks: []Kind{Permits}},
		from: "if ends then\n    redis.call('zrem', taken, id)",
		to:   "if true then\n    redis.call('zrem', taken, id)",
	},
	{
		name: "handsOn", focus: Focus{Locks: []Kind{Permits}},
		from: "line.exists and count_free(free) > 0) then",
		to:   "line.exists) then",
	},
	{
		name: "javaLapse", focus: Focus{[]Kind{Permits}, []string{"kill", "vanish", "pause", "hold"}},
		from: "not still_held(lock, line.granted) then",
		to:   "not still_held(lock, line.granted) then\n        redis.call('incrby', tokens, 1)",
	},
	{
		name: "keepsPlace", focus: Focus{Locks: []Kind{Permits}},
		from: "local stays = before and (before.unsaved or stands(line, before))",
		to:   "local stays = before",
	},
	{
		name: "lapseTwice", focus: Focus{Locks: []Kind{Permits}},
		from: "redis.call('zrem', taken, unpack(expired))",
		to:   "",
	},
	{
		name: "permitNewsLost", focus: Focus{Locks: []Kind{Permits}},
		from: "if count_free(free) <= 0 then\n            return line, false",
		to:   "if not ends then\n            return line, false",
	},
	{
		name: "permitNoTombstone", focus: Focus{[]Kind{Permits}, []string{"late requests"}},
		from: "wants = wants and not (line and is_over(line, id))",
		to:   "",
	},
	{
		name: "notIdempotent", focus: Focus{[]Kind{Permits}, []string{"lost answers", "slow"}},
		from: "local wants = not ends and level == '1'",
		to:   "local wants = level == '1'",
		also: [2]string{
			"if added ~= 1 then",
			"if type(added) == 'table' then",
		},
	},
	{
		name: "oneGrant", focus: Focus{Locks: []Kind{Permits}},
		from: "local most_passed = 1000",
		to:   "local most_passed = 1",
	},
	{
		name: "silentRelease", focus: Focus{Locks: []Kind{Permits}},
		from: "return pass_permits(free, taken, line, id, channel, how, nil)",
		to:   "return line, true",
	},

	// Mistakes about the number of permits, and about the locks of Java.
	{
		name: "setForgetsTaken", focus: Focus{[]Kind{Permits}, []string{"delete", "wipe"}},
		from: "available = permits - redis.call('zcard', taken)\n    redis.call('set'",
		to:   "available = permits\n    redis.call('set'",
	},
	{
		name: "numberForgetsTaken", focus: Focus{Locks: []Kind{Permits}},
		from: "local available = permits - redis.call('zcard', taken)\nif before",
		to:   "local available = permits\nif before",
	},
	{
		name: "readerWithoutALease", focus: Focus{Locks: []Kind{JavaReadWrite}},
		from: "redis.call('set', lease_key(prefix, field, 1), '1', 'PX', ms(longest))", to: "",
	},
	{
		name: "permitForTwo", focus: Focus{Locks: []Kind{JavaPermits}},
		from: "redis.call('incrby', free, -1)", to: "",
	},
}

// ofTheSpecification maps the mistakes in spec/mistakes to the same mistakes here, or to the reason why there is
// none. Mistakes of the Go code are in mutations_test.go.
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
	"Line-rejoinAgain":        {why: "no script releases a lock and joins the line in one run"},
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
	"Semaphore-setOnly":       {why: "a waiter finds a new permit within a poll interval, as for permitNewsLost"},
	"Semaphore-silentRelease": {here: "silentRelease"},
	"Semaphore-undoLost":      {here: "tryUndoesNothing"},
	"Trust-arrival":           {here: "grantFromTheMessage"},
	"Trust-busyCounts":        {here: "grantFromTheLastRequest"},
	"Trust-confirmArrival":    {here: "trustFromTheAnswer"},
	"Trust-confirmLease":      {here: "confirmLease"},
	"Trust-confirmTwice":      {here: "leaseShortened"},
	"Trust-lastAsk":           {here: "grantFromTheLastRequest"},
	"Trust-lateAnswer":        {why: "an answer goes to the goroutine that sent the request"},
	"Trust-lateConfirm":       {here: "lateConfirm"},
	"Trust-messageToken":      {why: "no message is read after an answer that the lock is held"},
	"Trust-reach-again":       {why: "a false rule, which shows that the model is not empty"},
	"Trust-reach-message":     {why: "a false rule, which shows that the model is not empty"},
	"Trust-restart":           {here: "numbersRepeat"},
	"Trust-shortLease":        {why: "a grant carries the lease that was asked for if it is shorter than the provisional one"},
	"Trust-staleGrant":        {why: "a grant names the field of one wait, and the request of that wait"},
	"Trust-toAndFro":          {here: "alwaysLate"},
	"Trust-wholeLease":        {here: "wholeLeaseOfAGrant"},
}

// Each mistake of the specification corresponds to one here, or has a reason why not.
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
			focus := Focus{[]Kind{kind, Multi}, foci[text[0]]}
			all = append(all, mistake{name: text[0], from: text[2], to: text[3], focus: focus})
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
			if why, ok := missed[m.name]; ok && !*simMissed {
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
				long := Draw(first+uint64(i), m.focus)
				for _, plan := range []Plan{long, dense(long, m.focus)} {
					if v := Play(t, plan, options{rewrite}); v.Found != nil && failsOnlySo(t, plan) {
						fmt.Printf("mistake %s: found with seed %d, the %d. of them: %v\n",
							m.name, plan.Seed, i+1, v.Found)
						return
					}
				}
			}
			assert.True(t, changed.Load(), "no script has the text that the mistake changes")
			assert.Fail(t, "not found", "%s in %d seeds from %d", m.name, *simMistakes, first)
		})
	}
}

// failsOnlySo reports whether a plan that fails with a mistake does not fail without it.
func failsOnlySo(t *testing.T, plan Plan) bool {
	for range 2 {
		if Play(t, plan, options{}).Found != nil {
			return false
		}
	}
	return true
}
