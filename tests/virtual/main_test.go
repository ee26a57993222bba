// Package virtual tests Clients in virtual time: waits, outages, and what many callers cost, with several servers.
package virtual

import (
	"testing"

	"github.com/relock-go/relock/internal/locktest"
)

func TestMain(m *testing.M) {
	locktest.InRepository()
	locktest.Main(m)
}
