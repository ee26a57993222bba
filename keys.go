package relock

// The keys and channels beside the record of a lock.
//
// Rules: a key is derived from the name of the lock as Redisson derives it, in the hash slot of the name. Keys that
// Redisson has too have its names, and those of relock alone begin with "relock".

import "strings"

// prefixName is Redisson's way to derive a key or a channel from a name.
func prefixName(prefix, name string) string {
	if strings.Contains(name, "{") {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

// suffixName is Redisson's way to derive a key from a name and a suffix.
func suffixName(name, suffix string) string {
	if strings.Contains(name, "{") {
		return name + ":" + suffix
	}
	return "{" + name + "}:" + suffix
}

// permitsKey is the key of the permits that are taken.
func permitsKey(name string) string { return suffixName(name, "timeout") }

// tokenKey is the key of the fencing counter of a lock.
func tokenKey(name string) string { return prefixName("redisson_lock_token", name) }

// lineKey is the key of the line of a lock. prefixName would give {x} the key of x. These are two locks, and a place in
// a line does not say of which lock it is.
func lineKey(name string) string {
	if strings.Contains(name, "{") {
		return "relock_line:" + name + ":"
	}
	return prefixName("relock_line", name)
}

// labelKey is the key of the label of a Client.
func labelKey(id string) string { return prefixName("relock_client", id) }

// grantChannel is the channel on which c is told that it was granted a lock whose releases are announced on announce.
func (c *Client) grantChannel(announce string) string {
	if c == nil {
		return ""
	}
	return announce + ":" + c.ID()
}
