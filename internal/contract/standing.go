package contract

// The standing of a caller: the third number of the reply to an attempt that has found the lock busy.
//
// Rules: standing in internal/lua/line.lua makes the number, and only the methods here take it apart.
// TestStandingIsThatOfTheScripts compares the two.

// A Standing describes how a caller that has found a lock busy notices that it can have the lock.
type Standing int64

const (
	notEnqueued      Standing = 0 // it has no place in the line, and asks from time to time
	enqueued         Standing = 1 // it has a place; positionUnit is added for each place in front of it
	legacyHolder     Standing = 2 // the release is announced to it on the channel of the lock only: see LegacyHolder
	subscriptionLost Standing = 3 // it has no place, because the server does not know its subscription
	positionUnit     Standing = 4 // in the queue of a fair lock, it is added to any of these
)

// IsEnqueued reports whether the caller has a place in the line.
func (s Standing) IsEnqueued() bool { return s%positionUnit == enqueued }

// Ahead returns about how many places are in front of the place of the caller; in the queue of a fair lock, how many of
// the first far (internal/lua/queue.lua).
func (s Standing) Ahead() int { return int(s / positionUnit) }

// LegacyHolder reports whether the caller learns of the release only on the channel of the lock: the holder does not
// use the line, as Redisson; or the line cannot be used.
func (s Standing) LegacyHolder() bool { return s%positionUnit == legacyHolder }

// SubscriptionLost reports whether the server does not know the subscription to grants that the caller believes to
// have.
func (s Standing) SubscriptionLost() bool { return s%positionUnit == subscriptionLost }
