package engine

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/wake"
)

// The scripts recognize a field of relock, as newField writes it.
func TestScriptsKnowAFieldOfRelock(t *testing.T) {
	rdb := testredis.Start(t).Client()
	id := "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10"
	e := New(Config{ID: id, Servers: noServers{}}, send.Config{})
	defer func() { require.NoError(t, e.Close()) }()
	const writeSuffix = ":write"
	field := e.fields.newField(-7, 1)
	source := prelude(t, "record") + "return is_relocks(ARGV[1]) and 1 or 0"
	for field, is := range map[string]bool{
		field:                                true,
		field + writeSuffix:                  true,
		id + ":7:12":                         true,
		id + ":7":                            false,
		id + ":7:1x" + writeSuffix:           false,
		"0123456789abcdef0123456789abcdef:1": false,
	} {
		n, err := rdb.Eval(context.Background(), source, nil, field).Int()
		require.NoError(t, err)
		assert.Equal(t, is, n == 1, field)
	}
}

// noServers is for an engine that sends nothing.
type noServers struct{ wake.Router }

func (noServers) Counts() bool { return true }

// prelude returns the text of a file of internal/lua/.
func prelude(t *testing.T, name string) string {
	text, err := os.ReadFile("../lua/" + name + ".lua")
	require.NoError(t, err)
	return string(text)
}
