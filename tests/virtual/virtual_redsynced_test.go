//go:build go1.25

package virtual

import (
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/stretchr/testify/require"
)

// A node that is a MultiLock has the timeout of the Client of the RedLock, so that is what has to be longer than the
// time for the replicas of its locks.
func TestRedLockOfMultiLocksHasTimeForReplicas(t *testing.T) {
	for name, c := range map[string]struct {
		nodes, home time.Duration
		valid       bool
	}{
		"of the RedLock is too short":   {time.Second, 200 * time.Millisecond, false},
		"of the RedLock is long enough": {200 * time.Millisecond, time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
				var locks []Locker
				for i := range 3 {
					m, _ := v.Client(i, WithSyncedReplicas(1, 500*time.Millisecond), WithRedLockNodeTimeout(c.nodes))
					locks = append(locks, m.NewMultiLock(m.NewLock("l"), m.NewLock("m")))
				}
				home, _ := v.Client(0, WithRedLockNodeTimeout(c.home))
				_, err := home.NewRedLock(locks...).Guard(ctx)
				if c.valid {
					require.NotErrorIs(v, err, ErrInvalid)
				} else {
					require.ErrorIs(v, err, ErrInvalid)
				}
			})
		})
	}
}
