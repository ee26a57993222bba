package contract

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/send"
)

// Redis is asked for several tokens by the attempt that takes over a record alone.
func TestTokensWanted(t *testing.T) {
	for _, tt := range []struct {
		name    string
		fenced  bool
		attempt Attempt
		want    int
	}{
		{"fresh", true, Attempt{HoldCount: 1}, 1},
		{"takes over", true, Attempt{HoldCount: 1, AdoptsRecord: true}, BlockSize},
		{"not fenced", false, Attempt{HoldCount: 1}, 1},
		{"takes over, not fenced", false, Attempt{HoldCount: 1, AdoptsRecord: true}, 1},
	} {
		assert.Equal(t, tt.want, tt.attempt.TokensWanted(tt.fenced), tt.name)
	}
}

func TestGrantSaysHowManyTokensFollow(t *testing.T) {
	for _, tt := range []struct {
		reply     send.Reply
		token     int64
		following int
	}{
		{send.Reply{1, 0, 0}, 0, 0},
		{send.Reply{1, 7, 0}, 7, 0},
		{send.Reply{1, 7, 255}, 7, 255},
	} {
		o, err := ParseOutcome(tt.reply)
		assert.NoError(t, err, "%v", tt.reply)
		assert.Equal(t, Outcome{Status: Held, Token: tt.token, Following: tt.following}, o, "%v", tt.reply)
	}
}
