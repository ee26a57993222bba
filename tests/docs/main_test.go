// Package docs compares the pages with the code: their programs, tables, links, texts and figures.
package docs

import (
	"testing"

	"github.com/relock-go/relock/internal/locktest"
)

func TestMain(m *testing.M) {
	locktest.InRepository()
	locktest.Main(m)
}
