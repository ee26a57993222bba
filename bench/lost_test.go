package main

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testsql"
)

// A database with a fence.Table loses no update, whatever happens to the lock; without a lock the same load loses some.
func TestFenceLosesNoUpdate(t *testing.T) {
	needsServer(t)
	for _, p := range protectors {
		fenced := strings.Contains(p.name, "`fence`")
		if !fenced && p.name != "no lock" {
			continue
		}
		for _, trouble := range troubles[1:] {
			lost, writes, err := p.protect(t.Context(), trouble, time.Second)
			if errors.Is(err, testsql.ErrNotInstalled) && os.Getenv("CI") == "" {
				t.Log(p.name, err)
				continue
			}
			require.NoError(t, err, "%s, %s", p.name, trouble.name)
			t.Logf("%s, %s: %d of %d are lost", p.name, trouble.name, lost, writes)
			assert.Positive(t, writes)
			assert.Equal(t, fenced, lost == 0, "%s, %s: %d of %d are lost", p.name, trouble.name, lost, writes)
		}
	}
}
