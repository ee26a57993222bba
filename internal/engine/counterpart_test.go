//go:build go1.25

package engine

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/send"
)

// A half is one half of a read/write lock. It notes which fields its attempts name.
type half struct {
	*fakeLock
	named *[]string
}

func (l half) Acquire(a contract.Attempt) send.Call {
	*l.named = append(*l.named, a.Counterpart)
	return l.fakeLock.Acquire(a)
}

// An attempt does not name the field of a hold on the counterpart that was lost. Its record may still be there for a
// moment: then Redis would let the attempt pass, and keep the record for as long as the new hold lasts.
func TestLostCounterpartIsNotNamed(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		var named []string
		read, write := half{newFakeLock(e.redis, "x"), &named}, half{newFakeLock(e.redis, "x"), &named}
		read.traits.Counterpart.Name, write.traits.Counterpart.Name = "x", "x"
		read.key, read.traits.ID.Half, read.traits.Counterpart.Half = "x:read", "read", "write"
		write.key, write.traits.ID.Half, write.traits.Counterpart.Half = "x:write", "write", "read"
		e.take(write, 1, leased(10*time.Second))
		e.faults(fakeredis.Fault{Block: io.EOF}, "release")
		time.Sleep(9950 * time.Millisecond)
		require.Zero(t, holdCountOf(e.Engine, write, 1))
		require.NotEmpty(t, e.redis.Holder("x:write"))
		e.take(read, 1)
		assert.Equal(t, []string{"", ""}, named)
		e.heal()
		e.giveBack(read, 1)
	})
}
