package send

import (
	"testing"

	"github.com/relock-go/relock/internal/testredis"
)

func TestMain(m *testing.M) {
	testredis.ManyAtOnce()
	testredis.Main(m, "internal/send").Run()
}
