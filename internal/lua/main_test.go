package lua

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/relock-go/relock/internal/testredis"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testredis.Main(m, "internal/lua")) }
