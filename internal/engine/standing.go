package engine

// The standing of a caller: the third number of an answer that says that a lock is busy.
//
// Rules: lua/standing.lua makes the number, and nothing but the methods here takes it apart.
// TestStandingIsThatOfTheScripts compares the two.

// A standing says how a caller that has found a lock busy hears that it can have it.
type standing int64

const (
	notEnqueued      standing = 0 // it asks from time to time
	enqueued         standing = 1 // it has a place, and positionUnit more for each place in front of it
	legacyHolder     standing = 2 // only the channel of the lock says when the holder releases it
	subscriptionLost standing = 3 // the server does not know the subscription that the caller believes to have
	positionUnit     standing = 4
)

// isEnqueued reports whether the caller has a place in the line.
func (s standing) isEnqueued() bool { return s%positionUnit == enqueued }

// ahead is how many places are in front of that of the caller, about.
func (s standing) ahead() int { return int(s / positionUnit) }

// LegacyHolder reports whether only the channel of the lock says when the holder releases it.
func (s standing) LegacyHolder() bool { return s == legacyHolder }

// SubscriptionLost reports whether the server does not know the subscription that the caller believes to have.
func (s standing) SubscriptionLost() bool { return s == subscriptionLost }
