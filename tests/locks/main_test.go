package locks

import (
	"testing"

	"github.com/relock-go/relock/internal/locktest"
)

func TestMain(m *testing.M) {
	locktest.InRepository()
	locktest.Main(m)
}
