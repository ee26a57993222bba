package relock

// Which test covers which fault, and what the tests of faults share. The faults are the rows of docs/reliability.md.
//
// Rules: every row names tests that exist, or the reason why it cannot be tested on one machine; the page and the table
// agree. All lock types are tried side by side, because such tests mostly wait.

import (
	"context"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A faultLock is a lock type, and the requests by which its faults are injected.
type faultLock struct {
	lockKind

	takes, gives, rollsBack, renews testredis.Match

	asks, parts int  // number of requests of one acquire, and of one release
	red         bool // Lock continues until ctx is done, whatever the nodes answer
}

var faultLocks = []faultLock{
	{kindCalled("lock"), calls(lockAcquire), calls(lockRelease), calls(lockRelease), calls(renewScript), 1, 1, false},
	{kindCalled("fenced"), calls(lockAcquire), calls(lockRelease), calls(lockRelease), calls(renewScript), 1, 1, false},
	{kindCalled("fair"), calls(fairAcquire), calls(fairRelease), calls(fairRelease), calls(renewScript), 1, 1, false},
	{kindCalled("read"), calls(readAcquire), calls(readRelease), calls(readRelease), calls(readRenew), 1, 1, false},
	{kindCalled("write"), calls(writeAcquire), calls(writeRelease), calls(writeRelease), calls(renewScript), 1, 1, false},
	{
		kindCalled("semaphore"),
		calls(semaphoreAcquire),
		calls(semaphoreRelease),
		calls(semaphoreRelease),
		calls(semaphoreRenew),
		1,
		1,
		false,
	},
	{
		lockKind{name: "multi", one: newSlotMultiLock, rival: newSlotMultiLock},
		calls(bundleScript),
		calls(lockRelease),
		calls(lockRelease),
		calls(renewScript),
		1,
		2,
		false,
	},
	{
		lockKind{name: "red", one: newThreeWayLock, rival: newThreeWayLock},
		calls(lockAcquire),
		calls(lockRelease),
		calls(lockRelease),
		calls(renewScript),
		3,
		3,
		true,
	},
}

// lined reports whether processes wait for the lock, or for its parts, in a line, which has their tombstones.
func (k faultLock) lined() bool { return k.name != "read" }

// calls matches the runs of a script.
func calls(script *luaScript) testredis.Match { return testredis.Script(script.Digest()) }

// anyOf matches the runs of these scripts.
func anyOf(scripts ...*luaScript) testredis.Match {
	return func(cmd []string) bool {
		return slices.ContainsFunc(scripts, func(s *luaScript) bool { return calls(s)(cmd) })
	}
}

// newThreeWayLock returns a RedLock whose nodes all fail together: three names of one server.
func newThreeWayLock(c *Client, name string) Locker {
	others, _ := siblings.Load(c)
	two := others.([]*Client)
	return c.NewRedLock(c.NewLock(name), two[0].NewLock(name+"-b"), two[1].NewLock(name+"-c"))
}

// A faultBench has two connections to one Redis: over a proxy that can be told to fail, and directly.
type faultBench struct {
	*bench
	server *testredis.Server
	proxy  *testredis.Proxy
	direct *Client // not over the proxy
}

func newFaultBench(t *testing.T, args ...string) *faultBench {
	t.Parallel()
	return newFaultBenchOn(t, testredis.Start(t, args...))
}

func newFaultBenchOn(t *testing.T, s *testredis.Server) *faultBench {
	b := &faultBench{bench: newBench(t, s.Addr()), server: s, proxy: testredis.NewProxy(t, s.Addr())}
	b.name += "-" // so that it is not a part of another name on this server
	b.direct = b.client()
	for _, script := range allScripts() {
		// So that a fault hits a run, and not a NOSCRIPT.
		b.must(b.rdb.ScriptLoad(context.Background(), script.Source()).Err())
	}
	return b
}

// faultsAtOnce limits the calls of onFaultLocks that run at the same time: each has seven tests, which measure time.
var faultsAtOnce = make(chan struct{}, 6)

// onFaultLocks runs test for every lock type at the same time, however few processors there are, each on the bench that
// start returns.
func onFaultLocks(t *testing.T, start func(testing.TB) *testredis.Server, test func(b *faultBench, k faultLock)) {
	faultsAtOnce <- struct{}{}
	defer func() { <-faultsAtOnce }()
	var all sync.WaitGroup
	for _, k := range faultLocks {
		waitgroup.Go(&all, func() {
			t.Run(k.name, func(t *testing.T) { test(newFaultBenchOn(t, start(t)), k) })
		})
	}
	all.Wait()
}

// oneRedis is for faults between client and server: all lock types share a server.
func oneRedis(t *testing.T) func(testing.TB) *testredis.Server {
	s := testredis.Start(t)
	return func(testing.TB) *testredis.Server { return s }
}

// ownRedis is for faults of Redis itself: each lock type has a server.
func ownRedis(args ...string) func(testing.TB) *testredis.Server {
	return func(t testing.TB) *testredis.Server { return testredis.Start(t, args...) }
}

// shaky returns a client over the proxy.
func (b *faultBench) shaky(opts ...Option) *Client {
	b.Helper()
	return b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = 600 * time.Millisecond }), opts...)
}

func (b *faultBench) client(opts ...Option) *Client {
	b.Helper()
	return b.clientOn(testredis.Client(b, b.addr), opts...)
}

// clientOn returns a client like that of a bench, with two siblings that know the same server by other names.
func (b *faultBench) clientOn(rdb *redis.Client, opts ...Option) *Client {
	b.Helper()
	opts = append([]Option{WithRedLockNodeTimeout(4 * time.Second)}, opts...)
	_, port, err := net.SplitHostPort(rdb.Options().Addr)
	b.must(err)
	var others []*Client
	for _, host := range []string{"[::ffff:127.0.0.1]", "[::ffff:7f00:1]"} {
		others = append(others, b.bench.clientOn(testredis.Client(b, "", func(o *redis.Options) {
			*o = *rdb.Options()
			o.Addr = host + ":" + port
		}), opts...))
	}
	c := b.bench.clientOn(rdb, opts...) // closed before the others, which have the locks of its RedLocks
	siblings.Store(c, others)
	b.Cleanup(func() { siblings.Delete(c) })
	return c
}

// stays checks that nothing arrives on c for a while.
func stays[T any](b testing.TB, what string, c <-chan T, d time.Duration) {
	b.Helper()
	select {
	case v := <-c:
		require.Fail(b, what, "%v", v)
	case <-time.After(d):
	}
}

// records returns the bench's keys except for token counters, which are never deleted.
func (b *faultBench) records() []string {
	return slices.DeleteFunc(b.keys(), func(key string) bool { return strings.HasPrefix(key, "redisson_lock_token:") })
}

// refuses checks that l soon cannot be acquired, with that answer, and that nothing is left of it.
func (b *faultBench) refuses(l Locker, answer string) {
	b.Helper()
	start := time.Now()
	ok, err := untilAnswered(func() (bool, error) { return l.TryLock(context.Background(), 0, 0) })
	assert.False(b, ok, "TryLock")
	assert.ErrorContains(b, err, answer, "TryLock")
	assert.LessOrEqual(b, time.Since(start), 2*soon, "TryLock")
	assert.NotErrorIs(b, err, redis.Nil, "redis.Nil leaves the package")
	b.mustBe(l.Unlock(context.Background()), ErrNotHeld)
}

// tokenOf returns the fencing token of l, or 0 if it has none.
func (b *faultBench) tokenOf(ctx context.Context, l Locker) int64 {
	b.Helper()
	f, ok := l.(*Lock)
	if !ok || !f.fenced {
		return 0
	}
	token, err := f.Token(ctx)
	b.must(err)
	return token
}

const suiteTests = "TestLock TestFencedLock TestFairLock TestSemaphore TestReadLock TestWriteLock TestMultiLock " +
	"TestRedLock"

// faultRows are the tests of each row. A suite is the set of tests that all lock types pass.
var faultRows = map[int]string{
	1: "TestFaultLostAnswersChangeNothingTwice TestEngineLostAnswersOfAnAcquire",
	2: "TestHungConnectionDelaysByASecond TestHungRequestThatRunsLateIsRolledBack TestFaultLostAnswersChangeNothingTwice",
	3: "TestFaultAttemptRunsAfterItsRollback TestFaultLateReaderAcquiresNothing " +
		"TestFaultPausedRedisEndsValidityAndCalls TestStories/fair_late",
	4: "TestFaultAttemptRunsAfterItsRollback TestEngineRollbackThatOvertakesItsAttempt",
	5: "TestFaultLostAnswersChangeNothingTwice TestUnlockGoesOnInTheBackground TestFaultLateReleaseFreesNoOtherHold " +
		"TestEngineLostAnswersOfARelease",
	6: "TestCallIsSentOnceByGoRedis TestFaultLostAnswersChangeNothingTwice",
	7: "TestFaultFailedRenewalIsRepeated TestFaultBlackHoleEndsValidityInTime " +
		"TestWatchdogEndsValidityWhenNoRenewalIsConfirmed",
	8: "suite",
	9: "TestFaultRequestIsRolledBackWhenCtxIsDone TestFaultMultiLockIsRolledBackWhenCtxIsDone " +
		"TestEngineRollsBackAnAttemptThatWasGivenUp TestGivenUpAcquireIsRolledBackAtOnce",
	10: "suite TestFaultLostRollbackHoldsUpNoWaiter TestFairWaitersThatGiveUpLeaveTheQueue " +
		"TestWriterThatGivesUpLetsReadersIn",
	11: "TestFaultWaiterSurvivesAKilledSubscription TestPubSubWakesEverybodyAfterAReconnect",
	12: "TestFaultWaiterSurvivesASilentSubscription TestFaultBlackHoleEndsValidityInTime TestPubSubNoticesASilentPeer " +
		"TestPollerNoticesAGrantThatNoMessageBrought",
	13: "TestEngineAsksAgainOnceItIsSubscribed TestFaultWaiterPollsWithoutASubscription " +
		"TestFaultTryLockWithoutASubscriptionAsksOnceMore",
	14: "TestSentinelTakeoverKeepsOrReportsEachHold TestClusterHoldsSurviveAFailover TestShardsFollowAFailover",
	15: "TestFaultRestartWithoutDataIsReported TestTokensOnlyGrow",
	16: "TestScriptThatTheServerDoesNotKnowIsSentWithItsSource TestFaultRestartWithoutDataIsReported",
	17: "suite TestEngineLossIsNoticedWithinAThirdOfTheLease",
	18: "TestSentinelTakeoverKeepsOrReportsEachHold TestClusterFailoverThatLosesTheRecordIsReported TestSentinelFailovers",
	19: "TestSyncedReplicas TestExtendThatReplicasDoNotConfirmChangesNothing TestSyncedReplicasFollowTheSlot TestSyncedReplicasWithoutWait TestSentinelFailovers",
	20: "TestSentinelTakeoverKeepsOrReportsEachHold",
	21: "TestFaultRefusedWritesAreReportedOrRetried TestFaultWaiterRidesOutPassingErrorsOnly " +
		"TestSentinelTakeoverKeepsOrReportsEachHold",
	22: "TestFaultWaiterRidesOutLoading TestFaultWaiterRidesOutPassingErrorsOnly",
	23: "TestFaultRefusedWritesAreReportedOrRetried TestFaultWaiterRidesOutPassingErrorsOnly",
	24: "TestFaultWaiterRidesOutABusyScript TestFaultWaiterRidesOutPassingErrorsOnly",
	25: "TestFaultHoldsAreRenewedWithoutMemory TestFaultWaiterRidesOutPassingErrorsOnly TestUnlockNeedsNoMemory",
	26: "TestFaultEvictedRecordIsReported",
	27: "suite TestWhatIsNoLockIsRefusedAndNotTouched TestWhatTakesThePlaceOfARecordIsNotTouched",
	28: "TestFaultRecordWithoutLeaseIsPolled TestEngineWaitsForARecordThatNeverEnds",
	29: "TestFaultScriptThatFailsHalfWayLeavesNothing TestDurationsAreRoundedUpToMilliseconds suite",
	30: "suite",
	31: "suite TestNamesWithBracesAreKept TestClusterKeysOfALockShareASlot",
	32: "TestFaultPausedHolderFindsItsGuardEnded TestEngineGuardLooksAtTheClock TestEngineGuardOfAHoldThatIsBeingLost",
	34: "TestNoWallClock",
	35: "TestFaultServerClockJumpIsReported TestLineStarvesNobodyAfterItsClockWasSetBack " +
		"TestStories TestStories/fair_dead",
	36: "TestFaultTimeOfASlowRequestIsNotValid",
	37: "TestEngineAttemptThatRunsAfterAnOutageIsRolledBack TestFaultPausedRedisEndsValidityAndCalls " +
		"TestFairOrderSurvivesAPauseOfRedis",
	38: "TestFaultWaiterRidesOutAnOutage TestEngineOutages",
	39: "TestFaultExhaustedPoolDelaysNoRenewal TestFaultHoldSurvivesMaxClients",
	40: "TestFaultStarvedProcessKeepsNoLostLock TestEngineGuardLooksAtTheClock TestWatchdogManyLeases",
	41: "TestFaultLateRenewalCreatesNoRecord TestScriptsOfALock",
	42: "suite",
	43: "TestFaultKilledWaiterBlocksForSeconds TestFaultKilledWaitersDelayNobody " +
		"TestFairCrashedWaitersAreEvictedInSeconds " +
		"TestFairDeadHeadOfAFreeLockIsEvicted TestStories/fair_dead",
	44: "TestFaultLostRollbackHoldsUpNoWaiter TestFairWaitersThatGiveUpLeaveTheQueue " +
		"TestFairQueueKeepsItsRulesInEveryOrderOfEvents",
	45: "TestWriterIsNotStarved TestReadersAreNotStarved TestWriterEvictsDeadReaders " +
		"TestUpgradeFailsWhenOnlyItsOwnReadBlocksIt TestDowngradeLetsReadersIn TestFaultKilledHolderBlocksForItsLease",
	46: "TestRedLockNeedsAMajorityOfLiveNodes TestRedLockLateGrantsAreReleased " +
		"TestRedLockRoundLongerThanTheLeaseIsNoAcquire TestMultiLockUnlocksAll " +
		"TestMultiLockStartsOverWhenAnEarlierLockIsLost",
	47: "TestRedLockNodeThatComesBackEmptyIsTakenAgain TestRedLockMajorityThatComesBackEmptyIsALoss",
	48: "TestFaultReleaseCostsTheSameForManyWaiters TestRedLockWaitersDoNotPoll",
	49: "suite TestEngineCloseWakesEverybody TestMultiLockCloseWakesWaitersElsewhere",
	50: "TestFaultClosedRedisClientIsAnError",
	51: "TestClusterSlotHalfWayKeepsHolds TestClusterReaderKeepsItsHoldCountsHalfWay TestClusterHoldsSurviveASlotMove " +
		"TestFaultWaiterRidesOutPassingErrorsOnly",
	52: "TestClusterHoldsSurviveASlotMove TestShardsFollowASlot TestShardsFollowARedirection",
	53: "TestClusterHoldsSurviveAFailover TestClusterFailoverThatLosesTheRecordIsReported",
	54: "TestFaultMissingPermissionsFailAtOnce",
	55: "TestFaultMissingPermissionsFailAtOnce TestPubSubRefusedChannels TestRefusedChannelsAreLoggedOnce",
	56: "TestFaultChangedPasswordIsReported TestFaultWaiterRidesOutPassingErrorsOnly",
	57: "TestFaultLocksOfDifferentKindsExclude TestRWLockAndPlainLockExcludeEachOther " +
		"TestFairLockAndPlainLockExcludeEachOther",
	58: "TestNewRefusesInvalidOptions",
	59: "suite",
	60: "TestFaultKilledHolderBlocksForItsLease TestFaultKilledWaiterBlocksForSeconds",
	61: "TestFaultLostAnswersOfDetachAndAttach",
	62: "TestFaultDetachThatIsNotConfirmedReleases TestFaultLateSplitIsRolledBack",
	63: "TestFaultAttachThatGivesUpPutsTheHoldBack TestFaultAttachAfterOneThatGaveUpIsNotRefused " +
		"TestFaultAttachThatIsOvertakenByItsRollback",
	64: "TestFaultLateRenewalOfADetachedHold TestFaultLateAttemptOfADetachedHold",
	65: "TestFaultAttachIsValidFromBeforeTheRequest",
	66: "TestFaultReadersLeaveWhileOneIsSplitOff",
	67: "TestDetachedHoldExpires TestTicketEndsWhenKeepHasPassed TestExpiredHoldIsNotAttached " +
		"TestDetachedHoldIsReleasedByForce",
	68: "TestForcedReleaseReachesTheHolder TestForcedReleaseReachesTheHolderOfARedLock TestForceSendsHintsToOthers",
	69: "TestForcedReleaseReachesTheHolderAfterAReconnect TestRefusedHintsAreNotAskedForAgain " +
		"TestEngineLossIsNoticedWithinAThirdOfTheLease",
	70: "TestForgedHintsEndNothing TestHintChecksTheLockThatItNames",
	71: "TestFaultLostAnswerOfExtend",
	72: "TestFaultLateExtend TestExtendThatWasGivenUpLeavesNoRecord",
	73: "TestExtendIsValidFromBeforeTheRequest TestExtendLeavesHalfOfTheLease",
	74: "suite TestExtendThatIsAnsweredTooLateIsALoss",
	75: "TestMultiLockExtendNeedsAllLocks TestMultiLockEndsTogetherAfterExtend TestRedLockExtendNeedsAMajority " +
		"TestRedLockEndsAfterAnExtendInVain",
	76: "TestFaultSilentNetworkWithoutAReadTimeout",
}

// cannotBeTried are the rows without a test; the page has the reason.
var cannotBeTried = []int{33}

const faultRowCount = 76

func TestFaultRowsAreCovered(t *testing.T) {
	exists := testFunctions(t)
	page, err := os.ReadFile("docs/reliability.md")
	require.NoError(t, err)
	for n := 1; n <= faultRowCount; n++ {
		line := regexp.MustCompile(fmt.Sprintf(`(?m)^\| %d \|.*$`, n)).FindAllString(string(page), -1)
		if !assert.Len(t, line, 1, "lines of row %d on the page", n) {
			continue
		}
		names := strings.Fields(faultRows[n])
		excused := slices.Contains(cannotBeTried, n)
		assert.Equal(t, len(names) == 0, excused, "row %d has tests %v, and cannot be tried: %v", n, names, excused)
		var said []string
		for _, found := range regexp.MustCompile("`(Test[\\w/]+)`|\\*(suite)\\*").FindAllStringSubmatch(line[0], -1) {
			said = append(said, found[1]+found[2])
		}
		assert.Equal(t, strings.Join(names, " "), strings.Join(said, " "), "row %d: the table, and the page", n)
		for _, name := range names {
			for _, test := range strings.Fields(strings.ReplaceAll(name, "suite", suiteTests)) {
				assert.True(t, exists[test], "row %d: there is no %s", n, test)
			}
		}
	}
	assert.Equal(t, faultRowCount, len(faultRows)+len(cannotBeTried), "rows")
}

// Row 34: no decision about a lock depends on the wall clock of the client.
func TestNoWallClock(t *testing.T) {
	decidesNothing := []string{"inspect.go", "internal/send/errors.go"} // times of Redis; rounding in a text
	wall := regexp.MustCompile(
		`\.(Unix|UnixMilli|UnixMicro|UnixNano|UTC|Local|AddDate|Round|Truncate|Format)\(|time\.(Date|Parse|Unix)\w*\(`,
	)
	for _, file := range libraryFiles(t, "*.go") {
		if strings.HasSuffix(file, "_test.go") || slices.Contains(decidesNothing, file) {
			continue
		}
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.Empty(t, wall.FindAllString(string(source), -1), file)
	}
}
