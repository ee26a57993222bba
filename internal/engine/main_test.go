package engine

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/relock-go/relock/internal/testredis"
)

// ctx is the context of calls that nothing cancels.
var ctx = context.Background()

func TestMain(m *testing.M) { goleak.VerifyTestMain(testredis.Main(m, "internal/engine")) }
