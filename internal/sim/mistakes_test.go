//go:build go1.25

package sim

// The simulator finds mistakes that are made in the scripts: those of internal/tests/mistakes.
//
// Rules: a mistake changes the text of a script on its way to Redis. A mistake that is not found within the given number
// of seeds fails the test. A plan that fails without the mistake, too, does not count.
//
// Of 49 mistakes 30 are found, with the 1st to the 43rd seed. The others are in missed, each with a reason.

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/tests/mistakes"
)

var (
	simMistakes = flag.Int("sim.mistakes", 0,
		"in how many seeds TestSimulationFindsMistakes looks for each of them; 0: not at all")
	simMissed = flag.Bool("sim.missed", false, "look for mistakes and mutations too that are known not to be found")
)

// missed has the mistakes that this simulator does not find, with the reasons.
var missed = map[string]string{
	"noTombstone": "the client releases what a late request took when its answer comes. Without a connection the lock " +
		"expires " +
		"with its lease, as after a fault; only a lease that ends long after the fault would be seen, and then " +
		"no answer may have come",
	"tombstoneUnseen": "as noTombstone",
	"toAndFro": "a process whose grant has expired may lose the next one, too, and asks: it waits longer, " +
		"which the fault excuses",
	"unheardNotPassedOver": "a grant to a dead waiter ends after some seconds, which the witness allows after a death",
	"overdueNotPassedOver": "as unheardNotPassedOver",
	"noGraceAfterAnOutage": "a waiter that was passed over asks again, and the fault excuses the order",
	"javaNotNoted": "a timeout of Java that is too long counts only if its process dies, and a lease that is too short " +
		"only after minutes",
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

// foci has the locks with which to look for each mistake, and the faults if trying all of them would take too long.
var foci = map[string]Focus{
	"skippedPlace":         {Locks: []Kind{Plain, Multi}},
	"noTombstone":          {[]Kind{FencedOne, Multi}, []string{"late requests"}},
	"tombstoneUnseen":      {[]Kind{Plain, Multi}, []string{"late requests"}},
	"toAndFro":             {Locks: []Kind{Plain, Multi}},
	"wrongField":           {Locks: []Kind{FencedOne, Multi}},
	"noGrant":              {Locks: []Kind{Plain, Multi}},
	"foreignRelease":       {Locks: []Kind{Plain, Multi}},
	"toTheEnd":             {Locks: []Kind{Plain, Multi}},
	"deadTakenForJava":     {[]Kind{Fair}, []string{"kill", "vanish", "outage"}},
	"requestOfTheFuture":   {[]Kind{Fair}, []string{"kill", "vanish", "clock back"}},
	"writerOfTheFuture":    {[]Kind{ReadWrite}, []string{"kill", "clock back"}},
	"windowOfTheFuture":    {[]Kind{JavaPlain}, []string{"clock back"}},
	"queueWithoutALease":   {[]Kind{Fair}, []string{"kill", "vanish", "outage"}},
	"unheardNotPassedOver": {[]Kind{Fair}, []string{"kill", "vanish"}},
	"overdueNotPassedOver": {[]Kind{Fair}, []string{"kill", "vanish"}},
	"noGraceAfterAnOutage": {[]Kind{Fair}, []string{"outage"}},
	"javaNotNoted":         {[]Kind{Fair}, []string{"kill"}},
	"shortReleaseTwice":    {[]Kind{Plain}, []string{"lost answers", "slow"}},
	"patternsCounted":      {[]Kind{Plain}, []string{"watched", "kill", "vanish"}},
	"barge":                {Locks: []Kind{Plain, Multi}},
	"newsLost":             {Locks: []Kind{Plain, Multi}},
	"uncounted":            {[]Kind{Plain, FencedOne}, []string{"kill", "cut", "refuse"}},
	"joinUnsubscribed":     {[]Kind{Plain, FencedOne}, []string{"cut", "refuse", "hold down"}},
	"confirmLease":         {Locks: []Kind{Plain, FencedOne}},
	"commonRepeat":         {[]Kind{Permits}, []string{"late requests", "lost answers"}},
	"commonWish":           {[]Kind{Fair}, []string{"late requests"}},
	"commonDowngrade":      {Locks: []Kind{ReadWrite}},
	"commonDetached":       {Locks: []Kind{ReadWrite}},
	"commonListener":       {Locks: []Kind{Plain}},
	"leaseShortened":       {Locks: []Kind{Plain, FencedOne}},
	"lateConfirm":          {Locks: []Kind{Plain, FencedOne}},
	"permitBarge":          {Locks: []Kind{Permits}},
	"permitReleasedTwice":  {Locks: []Kind{Permits}},
	"handsOn":              {Locks: []Kind{Permits}},
	"expireTwice":          {Locks: []Kind{Permits}},
	"permitNewsLost":       {Locks: []Kind{Permits}},
	"permitNoTombstone":    {[]Kind{Permits}, []string{"late requests"}},
	"notIdempotent":        {[]Kind{Permits}, []string{"lost answers", "slow"}},
	"oneGrant":             {Locks: []Kind{Permits}},
	"silentRelease":        {Locks: []Kind{Permits}},
	"setForgetsTaken":      {[]Kind{Permits}, []string{"delete", "wipe"}},
	"numberForgetsTaken":   {Locks: []Kind{Permits}},
	"readerWithoutALease":  {Locks: []Kind{JavaReadWrite}},
	"permitForTwo":         {Locks: []Kind{JavaPermits}},
	"countsOne":            {Locks: []Kind{Wide}},
	"partly":               {Locks: []Kind{Wide}},
	"skips":                {Locks: []Kind{Wide}},
	"tryAhead":             {Locks: []Kind{Wide}},
	"keepsTicket":          {Locks: []Kind{Plain, FencedOne, Fair, ReadWrite}},
	"keepsPermits":         {Locks: []Kind{Permits, Wide}},
	"detachedWithOldLease": {Locks: []Kind{Plain, FencedOne}},
}

// ofTheSpecification maps the mistakes in spec/mistakes to the same mistakes here, or tells why there is none. Mistakes
// of the Go code are in internal/tests/mistakes, too.
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
	"Line-forgetSoon":         {why: "the code removes no tombstone that has not expired"},
	"Line-headPolls":          {here: "headLooks"},
	"Line-javaUnheard":        {here: "javaUnheard"},
	"Line-joinUnsubscribed":   {here: "joinUnsubscribed"},
	"Line-newsLost":           {here: "newsLost"},
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
	"Semaphore-forgetSoon":    {why: "the code removes no tombstone that has not expired"},
	"Semaphore-releaseTwice":  {here: "permitReleasedTwice"},
	"Semaphore-handsOn":       {here: "handsOn"},
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
	"Validity-toAndFro":       {here: "toAndFro"},
	"Validity-wholeLease":     {here: "wholeLeaseOfAGrant"},
}

// Each mistake of the specification is one of those here, or has a reason why not.
func TestMistakesOfTheSpecification(t *testing.T) {
	files, err := filepath.Glob("../../spec/mistakes/*.cfg")
	require.NoError(t, err)
	require.Len(t, files, len(ofTheSpecification))
	var all []string
	for _, m := range mistakes.Scripts {
		assert.Contains(t, foci, m.Name, "the locks with which to look for a mistake")
		all = append(all, m.Name)
	}
	for _, m := range mistakes.Code {
		all = append(all, m.Name)
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

func TestSimulationFindsMistakes(t *testing.T) {
	if *simMistakes == 0 {
		t.Skip("-sim.mistakes says in how many seeds to look")
	}
	for _, m := range mistakes.Scripts {
		t.Run(m.Name, func(t *testing.T) {
			if why, ok := missed[m.Name]; ok && !*simMissed {
				t.Skip(why)
			}
			focus := foci[m.Name]
			first := rand.Uint64N(1_000_000_000) + 1
			for i := range *simMistakes {
				long := Draw(first+uint64(i), focus)
				for _, plan := range []Plan{long, dense(long, focus)} {
					if v := Play(t, plan, options{m.In}); v.Found != nil && failsOnlySo(t, plan) {
						fmt.Printf("mistake %s: found with seed %d, the %d. of them: %v\n",
							m.Name, plan.Seed, i+1, v.Found)
						return
					}
				}
			}
			assert.Fail(t, "not found", "%s in %d seeds from %d", m.Name, *simMistakes, first)
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
