package engine

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/contract"
)

// Each token of a block is taken once, in order.
func TestTokenBlockGivesEachTokenOnce(t *testing.T) {
	for _, tt := range []struct {
		name      string
		token     int64
		following int
		want      []int64 // then it is empty
	}{
		{"three follow", 100, 3, []int64{101, 102, 103}},
		{"one follows", 100, 1, []int64{101}},
		{"none follows", 100, 0, nil},
		{"of a lock that is not fenced", 0, 3, nil},
		{"an answer that no script gives", 100, -1, nil},
		{"at the clock of the year 2255", 9_000_000_000_000_000, 2, []int64{9_000_000_000_000_001, 9_000_000_000_000_002}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newTokenBlock(tt.token, tt.following)
			assert.Equal(t, tt.want == nil, b == nil, "an empty block costs nothing")
			var got []int64
			for range tt.want {
				got = append(got, b.take())
			}
			assert.Equal(t, tt.want, got)
			for range 2 {
				assert.Zero(t, b.take(), "a token of an empty block")
			}
		})
	}
}

// A justTraits is a lock that has properties, and nothing else.
type justTraits struct {
	contract.Lock
	traits *contract.Traits
}

func (l justTraits) Traits() *contract.Traits { return l.traits }

// A hold that is handed a record has the next token of its block, unless it wants none, or one that Redis has to draw.
func TestTokenForTheNextHold(t *testing.T) {
	for _, tt := range []struct {
		name  string
		block *tokenBlock
		next  contract.Traits
		token int64
		ok    bool
		left  int
	}{
		{"fenced", newTokenBlock(100, 2), contract.Traits{Fenced: true}, 101, true, 1},
		{"fenced, and there is no block", nil, contract.Traits{Fenced: true}, 0, false, 0},
		{"fenced, and the block is used up", &tokenBlock{103, 0}, contract.Traits{Fenced: true}, 0, false, 0},
		{"not fenced", newTokenBlock(100, 2), contract.Traits{}, 0, true, 2},
		{"draws singly", newTokenBlock(100, 2), contract.Traits{Fenced: true, DrawsSingly: true}, 0, false, 2},
	} {
		r := &record{tokens: tt.block}
		token, ok := r.tokenForLocked(justTraits{traits: &tt.next})
		assert.Equal(t, tt.token, token, tt.name)
		assert.Equal(t, tt.ok, ok, tt.name)
		if tt.block != nil {
			assert.Equal(t, tt.left, tt.block.left, tt.name)
		}
	}
}
