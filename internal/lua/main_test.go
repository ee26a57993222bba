package lua_test

import (
	"testing"

	"github.com/relock-go/relock/internal/locktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }
