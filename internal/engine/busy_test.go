//go:build go1.25

package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/send"
)

// A scene is what happens to the lock x until the time of a caller is up.
type scene struct {
	*bubbleEngine
	other *bubbleEngine // another process
}

// elsewhere makes the other process hold the lock; a lease of 0 is renewed, and another one expires.
func (s *scene) elsewhere(lease time.Duration) {
	ok, err := s.other.lockWith(ctx, 9, leased(lease))
	assert.NoError(s.t, err)
	assert.True(s.t, ok)
	if lease > 0 {
		assert.NoError(s.t, s.other.Close())
	}
}

// ahead starts another caller of the same process, which waits in front.
func (s *scene) ahead() {
	go func() { _, _ = s.lockWith(ctx, 3, Request{Wait: forever}) }()
	synctest.Wait()
}

// releases makes the holder of the same process begin to release the lock.
func (s *scene) releases() {
	go func() { _ = s.unlockErr(1) }()
	synctest.Wait()
}

// from lets f happen to all requests that have the verb of the n-th from now on, and to that one. A caller that finds the
// lock busy makes its second attempt at once, because its subscription is in force by then.
func (s *scene) from(n int, verb string, f fakeredis.Fault) {
	s.fail(func(v string) fakeredis.Fault {
		if v == verb {
			n--
		}
		if v == verb && n <= 0 {
			return f
		}
		return fakeredis.Fault{}
	})
}

// The time of a caller is up, or its context ends. Both are told by the same rule from what happened until then: false
// without an error, and ErrBusy; or errors that do not match ErrBusy.
func TestEndOfAWaitTellsBusyFromNoAnswer(t *testing.T) {
	const soon, late, second = send.MinWait - time.Millisecond, send.MinWait + time.Millisecond, time.Second
	hang, refused := fakeredis.Fault{Late: time.Hour}, fakeredis.Fault{Block: answerError("LOADING")}
	for name, test := range map[string]struct {
		busy  bool
		lasts time.Duration // until the time of the caller is up
		play  func(s *scene)
	}{
		"told so":                            {true, 5 * second, func(s *scene) { s.elsewhere(0) }},
		"told of a lease":                    {true, 5 * second, func(s *scene) { s.elsewhere(time.Minute) }},
		"told of a lease that is over":       {true, second/2 + 1, func(s *scene) { s.elsewhere(second / 2) }},
		"told of a lease, then asks":         {true, second/2 + soon, func(s *scene) { s.elsewhere(second / 2); s.from(3, "acquire", hang) }},
		"told of a lease, then asks in vain": {false, second, func(s *scene) { s.elsewhere(second / 2); s.from(3, "acquire", hang) }},
		"told of a lease until now":          {true, second/2 - 1, func(s *scene) { s.elsewhere(second / 2) }},
		"asks again":                         {true, soon, func(s *scene) { s.elsewhere(0); s.from(2, "acquire", hang) }},
		"asks again in vain":                 {false, late, func(s *scene) { s.elsewhere(0); s.from(2, "acquire", hang) }},
		"fails later":                        {false, 1, func(s *scene) { s.elsewhere(0); s.from(2, "acquire", refused) }},
		"fails":                              {false, 1, func(s *scene) { s.from(1, "acquire", refused) }},
		"asks in vain":                       {false, late, func(s *scene) { s.from(1, "acquire", hang) }},

		"front told so":                      {true, 5 * second, func(s *scene) { s.elsewhere(0); s.ahead() }},
		"front told of a lease that is over": {true, second/2 + 1, func(s *scene) { s.elsewhere(second / 2); s.ahead() }},
		"front asks":                         {false, soon, func(s *scene) { s.from(1, "acquire", hang); s.ahead() }},
		"front asks in vain":                 {false, late, func(s *scene) { s.from(1, "acquire", hang); s.ahead() }},
		"front asks again":                   {true, soon, func(s *scene) { s.elsewhere(0); s.from(2, "acquire", hang); s.ahead() }},
		"front asks again in vain":           {false, late, func(s *scene) { s.elsewhere(0); s.from(2, "acquire", hang); s.ahead() }},
		"front fails later":                  {false, 1, func(s *scene) { s.elsewhere(0); s.from(2, "acquire", refused); s.ahead() }},
		"front fails":                        {false, 1, func(s *scene) { s.from(1, "acquire", refused); s.ahead() }},

		"held here":                {true, 5 * second, func(s *scene) { s.lock(1) }},
		"held here in an outage":   {true, 29 * second, func(s *scene) { s.lock(1); s.from(1, "renew", hang) }},
		"released here":            {true, soon, func(s *scene) { s.lock(1); s.from(1, "release", hang); s.releases() }},
		"released here in vain":    {false, late, func(s *scene) { s.lock(1); s.from(1, "release", hang); s.releases() }},
		"released here, then held": {true, 5 * second, func(s *scene) { s.lock(1); s.unlock(1); s.elsewhere(0) }},
		"released here slowly, and the front asks": {true, 300*time.Millisecond + soon, func(s *scene) {
			s.lock(1)
			s.fail(func(verb string) fakeredis.Fault {
				if verb == "release" {
					return fakeredis.Fault{Late: 300 * time.Millisecond}
				}
				return hang
			})
			s.releases()
			s.ahead()
		}},
		"lost here in an outage": {false, 31 * second, func(s *scene) {
			s.lock(1)
			s.from(1, "renew", hang)
			time.AfterFunc(15*second, func() { s.from(1, "acquire", hang) })
		}},
	} {
		for _, by := range []string{"time", "ctx", "ctx before its time"} {
			t.Run(name+"/"+by, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := fakeredis.New()
					s := &scene{
						&bubbleEngine{New(fakeConfig(r, "client"), send.Config{Transport: r}), r, t},
						&bubbleEngine{New(fakeConfig(r, "other"), send.Config{Transport: r}), r, t},
					}
					defer func() { // goroutines of the scene end with their Clients
						r.Set(func() { r.Fault = nil })
						_, _ = s.Close(), s.other.Close()
						time.Sleep(2 * time.Hour)
					}()
					test.play(s)
					ctx, cancel := context.WithCancel(ctx)
					defer cancel()
					request := Request{Wait: test.lasts}
					if by != "time" {
						request.Wait = time.Hour
						time.AfterFunc(test.lasts, cancel)
					}
					if by == "ctx" {
						request.Wait = forever
					}
					err := s.misses(ctx, 2, request)
					if by == "time" {
						assert.Equal(t, test.busy, err == nil, "error: %v", err)
						assert.NotErrorIs(t, err, ErrBusy)
						return
					}
					assert.Equal(t, test.busy, errors.Is(err, ErrBusy), "error: %v", err)
					assert.ErrorIs(t, err, context.Canceled)
				})
			})
		}
	}
}

// A Client that is closed tells its callers nothing of who has the lock.
func TestClosedClientIsNotBusy(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := e.another()
		other.lock(1)
		within, stop := e.UntilClosed(ctx)
		defer stop()
		errs := make(chan error, 2)
		for o, ctx := range map[Owner]context.Context{2: ctx, 3: within} {
			go func() {
				_, err := e.lockWith(ctx, o, Request{Wait: forever})
				errs <- err
			}()
		}
		time.Sleep(time.Second)
		assert.NoError(t, e.Close())
		for range 2 {
			err := <-errs
			assert.ErrorIs(t, err, send.ErrClosed)
			assert.NotErrorIs(t, err, ErrBusy)
		}
		other.unlock(1)
	})
}
