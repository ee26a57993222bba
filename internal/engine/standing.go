package engine

// The standing of a caller: the third number of an answer that says that a lock is busy.
//
// Rules: lua/standing.lua makes the number, and nothing but the methods here takes it apart.
// TestStandingIsThatOfTheScripts compares the two.

// A standing says how a caller that has found a lock busy hears that it can have it.
type standing int64

const (
	standsNowhere standing = 0 // it asks from time to time
	standsInLine  standing = 1 // it has a place, and standsBehind more for each place in front of it
	standsApart   standing = 2 // only the channel of the lock says when the holder releases it
	standsDeaf    standing = 3 // the server does not know the subscription that the caller believes to have
	standsBehind  standing = 4
)

// placed reports whether the caller has a place in the line.
func (s standing) placed() bool { return s%standsBehind == standsInLine }

// ahead is how many places are in front of that of the caller, about.
func (s standing) ahead() int { return int(s / standsBehind) }

// Apart reports whether only the channel of the lock says when the holder releases it.
func (s standing) Apart() bool { return s == standsApart }

// Deaf reports whether the server does not know the subscription that the caller believes to have.
func (s standing) Deaf() bool { return s == standsDeaf }
