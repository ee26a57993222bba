package engine

import (
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

// The names of the contract.
type (
	Record        = contract.Record
	Lock          = contract.Lock
	LockID        = contract.LockID
	Admission     = contract.Admission
	Limits        = contract.Limits
	BundledScript = contract.BundledScript
	BundledCall   = contract.BundledCall
	Commands      = contract.Commands
	Traits        = contract.Traits
	Attempt       = contract.Attempt
	Release       = contract.Release
	Rename        = contract.Rename
	Outcome       = contract.Outcome
	Status        = contract.Status
	View          = contract.View
)

const (
	Exclusive     = contract.Exclusive
	Uncoordinated = contract.Uncoordinated
	Shared        = contract.Shared
	Counting      = contract.Counting

	Barge = contract.Barge
	Defer = contract.Defer
	Push  = contract.Push
	Poll  = contract.Poll

	Busy = contract.Busy
	Held = contract.Held
	Gone = contract.Gone

	BlockSize = contract.BlockSize
)

func ParseOutcome(r send.Reply) (Outcome, error) { return contract.ParseOutcome(r) }

func Rounded(d time.Duration) time.Duration { return contract.Rounded(d) }
