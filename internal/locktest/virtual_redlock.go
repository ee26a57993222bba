//go:build go1.25

package locktest

import (
	"github.com/relock-go/relock"
)

// RedLock returns a RedLock called l, of three servers, and its locks.
func (v *Virtual) RedLock() (l *relock.RedLock, locks []relock.Locker) {
	v.Helper()
	for i := range 3 {
		c, _ := v.Client(i)
		locks = append(locks, c.NewLock("l"))
	}
	c, _ := v.Client(0)
	return c.NewRedLock(locks...), locks
}
