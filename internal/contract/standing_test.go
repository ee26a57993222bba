package contract

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

// The scripts make the numbers that the methods of standing take apart.
func TestStandingIsThatOfTheScripts(t *testing.T) {
	rdb := testredis.Start(t).Client()
	prelude, err := os.ReadFile("../lua/line.lua")
	require.NoError(t, err)
	_, source, _ := strings.Cut(string(prelude), "\nlocal function standing(")
	source, _, _ = strings.Cut(source, "\nend\n")
	source = "local near_head = 32 local function standing(" + source + `
		end
		for n = 0, 1000 do redis.call('zadd', 'order', n, n) end
		local line = {order = 'order', mine = {client = ARGV[1]}}
		return standing(line, ARGV[1] ~= '', ARGV[3] == '1', ARGV[2] == '1')`
	made := func(ahead any, apart, lost bool) Standing {
		n, err := rdb.Eval(context.Background(), source, nil, ahead, apart, lost).Int64()
		require.NoError(t, err)
		return Standing(n)
	}
	for _, ahead := range []int{0, 1, 2, 3, 4, 1000} {
		s, apart := made(ahead, false, false), made(ahead, true, false)
		assert.True(t, s.IsEnqueued() && !s.LegacyHolder() && !s.SubscriptionLost(), ahead)
		assert.Equal(t, ahead, s.Ahead())
		assert.Equal(t, ahead == 0, apart.LegacyHolder(), ahead)
		assert.Equal(t, min(ahead, 31), apart.Ahead())
	}
	assert.Equal(t, notEnqueued, made("", false, false))
	assert.Equal(t, legacyHolder, made("", true, false))
	assert.Equal(t, subscriptionLost, made("", false, true))
	for s, is := range map[Standing][3]bool{
		notEnqueued: {}, enqueued: {true, false, false}, legacyHolder: {false, true, false},
		subscriptionLost: {false, false, true},
	} {
		assert.Equal(t, is, [3]bool{s.IsEnqueued(), s.LegacyHolder(), s.SubscriptionLost()}, "%d", s)
	}
}
