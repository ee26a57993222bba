//go:build go1.25

package send

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestWaitEndsByWakeUpTimeCtxOrClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		enough := errors.New("enough")
		ctx, cancel := context.WithCancelCause(context.Background())
		wake, closed := make(chan struct{}), make(chan struct{})
		w := &Wait{Ctx: ctx, Closed: closed}
		sleeps := func(want time.Duration, wantErr error, sleep func() error) {
			t.Helper()
			start := time.Now()
			assert.ErrorIs(t, sleep(), wantErr)
			assert.Equal(t, want, time.Since(start))
		}
		sleeps(time.Second, nil, func() error { return w.Sleep(wake, nil, nil, time.Second) })
		w.Deadline = time.Now().Add(time.Minute)
		sleeps(time.Second, nil, func() error { return w.Sleep(wake, nil, nil, time.Second) })
		sleeps(59*time.Second, ErrTimeUp, func() error { return w.Sleep(nil, nil, nil, time.Hour) })
		sleeps(0, ErrTimeUp, func() error { return w.Sleep(nil, nil, nil, 0) })
		assert.Equal(t, ErrTimeUp, w.Over())
		w.Deadline = time.Time{}

		for i := range 3 {
			channels := make([]<-chan struct{}, 3)
			channels[i] = wake
			time.AfterFunc(time.Second, func() { wake <- struct{}{} })
			sleeps(time.Second, nil, func() error { return w.Sleep(channels[0], channels[1], channels[2], 0) })
		}
		assert.NoError(t, w.Over())
		time.AfterFunc(time.Second, func() { close(closed) })
		sleeps(time.Second, ErrClosed, func() error { return w.Sleep(nil, nil, nil, 0) })
		assert.Equal(t, ErrClosed, w.Over())
		w.Closed = nil
		time.AfterFunc(time.Second, func() { cancel(enough) })
		sleeps(time.Second, enough, func() error { return w.Sleep(nil, nil, nil, 0) })
		assert.ErrorIs(t, w.Over(), context.Canceled)
	})
}

func TestHasTimeOnlyWhereTheCallerWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		assert.True(t, (&Wait{Ctx: context.Background()}).HasTime(time.Hour))
		assert.False(t, (&Wait{Ctx: ctx}).HasTime(time.Hour))
		assert.False(t, (&Wait{Ctx: ctx, NoWait: true}).HasTime(0))
		w := &Wait{Ctx: ctx, Deadline: time.Now().Add(time.Second)}
		assert.True(t, w.HasTime(time.Second))
		assert.False(t, w.HasTime(time.Second+1))
	})
}
