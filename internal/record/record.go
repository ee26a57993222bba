// Package record has the lock types as data: the names of their keys and channels, the calls of their scripts, how the
// replies read, and the limits and times that the scripts know, too.
//
// Rules: nothing in this package changes once it is made, or sends a request.
package record

import "time"

const (
	// LongestName is the longest name of a lock in bytes, with the prefix of the Client.
	LongestName = 1 << 20

	// MostHoldCount is how often an owner may have the read lock: as most_hold_count in internal/lua/record.lua.
	// Redisson's record has a key for each level of a reader, and a script that has to know whether a reader lives looks
	// at each of them.
	MostHoldCount = 10_000

	// MostAtOnce is how many permits of a semaphore a hold may have: as most_of_hold in internal/lua/semaphore.lua.
	MostAtOnce = 1000

	// MostShown and MostWaiters are how many holders and waiters an Inspection has at most: most_shown and
	// most_listed in internal/lua/any_inspect.lua.
	MostShown   = 10_000
	MostWaiters = 1_000

	// WriteSuffix ends the field of a write hold in the record and in the wait queue in Redis.
	WriteSuffix = ":write"
)

const (
	// FairHeartbeat is how often a waiter of a fair lock asks, and FairLife is after what time without a request its
	// place is overdue. Far behind, both are longer: see life_of in internal/lua/queue.lua, which has these times, too.
	FairHeartbeat = time.Second
	FairLife      = 4 * FairHeartbeat

	// WriterHeartbeat is how often a waiting writer makes an attempt, which is a heartbeat. Each heartbeat keeps readers
	// out for WriterLife: see internal/lua/readers.lua.
	WriterHeartbeat = time.Second
	WriterLife      = 3 * WriterHeartbeat
)
