package relockui

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

// Redis is asked about patterns of the bytes that have a meaning, and of a few others.
func TestMatchDecidesAsRedisDoes(t *testing.T) {
	ctx, rdb := context.Background(), testredis.Start(t).Client()
	random := rand.New(rand.NewPCG(1, 2))
	text := func(bytes string, most int) string {
		b := make([]byte, 1+random.IntN(most))
		for i := range b {
			b[i] = bytes[random.IntN(len(bytes))]
		}
		return string(b)
	}
	var names []string
	for range 300 {
		name := text("abcd:/]^-\\\n\xe9", 5)
		names = append(names, name)
		require.NoError(t, rdb.Set(ctx, name, "", 0).Err())
	}
	slices.Sort(names)
	names = slices.Compact(names)
	patterns := []string{"*", "**", "a*", "*a", "lock:*", "[a", "[", "[]", "[^]*", "[^", "\\", "a\\", "[\\", "[a-", "[a-]"}
	for range 3000 {
		patterns = append(patterns, text("aabcd::**??[[]]^-\\\n", 8))
	}
	for _, pattern := range patterns {
		want, err := rdb.Keys(ctx, pattern).Result()
		require.NoError(t, err)
		slices.Sort(want)
		var got []string
		for _, name := range names {
			if matches(pattern, name) {
				got = append(got, name)
			}
		}
		assert.ElementsMatch(t, want, got, "%q", pattern)
	}
}

func TestMatchIsFastForAnyPattern(t *testing.T) {
	assert.False(t, matches(strings.Repeat("*a", 1000)+"b", strings.Repeat("a", 4096)))
}
