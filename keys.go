package relock

// The additional keys, and the channels, of a lock.
//
// Rules: a key is derived from the name of the lock as Redisson derives it, in the hash slot of the name. Keys that
// Redisson has, too, have Redisson's names. Keys that only relock has begin with "relock".

import "strings"

// prefixName derives a key or a channel from a name, as Redisson does.
func prefixName(prefix, name string) string {
	if strings.Contains(name, "{") {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

// suffixName derives a key from a name and a suffix, as Redisson does.
func suffixName(name, suffix string) string {
	if strings.Contains(name, "{") {
		return name + ":" + suffix
	}
	return "{" + name + "}:" + suffix
}

// permitsKey returns the key of the permits that are held.
func permitsKey(name string) string { return suffixName(name, "timeout") }

// tokenKey returns the key of the fencing counter of a lock.
func tokenKey(name string) string { return prefixName("redisson_lock_token", name) }

// lineKey returns the key of the wait queue of a lock. prefixName would derive the same key for the locks "x" and
// "{x}", and an entry in a wait queue does not contain the name of the lock that it is for.
func lineKey(name string) string {
	if strings.Contains(name, "{") {
		return "relock_line:" + name + ":"
	}
	return prefixName("relock_line", name)
}

// labelKey returns the key of the label of a Client.
func labelKey(id string) string { return prefixName("relock_client", id) }

// clientChannel returns the channel on which the Client with this ID is told to check its holds of a lock.
func clientChannel(id string) string { return prefixName("relock_client", id) }

// grantChannel returns the channel on which c is notified of grants of a lock. The releases of the lock are announced
// on the channel announce.
func (c *Client) grantChannel(announce string) string {
	if c == nil {
		return ""
	}
	return announce + ":" + c.ID()
}
