package send

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The name of a key is not part of the answer from Redis: nothing in it can make the error transient.
func TestNotALockNamesTheKeyAndIsFinal(t *testing.T) {
	c := Call{Keys: []string{"a: BUSY b: MOVED c", "redisson_lock_token:{a}"}}
	for answer, want := range map[string]string{
		`NOTALOCK 1 field 9 x:\x20BUSY\x20y`: `the key "a: BUSY b: MOVED c" holds a hash that is not a lock ` +
			`(field "x: BUSY y")`,
		`NOTALOCK 1 field 5000 xx`: `holds a hash that is not a lock (field "xx"… (5000 bytes))`,
		`NOTALOCK 1 type list`: `the key "a: BUSY b: MOVED c" holds a list that does not belong to a lock of this type; ` +
			`it was left unchanged: use a name that no other data has, such as "lock:a: BUSY b: MOVED c"`,
		`NOTALOCK 1 type ?`:    `holds data that is not a lock`,
		`NOTALOCK 0 type list`: `one of the keys of the lock holds a list that does not belong to a lock of this type`,
		`NOTALOCK 2 number`: `the key "redisson_lock_token:{a}" holds a token counter that is not a number; ` +
			`it was left unchanged: use a name that no other data has`,
	} {
		err := orNotALock(c, refusal(answer))
		require.ErrorIs(t, err, ErrNotALock, answer)
		assert.ErrorContains(t, err, want, answer)
		assert.ErrorIs(t, err, refusal(answer), answer)
		assert.True(t, Answered(err), answer)
		assert.False(t, Transient(err), answer)
		assert.False(t, MayHaveRun(err), answer)
	}
	assert.NotContains(t, NotALock("relock_x", "holds data", nil).Error(), "such as", "no name of a lock helps there")
}

func TestNotALockOfAStrangeFormIsUnexpected(t *testing.T) {
	for _, strange := range []string{"NOTALOCK", "NOTALOCK x type list", "NOTALOCK 2 type list", "NOTALOCK -1 number",
		"NOTALOCK 1"} {
		assert.ErrorIs(t, orNotALock(Call{Keys: []string{"a"}}, refusal(strange)), ErrReply, strange)
	}
	assert.NoError(t, orNotALock(Call{}, nil))
	assert.Equal(t, refusal("BUSY x"), orNotALock(Call{}, refusal("BUSY x")))
}

// Redis refuses a long request without a password with an error about the protocol.
func TestForgottenPasswordIsNamed(t *testing.T) {
	for _, text := range []string{
		"ERR Protocol error: unauthenticated multibulk length", "ERR Protocol error: unauthenticated bulk length",
	} {
		answer := refusal(text)
		err := explained(Call{}, answer)
		assert.ErrorIs(t, err, answer)
		assert.ErrorContains(t, err, text)
		assert.ErrorContains(t, err, "NOAUTH: Redis requires a password")
		assert.True(t, Answered(err) && !Transient(err) && !MayHaveRun(err), "Redis has refused the call")
	}
	for _, other := range []error{nil, refusal("NOAUTH Authentication required."),
		refusal("ERR Protocol error: invalid bulk length")} {
		assert.Equal(t, other, explained(Call{}, other))
	}
}
