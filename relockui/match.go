package relockui

// The patterns of Redis, for a name that is already known: SCAN and KEYS can only be asked about all names.

// matches reports whether name matches a pattern, as Redis decides it for SCAN MATCH: * is any bytes, ? is one byte,
// [ab], [a-z] and [^a] are one byte of a class, and \ takes the next byte literally.
func matches(pattern, name string) bool {
	// After a mismatch the last * takes one more byte. An earlier * need not, because the last one can take all that it
	// would, so the time is at most the product of the lengths.
	afterStar, taken := -1, 0
	p, n := 0, 0
	for n < len(name) {
		if p < len(pattern) && pattern[p] == '*' {
			p++
			afterStar, taken = p, n
			continue
		}
		next, ok := matchByte(pattern, p, name[n])
		switch {
		case ok:
			p, n = next, n+1
		case afterStar < 0:
			return false
		default:
			taken++
			p, n = afterStar, taken
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// matchByte reports whether the element of the pattern at p, which is not a *, matches b, and returns where the next
// element begins.
func matchByte(pattern string, p int, b byte) (next int, ok bool) {
	if p == len(pattern) {
		return p, false
	}
	switch c := pattern[p]; {
	case c == '?':
		return p + 1, true
	case c == '[':
		return matchClass(pattern, p+1, b)
	case c == '\\' && p+1 < len(pattern):
		p++
	}
	return p + 1, pattern[p] == b
}

// matchClass is matchByte for the class whose [ is in front of p. A class that is not closed ends with the pattern.
func matchClass(pattern string, p int, b byte) (next int, ok bool) {
	not := p < len(pattern) && pattern[p] == '^'
	if not {
		p++
	}
	for ; p < len(pattern) && pattern[p] != ']'; p++ {
		low, high := pattern[p], pattern[p]
		switch {
		case low == '\\' && p+1 < len(pattern):
			p++
			low, high = pattern[p], pattern[p]
		case p+2 < len(pattern) && pattern[p+1] == '-':
			p += 2
			high = pattern[p]
		}
		ok = ok || min(low, high) <= b && b <= max(low, high)
	}
	return min(p+1, len(pattern)), ok != not
}
