package mistakes

// Mistakes in the Go code.

// Code has mistakes that break a promise of the library. Each changes a text that occurs once in its file.
var Code = []Mistake{
	{
		Name: "trustFromTheAnswer", File: "internal/engine/target.go",
		Omits:   "A hold is valid from when its request was sent.",
		Changes: []Change{{"h, sent := t.hold, res.Sent", "h, sent := t.hold, time.Now()"}},
	},
	{
		Name: "renewalFromTheAnswer", File: "internal/lease/watchdog.go",
		Omits:   "A renewed hold is valid from when the renewal was sent.",
		Changes: []Change{{"w.confirmLocked(l, sent, cmp.Or(answers", "w.confirmLocked(l, w.Now(), cmp.Or(answers"}},
	},
	{
		Name: "grantFromTheMessage", File: "internal/engine/single.go",
		Omits: "A grant is valid from when the request that it grants was sent.",
		Changes: []Change{{
			"Status: contract.Held, Token: g.Token}, Sent: sent}",
			"Status: contract.Held, Token: g.Token}, Sent: time.Now()}",
		}},
	},
	{
		Name: "grantFromTheLastRequest", File: "internal/engine/single.go",
		Omits:   "A grant is valid from the request that it names, and not from another one.",
		Changes: []Change{{"sent := r.place.sentAt(g.Asked)", "sent := r.place.asked[0].sent"}},
	},
	{
		Name: "numbersRepeat", File: "internal/engine/line.go",
		Omits:   "The requests of a wait have numbers that nobody can guess.",
		Changes: []Change{{"placeRequest{rand.Uint64(), now}", "placeRequest{min(rand.Uint64(), 1), now}"}},
	},
	{
		Name: "wholeLeaseOfAGrant", File: "internal/engine/single.go",
		Omits:   "A grant has the short lease that its message names until it is confirmed.",
		Changes: []Change{{"res.provisional = g.Lease", "res.provisional = 0"}},
	},
	{
		Name: "anyGrant", File: "internal/engine/single.go",
		Omits:   "A grant that is too short for its caller is confirmed first.",
		Changes: []Change{{"g.Lease < t.Lease && !t.Renewed:", "false:"}},
	},
	{
		Name: "errorConfirms", File: "internal/lease/watchdog.go",
		Omits: "A renewal that has failed does not prolong a hold.",
		Changes: []Change{{
			`l.failed = answers[i].Err
			w.retryLocked(l)`,
			`w.confirmLocked(l, sent, l.length, true)
			heap.Fix(&w.leases, l.index)`,
		}},
	},
	{
		Name: "extendUnanswered", File: "internal/engine/extend.go",
		Omits: "An Extend without an answer fails.",
		Changes: []Change{{
			"if again == nil {\n\t\t\tagain = noteExtended(h, sent, length)",
			"if again = lossOf(h); again == nil {\n\t\t\tagain = noteExtended(h, sent, length)",
		}},
	},
	{
		Name: "goneConfirms", File: "internal/lease/watchdog.go",
		Omits:   "A renewal that finds no hold does not prolong it.",
		Changes: []Change{{"case !answers[i].Held:", "case !answers[i].Held && l.length < 0:"}},
	},
	{
		Name: "goneIsTriedAgain", File: "internal/lease/watchdog.go",
		Omits: "A renewal that finds no hold ends it.",
		Changes: []Change{{
			`w.removeLocked(l)
			gone = append(gone, l.Holder)`,
			"w.retryLocked(l)",
		}},
	},
	{
		Name: "renewedTooLate", File: "internal/lease/watchdog.go",
		Omits:   "A lease is renewed after a third of it.",
		Changes: []Change{{"l.renewAt = sent + length/3", "l.renewAt = sent + length"}},
	},
	{
		Name: "renewedOnce", File: "internal/lease/watchdog.go",
		Omits:   "A renewal that has failed is tried again.",
		Changes: []Change{{"l.renewAt = min(l.retryAt, now+renewTime)", "l.renewAt, l.retryAt = until, until"}},
	},
	{
		Name: "endUntold", File: "internal/lease/watchdog.go",
		Omits:   "A holder is told when its lease has ended.",
		Changes: []Change{{"l.Holder.LeaseEnded(cause)", "_ = cause"}},
	},
	{
		Name: "guardGoesOn", File: "internal/guard/guard.go",
		Omits:   "The context of a guard ends with its hold.",
		Changes: []Change{{"e.cancel(cause)", "_ = cause"}},
	},
	{
		Name: "lossUntold", File: "internal/engine/loss.go",
		Omits:   "The guards of a hold that was lost are told.",
		Changes: []Change{{"e.guards.EndAll(h.withName(e.loss))", "_ = e"}},
	},
	{
		Name: "lossIsNoError", File: "internal/engine/release.go",
		Omits: "The release of a hold that was lost returns an error.",
		Changes: []Change{{
			`case r.loss != nil: // the record may still have been there
		return nil, 0, r.loss`,
			`case r.loss != nil: // the record may still have been there
		return nil, 0, nil`,
		}},
	},
	{
		Name: "maxHoldForgotten", File: "internal/engine/target.go",
		Omits:   "A hold ends after the longest time that its lock allows.",
		Changes: []Change{{"h.record.lease.SetLimit(", "_ = int64("}},
	},
	{
		Name: "atLeastForgotten", File: "internal/engine/transitions.go",
		Omits: "A hold lasts as long as its lock asks for at least.",
		Changes: []Change{{
			"if limits := h.lock.Traits().Limits; limits.MinHold > 0 {",
			"if limits := h.lock.Traits().Limits; limits.MinHold < 0 {",
		}},
	},
	{
		Name: "handedOffAndReleased", File: "internal/engine/release.go",
		Omits: "A hold that was handed off is not released in Redis.",
		Changes: []Change{{
			"if r.lowered, r.done = true, h.handOffLocked(); r.done {",
			"if r.lowered = true; h.handOffLocked() {",
		}},
	},
	{
		Name: "sharedAndReleased", File: "internal/engine/release.go",
		Omits:   "The record of readers of one process is released by the last one.",
		Changes: []Change{{"last = !held || h.leaveRecordLocked()", "last = !held || h.leaveRecordLocked() || true"}},
	},
	{
		Name: "reentryUncounted", File: "internal/engine/target.go",
		Omits: "A re-entry counts.",
		Changes: []Change{{
			`h.Reentered()
`,
			"",
		}},
	},
	{
		Name: "releasedOnce", File: "internal/engine/release.go",
		Omits:   "A release that was not answered is sent again.",
		Changes: []Change{{"clears = err != nil || keeps && !expires", "clears = err == nil && keeps && !expires"}},
	},
	{
		Name: "cancelUndoesNothing", File: "internal/engine/acquire.go",
		Omits: "A call that gives up rolls back what it may have acquired.",
		Changes: []Change{{
			"a.engine.undo(a.Ctx, a.target.hold.commands(), a.target.Attempt, nil) // 5",
			"_ = a",
		}},
	},
	{
		Name: "nothingIsUndone", File: "internal/engine/rollback.go",
		Omits:   "A rollback is sent.",
		Changes: []Change{{"{0, 20 * time.Millisecond, 200 * time.Millisecond, time.Second}", "{}"}},
	},
	{
		Name: "undoneOnce", File: "internal/engine/rollback.go",
		Omits:   "A rollback is sent again while it is not answered.",
		Changes: []Change{{"{0, 20 * time.Millisecond, 200 * time.Millisecond, time.Second}", "{0}"}},
	},
	{
		Name: "lateAnswerIsKept", File: "internal/engine/orphans.go",
		Omits:   "A late answer to a call that has left is rolled back.",
		Changes: []Change{{"a.engine.undo(a.Ctx, t.hold.commands(), t.Attempt, nil) // 5", "_ = t"}},
	},
	{
		Name: "lateGrantIsKept", File: "internal/engine/rollback.go",
		Omits: "A late grant to a call that has left is rolled back.",
		Changes: []Change{{
			"e.undo(context.Background(), kind, attempt, nil)",
			"_ = attempt",
		}},
	},
	{
		Name: "noTombstoneAsked", File: "internal/engine/rollback.go",
		Omits:   "A rollback of a request that may still run leaves a tombstone.",
		Changes: []Change{{"a.Late, a.Share = mayRun && a.HoldCount == 1, e.shareTime()", "a.Share = e.shareTime()"}},
	},
	{
		Name: "tryUndoesNothing", File: "internal/engine/acquire.go",
		Omits:   "A try without an answer is rolled back.",
		Changes: []Change{{"answer.Unknown > 0 || ", ""}},
	},
	{
		Name: "sleepsForEver", File: "internal/engine/acquire.go",
		Omits:   "A waiter polls.",
		Changes: []Change{{"delay = e.PollDelay(res.Wait)", "delay = time.Hour"}},
	},
	{
		Name: "wakeUpDropped", File: "internal/wake/hub.go",
		Omits: "A message wakes its waiter.",
		Changes: []Change{{
			`l.last, l.causes.Message = message, true
			l.wakeUp()`,
			"l.last, l.causes.Message = message, true",
		}},
	},
	{
		Name: "subscribedUnnoticed", File: "internal/engine/subscription.go",
		Omits:   "A waiter asks again once it is subscribed.",
		Changes: []Change{{"if len(s.unconfirmed) > 0 {", "if len(s.unconfirmed) > 1000 {"}},
	},
	{
		Name: "notWokenAfterReconnect", File: "internal/wake/channel.go",
		Omits:   "A waiter asks again after its connection was made anew.",
		Changes: []Change{{"	case !first:\n		ch.wakeLocked()\n", ""}},
	},
	{
		Name: "oldSubscription", File: "internal/wake/channel.go",
		Omits:   "A subscription of a former connection does not count.",
		Changes: []Change{{"ch != nil && ch.state == confirmed", "ch != nil && ch.answer == confirmed"}},
	},
	{
		Name: "javaUnheard", File: "internal/engine/acquire.go",
		Omits: "A waiter hears the channel of a holder that has no line.",
		Changes: []Change{{
			"a.subscription.watch(in, res.Standing.LegacyHolder() || res.Standing.SubscriptionLost())",
			"a.subscription.watch(in, false)",
		}},
	},
	{
		Name: "nobodyLooks", File: "internal/poller/poller.go",
		Omits:   "The poller wakes those who wait for a free lock.",
		Changes: []Change{{"p.wake(free...)", "_ = free"}},
	},
	{
		Name: "headLooks", File: "internal/poller/poller.go",
		Omits:   "More places than the first one look at the lock.",
		Changes: []Change{{"return rand.IntN(w.Ahead/NearHead+1) == 0", "return w.Ahead == 0"}},
	},
	{
		Name: "lookoutEndsForGood", File: "internal/poller/poller.go",
		Omits: "The poller runs again when somebody waits again.",
		Changes: []Change{{
			`p.running = len(p.locks) > 0
	return !p.running`,
			"return len(p.locks) == 0",
		}},
	},
	{
		Name: "leaverStaysQueued", File: "internal/engine/admit.go",
		Omits: "A caller that gives up leaves the queue of its process.",
		Changes: []Change{{
			`}
		q.Leave(w)
	}`,
			"}\n}",
		}},
	},
	{
		Name: "handedOffAndStuck", File: "internal/engine/handoff.go",
		Omits: "The next caller of the process runs after a hand-off.",
		Changes: []Change{{
			`q.Release()
	return true`,
			"return true",
		}},
	},
	{
		Name: "tokenGivenTwice", File: "internal/engine/tokens.go",
		Omits:   "A token of a block is given once.",
		Changes: []Change{{"b.next++", "_ = b.next"}},
	},
	{
		Name: "restOfABlockKept", File: "internal/engine/tokens.go",
		Omits: "The rest of a block of tokens is forgotten with its hold.",
		Changes: []Change{{
			"func (b *tokenBlock) take() (token int64) {",
			`var kept tokenBlock

func (b *tokenBlock) take() (token int64) {
	if kept.left == 0 {
		kept, *b = *b, kept
	}
	b = &kept`,
		}},
	},
	{
		Name: "handedOffForever", File: "internal/handoff/policy.go",
		Omits:   "A process hands a lock off to itself for a hand-off window only.",
		Changes: []Change{{"return now-p.since < pace.Window", "return pace.Window > 0"}},
	},
	{
		Name: "sharedForEver", File: "internal/engine/sharing.go",
		Omits: "Readers join the record of their process for a hand-off window only.",
		Changes: []Change{{
			"return now-r.answeredAt < r.first.lockState.engine.pace().Window && r.isKeptLocked(now)",
			"return r.isKeptLocked(now)",
		}},
	},
	{
		Name: "placeForgotten", File: "internal/engine/single.go",
		Omits: "The next caller of the process takes over the place in the line.",
		Changes: []Change{{
			`q.place = r.place
`,
			"",
		}},
	},
	{
		Name: "multiKeepsSome", File: "multilock.go",
		Omits:   "A MultiLock that has not got all of its locks gives back those that it has.",
		Changes: []Change{{"e := g.giveBack(g.parts)", "e := g.giveBack(g.parts[1:])"}},
	},
	{
		Name: "halfIsAMajority", File: "redlock.go",
		Omits:   "A RedLock needs more than half of its servers.",
		Changes: []Change{{"needed: len(locks)/2 + 1,", "needed: len(locks) / 2,"}},
	},
	{
		Name: "liveTicket", File: "detach.go",
		Omits:   "A ticket is that of a detached hold.",
		Changes: []Change{{"case !detached || uuid.Validate(", "case detached && uuid.Validate("}},
	},
	{
		Name: "noPutBack", File: "internal/engine/attach.go",
		Omits:   "An Attach that gives up puts the hold back.",
		Changes: []Change{{"rollback(error) { a.giveUp() }", "rollback(error) {}"}},
	},
	{
		Name: "detachedGoesOn", File: "internal/engine/detach.go",
		Omits:   "The guards of a hold end when it is detached.",
		Changes: []Change{{"guards.EndAll(h.withName(ErrDetached))", "_ = guards"}},
	},
	{
		Name: "tokenStaysBehind", File: "internal/engine/attach.go",
		Omits:   "A hold keeps its token when it moves.",
		Changes: []Change{{"Token: a.Token}", "Token: a.Token - 1}"}},
	},
	{
		Name: "maxHoldBeginsAgain", File: "internal/engine/detach.go",
		Omits:   "The longest time of a hold goes on when it moves.",
		Changes: []Change{{"d.MaxEnd = now + int64(", "_ = now + int64("}},
	},
	{
		Name: "attachedFromTheAnswer", File: "internal/engine/attach.go",
		Omits:   "An attached hold is valid from when its request was sent.",
		Changes: []Change{{"Token: a.Token}, Sent: answer.Sent}", "Token: a.Token}, Sent: time.Now()}"}},
	},
	{
		Name: "joinsPastTheQueue", File: "internal/engine/single.go",
		Omits: "A caller that does not stand in the queue of its process takes no place in the line.",
		Changes: []Change{{
			"case r.isBeside(): // the place in the line",
			"case r.isBeside() && t.HoldCount > 1: // the place in the line",
		}},
	},
	{
		Name: "hardlyAnyValidity", File: "internal/engine/acquire.go",
		Omits: "A hold that is hardly valid any more is asked for again.",
		Changes: []Change{{
			"a.engine.enoughValidityLeft(&a.target, took, asked) {",
			"a.engine.enoughValidityLeft(&a.target, took, asked) || asked > 0 {",
		}},
	},
	{
		Name: "shortTryIsSlow", File: "internal/send/wait.go",
		Omits:   "A short try waits for a moment at most.",
		Changes: []Change{{"least := now.Add(MinWait)", "least := now.Add(ConnectTime)"}},
	},
	{
		Name: "farBatchesWait", File: "internal/send/batch.go",
		Omits:   "While all batches take long, another one goes out.",
		Changes: []Change{{"time.Since(b.taken) > batchWait {", "time.Since(b.taken) > LongTime {"}},
	},
	{
		Name: "lateBatchIsLost", File: "internal/send/batch.go",
		Omits:   "The answer of a batch that takes long reaches the callers that it has left.",
		Changes: []Change{{"\tc.left = t\n", "\t_ = t\n"}},
	},
}
