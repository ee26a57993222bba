package discover

import "github.com/relock-go/relock"

// FencedOrElection is the type of a lock that may be an election, for people.
const FencedOrElection = "fenced lock or election"

// MayBeElection reports whether the lock of i may be an election. An election is a fenced lock, also in Redis.
func MayBeElection(i relock.Inspection) bool { return i.Type == relock.TypeLock && i.Token != 0 }
