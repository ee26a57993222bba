package send

import (
	"io"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// badReplies are answers that no script returns.
var badReplies = []any{
	nil, true, "OK", "1", "1 2", "1 2 x", "1  2 3", "1 2 3.5", "1 2 99999999999999999999", []any{int64(1), int64(2), int64(3)},
}

func TestReplyIsThreeIntegers(t *testing.T) {
	r, err := ParseReply("1 -2 9007199254740993", nil)
	require.NoError(t, err)
	assert.Equal(t, Reply{1, -2, 1<<53 + 1}, r)
	r, err = ParseReply(int64(1<<53+1), nil) // the common case
	require.NoError(t, err)
	assert.Equal(t, Reply{1, 1<<53 + 1, 0}, r)
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = ParseReply("1 30000 0", nil) }))
	for _, bad := range append(badReplies, "", "1 2 3 4") {
		_, err := ParseReply(bad, nil)
		assert.ErrorIs(t, err, ErrReply, "%v", bad)
	}
	_, err = ParseReply(nil, io.EOF)
	assert.Equal(t, io.EOF, err)
}

func TestRepliesAreThreeIntegersForEachLock(t *testing.T) {
	replies, err := ParseReplies("1 2 3 4 5 6", nil)
	require.NoError(t, err)
	assert.Equal(t, []Reply{{1, 2, 3}, {4, 5, 6}}, replies)
	replies, err = ParseReplies("", nil)
	require.NoError(t, err)
	assert.Empty(t, replies)
	for _, bad := range append(badReplies, "1 2 3 4") {
		_, err := ParseReplies(bad, nil)
		assert.ErrorIs(t, err, ErrReply, "%v", bad)
	}
}

// The answer of a forced release has the IDs of clients behind its integers, or none.
func TestForcedAnswerIsThreeIntegersAndTexts(t *testing.T) {
	r, clients, err := ParseForced("1 0 2 a b", nil)
	require.NoError(t, err)
	assert.Equal(t, Reply{1, 0, 2}, r)
	assert.Equal(t, []string{"a", "b"}, clients)
	r, clients, err = ParseForced("1 0 2", nil)
	require.NoError(t, err)
	assert.Equal(t, Reply{1, 0, 2}, r)
	assert.Empty(t, clients)
	for _, bad := range append(badReplies, "") {
		_, _, err := ParseForced(bad, nil)
		assert.ErrorIs(t, err, ErrReply, "%v", bad)
	}
	_, _, err = ParseForced(nil, io.EOF)
	assert.Equal(t, io.EOF, err)
	a := Answer{Value: "x"}
	_, _, err = a.Forced()
	assert.ErrorIs(t, err, ErrReply)
	assert.Equal(t, 1, a.Unknown)
}

func TestRedisNilStaysInside(t *testing.T) {
	_, err := ParseReply(nil, redis.Nil)
	assert.ErrorIs(t, err, ErrReply)
	assert.NotErrorIs(t, err, redis.Nil)
}

// An answer that cannot be read was sent for a call that has run, or by something that is not Redis, so its outcome
// is unknown.
func TestAnswerThatCannotBeReadIsOfUnknownOutcome(t *testing.T) {
	bad := "x"
	a := Answer{Value: bad}
	_, err := a.Reply()
	assert.ErrorIs(t, err, ErrReply)
	assert.Equal(t, 1, a.Unknown)
	_, _ = a.Replies()
	assert.Equal(t, 1, a.Unknown, "counted once")

	a = Answer{Value: bad, Err: io.EOF, Unknown: 3}
	_, err = a.Replies()
	assert.Equal(t, io.EOF, err)
	assert.Equal(t, 3, a.Unknown)

	a = Answer{Value: "1 2 3"}
	r, err := a.Reply()
	require.NoError(t, err)
	assert.Equal(t, Reply{1, 2, 3}, r)
	assert.Zero(t, a.Unknown)
}

// A command has the keys of its call, whether their words were made before or not, and a hook of the user that changes
// the arguments of one command changes no other one.
func TestCommandHasTheKeysOfItsCall(t *testing.T) {
	keys := []string{"lock", "line"}
	c := Call{
		Script: NewScript("return 1"), Keys: keys, Words: Words(keys), Args: []any{"field"},
	}
	plain := c
	plain.Words = nil
	for range 2 {
		for _, whole := range []bool{false, true} {
			for _, one := range []*Call{&c, &plain} {
				args := one.command(t.Context(), whole).Args()
				assert.Equal(t, []any{2, "lock", "line", "field"}, args[2:])
				args[3] = "prefix:lock"
			}
		}
	}
}
