package relock

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

// The scripts read the mark of a Client that uses the line as it is written.
func TestMarkOfAFieldIsThatOfTheScripts(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	c := b.client()
	field := c.engine.newField(-7)
	require.True(t, usesLine(field), field)
	source := library.Source("record") + "return uses_line(ARGV[1]) and 1 or 0"
	for field, uses := range map[string]bool{
		field:                                true,
		field + writeSuffix:                  true,
		c.engine.id + ":7:012":               true,
		c.engine.id + ":7:12":                false,
		c.engine.id + ":7":                   false,
		c.engine.id + ":7:0":                 false, // there is no such number
		c.engine.id + ":7:0x" + writeSuffix:  false,
		"0123456789abcdef0123456789abcdef:1": false,
	} {
		n, err := b.rdb.Eval(context.Background(), source, nil, field).Int()
		require.NoError(t, err)
		assert.Equal(t, uses, n == 1, field)
	}
}
