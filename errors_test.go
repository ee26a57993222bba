package relock

import (
	"context"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestErrorsCutLongNames(t *testing.T) {
	for name, want := range map[string]string{
		"x":                           `"x"`,
		"new\nline":                   `"new\nline"`,
		strings.Repeat("x", 64):       `"` + strings.Repeat("x", 64) + `"`,
		strings.Repeat("x", 65):       `"` + strings.Repeat("x", 64) + `"… (65 bytes)`,
		strings.Repeat("x", 63) + "é": `"` + strings.Repeat("x", 63) + `"… (65 bytes)`,
	} {
		assert.Equal(t, want, shortName(name))
	}
}

func TestErrorsNameHoldersAndCutLongNames(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewLock(b.name)
		b.must(l.Lock(ctx))
		err := elsewhere(func() error { return l.Unlock(ctx) })
		want := regexp.MustCompile(`^relock: unlock "` + b.name + `": not held by the caller: goroutine \d+ asked, goroutine \d+ holds it here$`)
		require.Error(t, err)
		assert.Regexp(t, want, err.Error())
		b.must(l.Unlock(ctx))
		secret := strings.Repeat("s", 100) + "secret"
		err = b.client().NewLock(secret).Unlock(ctx)
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "secret")
	})
}

func TestQuorumErrorNamesEachNode(t *testing.T) {
	err := error(&QuorumError{Asked: 3, Granted: 1, Needed: 2, Answers: []error{nil, io.EOF, errTaken}})
	err = failed("lock", "x", err)
	var quorum *QuorumError
	require.ErrorAs(t, err, &quorum)
	assert.Len(t, quorum.Unwrap(), 2)
	assert.ErrorIs(t, err, io.EOF)
	assert.EqualError(t, err, `relock: lock "x": 1 of 3 nodes, 2 needed; node 2: EOF; node 3: another owner holds it`)
}
