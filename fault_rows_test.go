package relock

// Which test tries which fault. The faults are the rows of docs/reliability.md.
//
// Rules: every row names tests that exist, or the reason why it cannot be tried on
// one machine; the page and this table say the same.

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const suiteTests = "TestLock TestFencedLock TestFairLock TestSemaphore TestReadLock TestWriteLock TestMultiLock TestRedLock"

// faultRows are the tests of each row; a suite is the tests that all lock types pass.
var faultRows = map[int]string{
	1:  "TestFaultLostAnswersChangeNothingTwice TestEngineLostAnswersOfAnAcquire",
	2:  "TestHungConnectionDelaysByASecond TestHungRequestThatRunsLateIsUndone TestFaultLostAnswersChangeNothingTwice",
	3:  "TestFaultAttemptRunsAfterItsUndo TestFaultFrozenRedisEndsTrustAndCalls TestFairLateRequestOfACallerThatHasLeft",
	4:  "TestFaultAttemptRunsAfterItsUndo TestEngineUndoThatOvertakesItsAttempt",
	5:  "TestFaultLostAnswersChangeNothingTwice TestUnlockGoesOnInTheBackground TestFaultLateReleaseFreesNoOtherHold TestEngineLostAnswersOfARelease",
	6:  "TestCallIsSentOnceByGoRedis TestFaultLostAnswersChangeNothingTwice",
	7:  "TestFaultFailedRenewalIsRepeated TestFaultBlackHoleEndsTrustInTime TestWatchdogEndsTrustWhenNoRenewalIsConfirmed",
	8:  "suite",
	9:  "TestFaultRequestIsUndoneWhenCtxEnds TestFaultMultiLockIsUndoneWhenCtxEnds TestEngineUndoesAnAttemptThatWasGivenUp TestGivenUpAcquireIsUndoneAtOnce",
	10: "suite TestFaultLostUndoHoldsUpNoWaiter TestFairWaitersThatGiveUpLeaveTheQueue TestWriterThatGivesUpLetsReadersIn",
	11: "TestFaultWaiterSurvivesAKilledSubscription TestPubSubWakesEverybodyAfterAReconnect",
	12: "TestFaultWaiterSurvivesASilentSubscription TestFaultBlackHoleEndsTrustInTime TestPubSubNoticesASilentPeer TestLookoutNoticesAGrantThatNoMessageBrought",
	13: "TestEngineAsksAgainOnceItIsSubscribed TestFaultWaiterPollsWithoutASubscription",
	14: "TestSentinelTakeoverKeepsOrReportsEachHold TestClusterHoldsSurviveAFailover TestShardsFollowAFailover",
	15: "TestFaultRestartWithoutDataIsReported TestTokensOnlyGrow",
	16: "TestScriptThatTheServerDoesNotKnowIsSentWithItsSource TestFaultRestartWithoutDataIsReported",
	17: "suite TestEngineLossIsNoticedWithinAThirdOfTheLease",
	18: "TestSentinelTakeoverKeepsOrReportsEachHold TestClusterFailoverThatLosesTheRecordIsReported TestSentinelFailovers",
	19: "TestSyncedReplicas TestSyncedReplicasFollowTheSlot TestSyncedReplicasWithoutWait TestSentinelFailovers",
	20: "TestSentinelTakeoverKeepsOrReportsEachHold",
	21: "TestFaultRefusedWritesAreReportedOrRetried TestFaultWaiterRidesOutPassingErrorsOnly TestSentinelTakeoverKeepsOrReportsEachHold",
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
	35: "TestFaultServerClockJumpIsReported TestLineStarvesNobodyAfterItsClockWasSetBack TestReaderIsNotHeldOffByAHeartbeatOfTheFuture TestFairDeadWaiterIsEvictedAfterTheClockWentBack",
	36: "TestFaultTimeOfASlowRequestIsNotTrusted",
	37: "TestFaultFrozenRedisEndsTrustAndCalls TestFairOrderSurvivesAPauseOfRedis",
	38: "TestFaultWaiterRidesOutAnOutage TestEngineOutages",
	39: "TestFaultExhaustedPoolDelaysNoRenewal TestFaultHoldSurvivesMaxClients",
	40: "TestFaultStarvedProcessTrustsNoLostLock TestEngineGuardLooksAtTheClock TestWatchdogManyLeases",
	41: "TestFaultLateRenewalCreatesNoRecord TestScriptsOfALock",
	42: "suite",
	43: "TestFaultKilledWaiterBlocksForSeconds TestFaultKilledWaitersDelayNobody TestFairCrashedWaitersAreEvictedInSeconds " +
		"TestFairDeadHeadOfAFreeLockIsEvicted TestFairWaitersWithoutHeartbeatsAreDead",
	44: "TestFaultLostUndoHoldsUpNoWaiter TestFairWaitersThatGiveUpLeaveTheQueue TestFairQueueKeepsItsRulesInEveryOrderOfEvents",
	45: "TestWriterIsNotStarved TestReadersAreNotStarved TestWriterEvictsDeadReaders TestUpgradeFailsWhenOnlyItsOwnReadIsInTheWay TestDowngradeLetsReadersIn TestFaultKilledHolderBlocksForItsLease",
	46: "TestRedLockNeedsAMajorityOfLiveNodes TestRedLockLateGrantsAreGivenBack TestRedLockRoundLongerThanTheLeaseIsNoAcquire TestMultiLockUnlocksAll TestMultiLockStartsOverWhenAnEarlierLockIsLost",
	47: "TestRedLockNodeThatComesBackEmptyIsTakenAgain TestRedLockMajorityThatComesBackEmptyIsALoss",
	48: "TestFaultReleaseCostsTheSameForManyWaiters TestRedLockWaitersDoNotPoll",
	49: "suite TestEngineCloseWakesEverybody TestMultiLockCloseWakesWaitersElsewhere",
	50: "TestFaultClosedRedisClientIsAnError",
	51: "TestClusterSlotHalfWayKeepsHolds TestClusterReaderKeepsItsLevelsHalfWay TestClusterHoldsSurviveASlotMove TestFaultWaiterRidesOutPassingErrorsOnly",
	52: "TestClusterHoldsSurviveASlotMove TestShardsFollowASlot TestShardsFollowARedirection",
	53: "TestClusterHoldsSurviveAFailover TestClusterFailoverThatLosesTheRecordIsReported",
	54: "TestFaultMissingPermissionsFailAtOnce",
	55: "TestFaultMissingPermissionsFailAtOnce TestPubSubRefusedChannels TestRefusedChannelsAreLoggedOnce",
	56: "TestFaultChangedPasswordIsReported TestFaultWaiterRidesOutPassingErrorsOnly",
	57: "TestFaultLocksOfDifferentKindsExclude TestRWLockAndPlainLockExcludeEachOther TestFairLockAndPlainLockExcludeEachOther",
	58: "TestNewRefusesInvalidOptions",
	59: "suite",
	60: "TestFaultKilledHolderBlocksForItsLease TestFaultKilledWaiterBlocksForSeconds",
}

// cannotBeTried are the rows without a test; the page says why.
var cannotBeTried = []int{33}

const faultRowCount = 60

func TestFaultRowsAreCovered(t *testing.T) {
	exists := map[string]bool{}
	for _, file := range libraryFiles(t, "*_test.go") {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).FindAllSubmatch(source, -1) {
			exists[string(found[1])] = true
		}
	}
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
		for _, found := range regexp.MustCompile("`(Test\\w+)`|\\*(suite)\\*").FindAllStringSubmatch(line[0], -1) {
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

// Row 34: nothing that decides about a lock looks at the wall clock of the client.
func TestNoWallClock(t *testing.T) {
	decidesNothing := []string{"inspect.go", "internal/send/errors.go"} // reads times of Redis; rounds a duration in a text
	wall := regexp.MustCompile(`\.(Unix|UnixMilli|UnixMicro|UnixNano|UTC|Local|AddDate|Round|Truncate|Format)\(|time\.(Date|Parse|Unix)\w*\(`)
	for _, file := range libraryFiles(t, "*.go") {
		if strings.HasSuffix(file, "_test.go") || slices.Contains(decidesNothing, file) {
			continue
		}
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.Empty(t, wall.FindAllString(string(source), -1), file)
	}
}
