//go:build go1.25

package relock

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/report"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Close returns when what it logs was logged, also by a handler that takes its time.
func TestCloseReturnsAfterItsLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logged := false
		handler := handlerFunc(func(slog.Record) error {
			time.Sleep(report.CloseTime / 2)
			logged = true
			return nil
		})
		e := abandonedBubbleEngine(t, fakeredis.New(), WithLogger(slog.New(handler)))
		e.lock(1)
		require.NoError(t, e.Close())
		assert.True(t, logged, "the lock that is held, before Close returned")
	})
}
