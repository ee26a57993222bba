package locktest

// What tests see of the inside of a Client, a Locker and a Hold: see internal/inside.

import (
	"context"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/inside"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
)

// EngineOf returns the engine of a Client.
func EngineOf(c *relock.Client) *engine.Engine { return inside.Of(c).Engine }

// ClientOf returns the Client of a lock.
func ClientOf(l relock.Locker) *relock.Client { return inside.Of(l).Client.(*relock.Client) }

// LockOf returns the lock as the engine knows it.
func LockOf(l relock.Locker) contract.Lock { return inside.Of(l).Lock }

// RecordOf returns the record of a lock, or nil if it has not one record on one server.
func RecordOf(l relock.Locker) contract.Record {
	if _, red := inside.Of(l).Lock.(engine.LocalLock); red {
		return nil
	}
	r, _ := inside.Of(l).Lock.(contract.Record)
	return r
}

// WaitTimeoutOf returns how long an entry in the queue of a fair lock lasts, in milliseconds.
func WaitTimeoutOf(l contract.Record) int64 { return l.Acquire(contract.Attempt{}).Args[2].(int64) }

// SetPermits returns the call that sets how many permits a semaphore has.
func SetPermits(l contract.Record, permits int) send.Call {
	return send.Call{
		Script: record.Script("semaphore_set"), Keys: KeysOf(l), Args: []any{permits, AnnounceOf(l), "publish"},
	}
}

// Renew sends renewals of a Client together, and stores the answers in them.
func Renew(ctx context.Context, c *relock.Client, all []engine.Renewal) {
	EngineOf(c).Renewer(ctx, EngineOf(c).Probe().Sender(), all)
}

// SeveralOf returns the record of a Semaphore for holds of n permits.
func SeveralOf(s *relock.Semaphore, n int) contract.Record {
	return inside.Of(s).Lock.(*record.Semaphore).Several(n)
}

// OwnerOf returns the owner of a Hold.
func OwnerOf(h *relock.Hold) engine.Owner { return inside.Of(h).Owner }

// KeysOf returns the keys of a lock: first the record.
func KeysOf(l contract.Record) []string { return l.Acquire(contract.Attempt{}).Keys }

// AnnounceOf returns the channel of a lock, or, of a fair lock, what precedes the field of the waiter in the channel.
func AnnounceOf(l contract.Record) string { return l.Channel(contract.Attempt{}) }
