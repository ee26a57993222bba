package locks

// Errors that match ErrClosed: what they name.

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
)

// argumentsOf returns arguments for a method, by their types.
func argumentsOf(b *locktest.Bench, method reflect.Type) (arguments []reflect.Value) {
	for i := range method.NumIn() {
		var v any
		switch reflect.Zero(method.In(i)).Interface().(type) {
		case time.Duration:
			v = time.Second
		case int:
			v = 1
		case string:
			v = b.LockName
		case func(context.Context) error:
			v = nothing
		case nil:
			if method.In(i) != reflect.TypeFor[context.Context]() {
				return nil
			}
			v = ctx
		default:
			return nil
		}
		arguments = append(arguments, reflect.ValueOf(v))
	}
	return arguments
}

// Every error that a method returns because the Client is closed names the method and the lock.
func TestErrClosedNamesTheOperationAndTheLock(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client()
	lock, other := c.NewLock(b.LockName, Fenced()), b.ClientOn(testredis.Client(t, testredis.Mini(t).Addr()))
	third := b.ClientOn(testredis.Client(t, testredis.Mini(t).Addr()))
	hold, err := c.NewSemaphore(b.LockName+"-s", 5).Acquire(ctx)
	b.Must(err)
	term, err := c.NewElection(b.LockName + "-e").Campaign(ctx)
	b.Must(err)
	many := c.NewMultiLock(lock, other.NewLock(b.LockName))
	red := c.NewRedLock(lock, other.NewLock(b.LockName), third.NewLock(b.LockName))
	all := []any{
		c, lock, c.NewFairLock(b.LockName), c.NewRWLock(b.LockName).Read(), c.NewRWLock(b.LockName).Write(), many, red,
		c.NewMultiLock(lock, c.NewLock(b.LockName+"-2")),
		c.NewSemaphore(b.LockName, 1), c.NewElection(b.LockName), hold, term,
	}
	b.Must(c.Close())
	closed := 0
	for _, l := range all {
		v := reflect.ValueOf(l)
		for i := range v.NumMethod() {
			name := v.Type().Method(i).Name
			call := fmt.Sprintf("%T.%s", l, name)
			arguments := argumentsOf(b, v.Method(i).Type())
			if len(arguments) < v.Method(i).Type().NumIn() {
				continue // it makes locks, or is passed what another call returns
			}
			for _, result := range v.Method(i).Call(arguments) {
				if err, _ := result.Interface().(error); errors.Is(err, ErrClosed) {
					closed++
					assert.Regexp(t, `^relock: ([a-z ]+ "`+b.LockName+`|shutdown: )`, err.Error(), call)
				}
			}
		}
	}
	assert.Greater(t, closed, 100, "calls")
}

// So does the error of a call whose function returns that its context was canceled, or why, because of a Shutdown.
func TestErrClosedOfAFunctionNamesTheOperationAndTheLock(t *testing.T) {
	for what, result := range map[string]func(ctx context.Context) error{
		"error": context.Context.Err,
		"cause": context.Cause,
		"both":  func(ctx context.Context) error { return fmt.Errorf("a step: %w", ctx.Err()) },
	} {
		for op, call := range map[string]func(c *Client, name string, fn func(context.Context) error) error{
			"do": func(c *Client, name string, fn func(context.Context) error) error {
				return c.NewLock(name).Do(ctx, fn)
			},
			"trydo": func(c *Client, name string, fn func(context.Context) error) error {
				return locktest.Second(c.NewSemaphore(name, 1).TryDo(ctx, 0, fn))
			},
			"lead": func(c *Client, name string, fn func(context.Context) error) error {
				return c.NewElection(name).Lead(ctx, fn)
			},
		} {
			t.Run(op+" "+what, func(t *testing.T) {
				b := locktest.NewBench(t, testredis.Mini(t).Addr())
				c := b.Client()
				ended := make(chan error, 1)
				err := call(c, b.LockName, func(ctx context.Context) error {
					go func() { ended <- c.Shutdown(context.Background()) }()
					locktest.Await(b, "the context is canceled", ctx.Done())
					return result(ctx)
				})
				b.Must(locktest.Await(b, "Shutdown ends", ended))
				b.MustBe(err, ErrClosed)
				assert.NotErrorIs(t, err, context.Canceled)
				assert.ErrorContains(t, err, fmt.Sprintf("relock: %s %q: the client is closed", op, b.LockName))
			})
		}
	}
}

func nothing(context.Context) error { return nil }
