//go:build go1.25

package engine

// Fuzz tests of input from outside: the answers of Redis to attempts. The seeds run with the other tests. To fuzz:
//
//	go test -run '^$' -fuzz '^FuzzBundleAnswers$' -fuzztime 1m .
//
// Rules: a target asserts rules that hold for every input, and does not repeat the code that it tests. It makes its
// operations and values from bytes, so that the fuzzer can make any of them.

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

// A fakeUpgrade is a lock that refuses an attempt for good if the reply is -2.
type fakeUpgrade struct{ *fakeLock }

var errFakeUpgrade = errors.New("an upgrade")

func (l *fakeUpgrade) ReadReply(a contract.Attempt, r send.Reply) (contract.Outcome, error) {
	if r[0] == -2 {
		return contract.Outcome{}, errFakeUpgrade
	}
	return l.fakeLock.ReadReply(a, r)
}

// S5: an attempt on several locks holds them only if the answer grants each of them.
func FuzzBundleAnswers(f *testing.F) {
	f.Add(byte(2), []byte{1, 1})
	f.Add(byte(2), []byte{1, 0})
	f.Add(byte(3), []byte{0, 1, 1})
	f.Add(byte(1), []byte{0, 1})
	f.Add(byte(2), []byte{1})
	f.Add(byte(2), []byte{1, 1, 1})
	f.Add(byte(1), []byte{})
	f.Add(byte(2), []byte{255, 2, 254})
	f.Fuzz(func(t *testing.T, n byte, answers []byte) {
		var targets []target
		for i := range 1 + n%8 {
			lock := newFakeLock(nil, fmt.Sprint("lock", i))
			h := &hold{claim: claim{lock: lock}}
			if i%3 == 2 {
				h.lock = &fakeUpgrade{lock}
			}
			targets = append(targets, target{hold: h, Attempt: contract.Attempt{Field: "f", HoldCount: 1}})
		}
		replies := make([]send.Reply, len(answers))
		all := len(answers) == len(targets)
		for i, a := range answers {
			replies[i] = send.Reply{int64(int8(a)), int64(i) + 100, int64(i)}
			all = all && a == 1
		}
		var got Answer
		err := got.readAll(targets, replies)
		held := err == nil && got.Status == contract.Held
		require.Equal(t, all, held, "%v for %d locks: %+v, %v", replies, len(targets), got, err)
		if all {
			require.Len(t, got.tokens, len(targets), "tokens")
			assert.EqualValues(t, 100, got.tokens[0], "tokens")
		} else if err == nil {
			assert.Equal(t, len(answers)-1, got.at, "%v: the lock in the way", replies)
		}
		checkText(t, err)
	})
}

// checkText asserts that the text of err fits into one line of a log.
func checkText(t *testing.T, err error) {
	t.Helper()
	s := fmt.Sprint(err)
	assert.LessOrEqual(t, len(s), 1100, "bytes of %.1200q", s)
	assert.False(t, strings.ContainsAny(s, "\r\n\x00"), "%.700q", s)
}
