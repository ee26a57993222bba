//go:build go1.25

package sim

// The simulator finds mistakes: those that trace_test.go makes in the scripts, those of the specification that scripts
// can make, and defects that relock once had.
//
// Rules: a mistake is a change of the text of a script on its way to Redis. The mistakes of trace_test.go are read from
// its source, so that they stay the same. A mistake that is not found within the given number of seeds fails the test.
// A plan that fails without the mistake, too, does not count.
//
// Of 49 mistakes 30 are found, with the 1st to the 43rd seed. The others are in missed, each with a reason.

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"math/rand/v2"
	"os"
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

// A mistake is a change of scripts that omits one of their precautions.
type mistake struct {
	name     string
	from, to string
	focus    Focus
	also     [2]string // another text, and what it becomes, where one is not enough; or nothing
}

// missed has the mistakes that this simulator does not find, with the reasons.
var missed = map[string]string{
	"noTombstone": "the client releases what a late request took when its answer comes. Without a connection the lock " +
		"expires " +
		"with its lease, as after a fault; only a lease that ends long after the fault would be seen, and then " +
		"no answer may have come",
	"tombstoneUnseen": "as noTombstone",
	"sameNumber": "a place that is lost like that is one of a process whose grant has expired, and the grant of one " +
		"behind " +
		"it has expired too: it asks again, later than others, which the fault excuses",
	"suspectForgotten": "as sameNumber: the places are those of processes that were slow",
	"expiryForgotten": "the place of a grant that has expired is lost: its process asks again, later than " +
		"others, which the fault excuses",
	"alwaysSuspect": "a process whose grant has expired may lose the next one, too, and asks: it waits longer, " +
		"which the fault excuses",
	"unheardNotPassedOver": "a dead waiter is passed over when its heartbeat ends, which the witness allows " +
		"after a death",
	"newsLost": "the poller of the next process finds the lock within a poll interval if a waiter of " +
		"another kind has been told and has left just then",
	"joinUnsubscribed": "the poller sees that the place was dropped, and its process asks; a fault has cut the " +
		"connection, and excuses that",
	"leaseShortened": "a lease of the watchdog is the longest as a rule, and is renewed at once",
	"permitBarge":    "a permit that a caller takes out of turn is one turn more, which the witness allows",
	"tryAhead": "a permit that a TryLock takes ahead of a caller that wants several is one turn more, which the " +
		"witness allows. Not found in 20 seeds",
	"permitNewsLost": "a waiter for a permit asks once in each poll interval, and only a semaphore that is free has to " +
		"pass at once",
	"permitNoTombstone": "as noTombstone",
	"oneGrant":          "as permitNewsLost",
	"writerOfTheFuture": "a writer has to die in the seconds before the clock goes back, and to be the only one that " +
		"waits: not found in 200 seeds",
	"windowOfTheFuture": "a release to an empty line is for Java, too, and lines are empty often: no Java service waits " +
		"long enough. Not found in 200 seeds",
	"patternsCounted": "a grant to a process that has died is noticed when it expires, which the witness allows after a " +
		"death. Not found in 60 seeds",
	"notIdempotent": "a semaphore loses one permit, and no more: the last one is not free when the request " +
		"runs again. The newcomer asks for one",
}

// foci has the faults with which to look for a mistake of trace_test.go if trying all faults would take too long.
var foci = map[string][]string{
	"noTombstone":     {"late requests"},
	"tombstoneUnseen": {"late requests"},
}

// defects has the mistakes that relock once had, and those of the specification that trace_test.go does not make.
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
		name: "windowOfTheFuture", focus: Focus{[]Kind{JavaPlain}, []string{"clock back"}},
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

	// A mistake in the short way of a release; line_test.go finds others.
	{
		name: "shortReleaseTwice", focus: Focus{[]Kind{Plain}, []string{"lost answers", "slow"}},
		from: "local free, token = deleted == 1 and redis.pcall('exists', lock) == 0, 0",
		to:   "local free, token = true, 0",
	},

	{
		name: "patternsCounted", focus: Focus{[]Kind{Plain}, []string{"watched", "kill", "vanish"}},
		from: "(redis.pcall('pubsub', how == 'spublish' and 'shardnumsub' or 'numsub', channel .. ':' .. to)" +
			"[2] or 0) ~= 0 then",
		to: "redis.pcall('publish', channel .. ':' .. to, '') ~= 0 then",
	},

	// Mistakes of the specification.
	{
		name: "barge", focus: Focus{Locks: []Kind{Plain, Multi}},
		from: "line.exists and delivery ~= 'barge' and not guest then",
		to:   "line.exists and false then",
	},
	{
		name: "newsLost", focus: Focus{Locks: []Kind{Plain, Multi}},
		from: "local to = heard == 0 and pass_on",
		to:   "local to = had and heard == 0 and pass_on",
	},
	{
		name: "uncounted", focus: Focus{[]Kind{Plain, FencedOne}, []string{"kill", "cut", "refuse"}},
		from: "return heard > 0",
		to:   "return true",
		also: [2]string{
			"q.reachable = counts[channels[i]] ~= 0",
			"q.reachable = true",
		},
	},
	{
		name: "joinUnsubscribed", focus: Focus{[]Kind{Plain, FencedOne}, []string{"cut", "refuse", "hold down"}},
		from: "return delivery == 'push' and listeners(channel .. ':' .. client_of(field), how) == 0",
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
		from: "local to = not ahead and pass_permits(",
		to:   "local to = not wants and pass_permits(",
	},
	{
		name: "permitReleasedTwice", focus: Focus{Locks: []Kind{Permits}},
		from: "if there == 0 then\n        return 0\n    end",
		to:   "there = #ids",
		also: [2]string{
			"if removed ~= there then",
			"if false then",
		},
	},
	{
		name: "handsOn", focus: Focus{Locks: []Kind{Permits}},
		from: "and count_free(free) > 0 and pass_on(",
		to:   "and pass_on(",
		also: [2]string{
			"if room.available >= n then",
			"if true then",
		},
	},
	{
		name: "javaExpiry", focus: Focus{[]Kind{Permits}, []string{"kill", "vanish", "pause", "hold"}},
		from: "not still_held(lock, line.granted) then",
		to:   "not still_held(lock, line.granted) then\n        redis.call('incrby', tokens, 1)",
	},
	{
		name: "keepsPlace", focus: Focus{Locks: []Kind{Permits}},
		from: "local stays = before and (before.unsaved or is_enqueued(line, before))",
		to:   "local stays = before",
	},
	{
		name: "expireTwice", focus: Focus{Locks: []Kind{Permits}},
		from: "return_permits(free, taken, expired, #expired)",
		to:   "add(free, #expired)",
	},
	{
		name: "permitNewsLost", focus: Focus{Locks: []Kind{Permits}},
		from: "if count_free(free) <= 0 then\n            return line, false",
		to:   "if not ends then\n            return line, false",
	},
	{
		name: "permitNoTombstone", focus: Focus{[]Kind{Permits}, []string{"late requests"}},
		from: "wants = wants and not (line and has_tombstone(line, id))",
		to:   "",
	},
	{
		name: "notIdempotent", focus: Focus{[]Kind{Permits}, []string{"lost answers", "slow"}},
		from: "local wants = not ends and hold_count == '1'",
		to:   "local wants = hold_count == '1'",
		also: [2]string{
			"if added ~= #ids then",
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
		from: "return line, pass_permits(free, taken, line, channel, how, nil)",
		to:   "return line, true",
	},

	// Mistakes in the numbers of permits, and with Java's locks.
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
		from: "redis.call('incrby', free, -#ids)", to: "",
	},

	// Mistakes with several permits at once, and with holds that move.
	{
		name: "countsOne", focus: Focus{Locks: []Kind{Wide}},
		from: "redis.call('incrby', free, -#ids)",
		to:   "redis.call('incrby', free, -1)",
	},
	{
		name: "partly", focus: Focus{Locks: []Kind{Wide}},
		from: "if room.available >= n then\n        return 'now'",
		to:   "if true then\n        return 'now'",
	},
	{
		name: "skips", focus: Focus{Locks: []Kind{Wide}},
		from: "< n and 'never' or 'later'",
		to:   "< n and 'never' or 'never'",
	},
	{
		name: "tryAhead", focus: Focus{Locks: []Kind{Wide}},
		from: "line.exists and wants_several(line, channel, how))",
		to:   "false)",
	},
	{
		name: "keepsTicket", focus: Focus{Locks: []Kind{Plain, FencedOne, Fair, ReadWrite}},
		from: "redis.call('hdel', lock, from)",
		to:   "",
	},
	{
		name: "keepsPermits", focus: Focus{Locks: []Kind{Permits, Wide}},
		from: "redis.call('zrem', taken, unpack(old))",
		to:   "",
	},
	{
		name: "detachedWithOldLease", focus: Focus{Locks: []Kind{Plain, FencedOne}},
		from: "set_lease_of(lock)\n    renamed = true",
		to:   "renamed = true",
	},
}

// ofTheSpecification maps the mistakes in spec/mistakes to the same mistakes here, or tells why there is none. Mistakes
// of the Go code are in mutations_test.go.
var ofTheSpecification = map[string]struct{ here, why string }{
	"Detach-idFirst":          {why: "a late request of a Detach in vain: TestFaultDetachThatIsNotConfirmedReleases finds it"},
	"Detach-keepsTicket":      {here: "keepsTicket keepsPermits"},
	"Detach-liveTicket":       {here: "liveTicket"},
	"Detach-noPutBack":        {here: "noPutBack"},
	"Detach-noTombstone":      {why: "as noTombstone in this file: TestFaultLateAttemptOfADetachedHold"},
	"Detach-notBuried":        {why: "as noTombstone: TestFaultAttachThatGivesUpPutsTheHoldBack"},
	"Detach-reach":            {why: "a false rule, which shows that the model is not empty"},
	"Detach-sameField":        {why: "a ticket with such an ID is refused: TestFaultLateRenewalOfADetachedHold"},
	"Detach-unsynced":         {why: "there are no replicas: TestSyncedReplicasConfirmDetachAndAttach"},
	"Line-barge":              {here: "barge"},
	"Line-believeLate":        {here: "grantFromTheMessage"},
	"Line-dropUnknown":        {here: "lateAnswerIsKept lateGrantIsKept"},
	"Line-forgetSoon":         {here: "tombstoneDroppedSoon"},
	"Line-headPolls":          {here: "headLooks"},
	"Line-javaUnheard":        {here: "javaUnheard"},
	"Line-joinUnsubscribed":   {here: "joinUnsubscribed"},
	"Line-newsLost":           {here: "newsLost"},
	"Line-noDemotion":         {here: "noDemotion"},
	"Line-noPoll":             {here: "nobodyLooks"},
	"Line-noTombstone":        {here: "noTombstone tombstoneUnseen noTombstoneAsked"},
	"Line-oldFlag":            {here: "oldSubscription"},
	"Line-rejoinAgain":        {why: "no script releases a lock and joins the line at once"},
	"Line-releaseByProcess":   {here: "foreignRelease"},
	"Line-sleepOn":            {here: "notWokenAfterReconnect"},
	"Line-staleBusy":          {here: "subscribedUnnoticed"},
	"Line-uncounted":          {here: "uncounted"},
	"Semaphore-barge":         {here: "permitBarge"},
	"Semaphore-blocks":        {why: "no semaphore has fewer permits than a worker wants: TestSemaphoreScriptsFollowTheModel"},
	"Semaphore-partly":        {here: "partly"},
	"Semaphore-skips":         {here: "skips"},
	"Semaphore-tryAhead":      {here: "tryAhead"},
	"Semaphore-believeLate":   {here: "grantFromTheMessage"},
	"Semaphore-forgetSoon":    {here: "tombstoneDroppedSoon"},
	"Semaphore-releaseTwice":  {here: "permitReleasedTwice"},
	"Semaphore-handsOn":       {here: "handsOn"},
	"Semaphore-javaExpiry":    {here: "javaExpiry"},
	"Semaphore-keepsPlace":    {here: "keepsPlace"},
	"Semaphore-expireTwice":   {here: "expireTwice"},
	"Semaphore-newsLost":      {here: "permitNewsLost"},
	"Semaphore-noPoll":        {here: "sleepsForEver"},
	"Semaphore-noTombstone":   {here: "permitNoTombstone"},
	"Semaphore-notIdempotent": {here: "notIdempotent"},
	"Semaphore-oneGrant":      {here: "oneGrant"},
	"Semaphore-setOnly":       {why: "a waiter finds a new permit within a poll interval, as for permitNewsLost"},
	"Semaphore-silentRelease": {here: "silentRelease"},
	"Semaphore-rollBackLost":  {here: "tryUndoesNothing"},
	"Tokens-ahead": {why: "a counter is ahead of the clock by less than a simulated fault takes: " +
		"TestStories/tokens"},
	"Tokens-belowCounter": {why: "two draws are further apart than the microseconds of a block: " +
		"TestStories/tokens"},
	"Tokens-counterBehind":    {why: "as for belowCounter"},
	"Tokens-fromMissing":      {why: "as for belowCounter"},
	"Tokens-otherAnswer":      {why: "an answer goes to the goroutine that has asked"},
	"Tokens-reach":            {why: "a false rule, which shows that the model is not empty"},
	"Tokens-restKept":         {here: "restOfABlockKept"},
	"Validity-arrival":        {here: "grantFromTheMessage"},
	"Validity-busyCounts":     {here: "grantFromTheLastRequest"},
	"Validity-confirmArrival": {here: "trustFromTheAnswer"},
	"Validity-confirmLease":   {here: "confirmLease"},
	"Validity-confirmTwice":   {here: "leaseShortened"},
	"Validity-lastAsk":        {here: "grantFromTheLastRequest"},
	"Validity-lateAnswer":     {why: "an answer goes to the goroutine that has asked"},
	"Validity-lateConfirm":    {here: "lateConfirm"},
	"Validity-messageToken":   {why: "no message is read after an answer that the lock is held"},
	"Validity-reach-again":    {why: "a false rule, which shows that the model is not empty"},
	"Validity-reach-message":  {why: "a false rule, which shows that the model is not empty"},
	"Validity-restart":        {here: "numbersRepeat"},
	"Validity-shortLease":     {why: "a grant with a shorter lease has the one that was asked for"},
	"Validity-staleGrant":     {why: "a grant names the field of one wait, and its request"},
	"Validity-toAndFro":       {here: "alwaysSuspect"},
	"Validity-wholeLease":     {here: "wholeLeaseOfAGrant"},
}

// Each mistake of the specification is one of those here, or has a reason why not.
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

// A mistake changes a text. If the scripts have changed, the text may be in none of them.
func TestMistakesFitTheScripts(t *testing.T) {
	files, err := filepath.Glob("../lua/linked/*.lua")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var all strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		all.Write(text)
	}
	for _, m := range slices.Concat(scriptMistakes(t), defects) {
		for _, text := range []string{m.from, m.also[0]} {
			assert.True(t, strings.Contains(all.String(), text), "%s: no script has %q", m.name, text)
		}
	}
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

// failsOnlySo reports whether a plan that fails with a mistake is well without it.
func failsOnlySo(t *testing.T, plan Plan) bool {
	for range 2 {
		if Play(t, plan, options{}).Found != nil {
			return false
		}
	}
	return true
}
