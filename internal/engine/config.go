package engine

// The settings of an engine, and what it asks its user for.

import (
	"context"
	"log/slog"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
)

const (
	UnlockTime = send.ConnectTime      // the time limit of an Unlock, and of each request that rolls an attempt back
	LeastShare = 10 * time.Millisecond // see shareTime
	MostAsked  = 5                     // how many requests a caller sends at most whose grants come too late to keep them
	clearPause = time.Second           // the pause between two tries to delete a record
)

// A Config has the settings of a Client, and the parts of it that are particular to Redis and to the user.
type Config struct {
	ID              string // of the Client; every field begins with it
	WatchdogTimeout time.Duration
	PollInterval    time.Duration
	HandoffWindow   time.Duration
	Label           string // set by WithLabel; or ""
	OnAcquire       func() // called whenever a lock with a record is about to be acquired; or nil
	OnSlow          func() // called whenever a call begins to wait for a lock, and when a hold has become old; or nil
	// OnDifference is called, without a mutex, with every answer that tells that Redis has stored another number of
	// permits than the semaphore was made with. It must not block.
	OnDifference   func(semaphore contract.Lock, stored int)
	ConfirmsGrants bool // a grant that arrives as a message is confirmed by a request, for replicas

	HoldWarning time.Duration // holds that are older are reported, see slow.go; 0: they are not
	WaitWarning time.Duration // the same for waits
	// Holder asks Redis for the holder of a lock, and describes it for people; "" if it is not known. Or it is nil.
	Holder func(ctx context.Context, s Subject) string

	Log       *slog.Logger // the Logger of the user
	Events    Events
	Observed  bool         // an Observer receives the events from Waiting to Released
	UserCalls func() int64 // the number of calls of the Logger and the Observer that have not returned

	Servers Servers
	Free    func(names []string, closely int) send.Call // asks which of names are free: see freeOf
	Group   func(name string) string                    // names of the same group can be asked about in one call
	Renewer Renewer

	// Channel is the channel on which this Client hears hints: see internal/hints; or "".
	Channel string
	// Tell publishes a hint to other Clients; or it is nil.
	Tell func(ctx context.Context, clients []string, hint string)
}

// Servers is what an engine knows about the Redis servers: which server announces on a channel, and whether a server
// knows its subscribers.
type Servers interface {
	wake.Router
	// Counts reports whether the server that runs a script knows how many subscribers its messages reach.
	Counts() bool
}

// A Renewal is a request that the record of a hold lasts for Length from now on, and the answer to it.
type Renewal struct {
	Lock   contract.Record
	Field  string
	Length time.Duration // 0: the request only looks for the record

	// The answer:
	Held bool // Redis has the hold, with the new lease
	Err  error
}

// A Renewer sends all renewals together, and stores the answers in them.
type Renewer func(ctx context.Context, sender *send.Sender, all []Renewal)
