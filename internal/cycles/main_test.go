package main

import (
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The files of a package, of which a.go, b.go and c.go need each other.
var sources = map[string][]byte{
	"a.go": []byte(`package p

type hold struct {
	on, off bool
	b       *other
}

func (h *hold) useLocked() { h.b.count++ }
`),
	"b.go": []byte(`package p

type view struct{ *hold }

func (v view) leaveUnlocking() { v.useLocked() }

type other struct {
	count int
	isSet bool
}

const limit = 3 * unit
`),
	"c.go": []byte(`package p

const unit = 1

var first other

func (hold) last() int { return limit + unit }
`),
	"d.go": []byte(`package p

type user struct{ h hold }

func uses(u user) int { return u.h.last() + total }
`),
	"e.go": []byte(`package p

const total = 0
`),
}

func TestLargestCycleOfAPackage(t *testing.T) {
	p, err := check("p", sources, func(string) (io.ReadCloser, error) { return nil, fmt.Errorf("imports nothing") })
	require.NoError(t, err)
	assert.Equal(t, []string{"a.go", "b.go", "c.go"}, p.largestCycle())
	assert.ElementsMatch(t, []string{"a.go", "c.go", "e.go"}, p.dependencies()["d.go"])
	assert.Equal(t, counts{lines: 35, types: 4, bools: 3, methods: 2, views: 1, locked: 1, unlocking: 1}, p.count("hold"))
}

// A caller relies on the name: what it knew before a call of a function ...Locked holds after it.
func TestFunctionsThatLetTheMutexGoSaySo(t *testing.T) {
	p, err := check("p", map[string][]byte{"a.go": []byte(`package p

func waitUnlocking() {}

func admitUnlocking() { waitUnlocking() }

func enterLocked() { admitUnlocking() }

func leaveLocked() {}
`)}, func(string) (io.ReadCloser, error) { return nil, fmt.Errorf("imports nothing") })
	require.NoError(t, err)
	assert.Equal(t, []string{"enterLocked calls admitUnlocking"}, p.misnamed())
}

func TestCycles(t *testing.T) {
	for _, tt := range []struct {
		name  string
		edges map[string][]string
		want  [][]string
	}{
		{"none", map[string][]string{"a": {"b", "c"}, "b": {"c"}, "c": nil}, [][]string{{"a"}, {"b"}, {"c"}}},
		{"two", map[string][]string{"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}}, [][]string{{"a", "b"}, {"c", "d"}}},
		{
			"one that leads back late",
			map[string][]string{"a": {"b", "d"}, "b": {"c"}, "c": {"b"}, "d": {"e"}, "e": {"a", "c"}},
			[][]string{{"a", "d", "e"}, {"b", "c"}},
		},
	} {
		got := cycles(tt.edges)
		assert.Len(t, got, len(tt.want), tt.name)
		for _, set := range tt.want {
			found := false
			for _, other := range got {
				found = found || assert.ObjectsAreEqual(len(set), len(other)) && assert.ElementsMatch(new(testing.T), set, other)
			}
			assert.True(t, found, "%s: %v is in %v", tt.name, set, got)
		}
	}
}
