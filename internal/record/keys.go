package record

// The additional keys, and the channels, of a lock.
//
// Rules: a key is derived from the name of the lock as Redisson derives it, in the hash slot of the name. Keys that
// Redisson has, too, have Redisson's names. Keys that only relock has begin with "relock".

import "strings"

// PrefixName derives a key or a channel from a name, as Redisson does.
func PrefixName(prefix, name string) string {
	if strings.Contains(name, "{") {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

// SuffixName derives a key from a name and a suffix, as Redisson does.
func SuffixName(name, suffix string) string {
	if strings.Contains(name, "{") {
		return name + ":" + suffix
	}
	return "{" + name + "}:" + suffix
}

// PermitsKey returns the key of the permits that are held.
func PermitsKey(name string) string { return SuffixName(name, "timeout") }

// TokenKey returns the key of the fencing counter of a lock.
func TokenKey(name string) string { return PrefixName("redisson_lock_token", name) }

// LineKeys returns the keys of the wait queue of a plain lock or a semaphore: the order and the waits.
func LineKeys(name string) []string { return []string{lineKey(name, "order"), lineKey(name, "waits")} }

// WritersLineKeys returns those of the wait queue of a write lock.
func WritersLineKeys(name string) []string {
	return []string{lineKey(name, "writers:order"), lineKey(name, "writers:waits")}
}

// PlacesKey returns the key of the places of the waiters of a fair lock.
func PlacesKey(name string) string { return lineKey(name, "fair") }

// lineKey derives other keys for the locks "x" and "{x}", as PrefixName does not, because an entry in a wait queue does
// not contain the name of the lock that it is for.
func lineKey(name, what string) string {
	if strings.Contains(name, "{") {
		return "relock_line:" + name + "::" + what
	}
	return PrefixName("relock_line", name) + ":" + what
}

// ClientKey returns the key of the label of the Client with this ID, and the channel on which it is told to check its
// holds of a lock.
func ClientKey(id string) string { return PrefixName("relock_client", id) }
