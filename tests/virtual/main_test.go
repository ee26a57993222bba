// Package virtual tests Clients in virtual time: waits, outages, and what many callers cost, with several servers.
package virtual

import (
	"context"
	"testing"

	"github.com/relock-go/relock/internal/locktest"
)

// ctx is the context of calls that nothing cancels.
var ctx = context.Background()

func TestMain(m *testing.M) {
	locktest.InRepository()
	locktest.Main(m)
}
