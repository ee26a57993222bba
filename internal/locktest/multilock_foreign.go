package locktest

import (
	"context"
	"time"

	"github.com/relock-go/relock"
)

// A StubLocker is a foreign Locker: it wraps a Locker of the package, and overrides some answers.
type StubLocker struct {
	relock.Locker
	OnTryLock func(ctx context.Context, wait, lease time.Duration) (bool, error)
	OnUnlock  func(ctx context.Context) error
	OnGuard   func(ctx context.Context) (context.Context, error)
}

func (s StubLocker) Guard(ctx context.Context) (context.Context, error) {
	if s.OnGuard != nil {
		return s.OnGuard(ctx)
	}
	return s.Locker.Guard(ctx)
}

func (s StubLocker) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	if s.OnTryLock != nil {
		return s.OnTryLock(ctx, wait, lease)
	}
	return s.Locker.TryLock(ctx, wait, lease)
}

func (s StubLocker) Unlock(ctx context.Context) error {
	err := s.Locker.Unlock(ctx)
	if s.OnUnlock != nil {
		err = s.OnUnlock(ctx)
	}
	return err
}
