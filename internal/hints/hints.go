// Package hints tells other Clients that they may have lost a hold, because a lock was released by force, and hears
// what they tell this one.
//
// Rules: a hint names a lock. It makes a Client check the records that it has of this lock: it ends nothing by itself,
// any client may have sent it, and it may be lost, for example while the connection is replaced. Then a holder notices at
// its next renewal. A Client listens while it has a hold that is old, so that a lock that is held for a moment costs no
// subscription, and any number of holds cost one. If Redis refuses the channel, the Client does not ask for it again.
package hints

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/wake"
)

const (
	// tellTime is how long the hints of one request may take. A hint that is not sent leaves a holder in the dark until its
	// next renewal, so a machine that is slow has as long as for a connection. Only Close waits for hints.
	tellTime = 5 * time.Second
	check    = "check " // a hint is this, and the name of a lock
	longest  = 1024     // the longest name that is sent in hints, of which there may be thousands
)

// A Config has the channel of a Client, and what happens when a hint comes.
type Config struct {
	ID      string // of the Client
	Channel string // on which it hears hints
	// Tell publishes a hint to other Clients; or it is nil.
	Tell  func(ctx context.Context, clients []string, hint string)
	Check func(name string) // has the records of the lock called name checked

	Join  func(channel string) *wake.Listener
	Spawn func(job func())
	Later func(report func())
	Log   *slog.Logger
}

// A Channel sends hints to other Clients, and hears those for its own.
type Channel struct {
	Config
	refused atomic.Bool // by Redis

	mu       sync.Mutex     // guards the fields below; no other mutex is locked while it is held
	wanted   bool           // a hold is old
	listener *wake.Listener // or nil
}

// New returns a Channel that does not listen yet.
func New(c Config) *Channel { return &Channel{Config: c} }

// keep keeps a listener if there is none yet, and one is still wanted.
func (c *Channel) keep(l *wake.Listener) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.wanted || c.listener != nil {
		return false
	}
	c.listener = l
	return true
}

// Send tells clients that they may have lost their holds of the lock called name. It does not block. This Client knows
// by itself.
func (c *Channel) Send(name string, clients []string) {
	clients = slices.DeleteFunc(clients, func(id string) bool { return id == c.ID })
	if len(clients) == 0 || len(name) > longest || c.Tell == nil {
		return
	}
	c.Spawn(func() {
		ctx, cancel := context.WithTimeout(context.Background(), tellTime)
		defer cancel()
		c.Tell(ctx, clients, check+name)
	})
}

// Hear begins or ends to listen for hints: old is whether the Client has a hold that is old. It does not block.
func (c *Channel) Hear(old bool) {
	c.mu.Lock()
	c.wanted = old && !c.refused.Load()
	wanted, leaves := c.wanted, c.listener
	if !wanted {
		c.listener = nil
	}
	c.mu.Unlock()
	switch {
	case wanted:
		c.Spawn(c.join) // it may have to find out which server serves the channel
	case leaves != nil:
		leaves.Leave()
	}
}

func (c *Channel) join() {
	l := c.Join(c.Channel)
	l.Hears(c.Heard)
	if !c.keep(l) {
		l.Leave()
	}
}

// Refuse ends to listen for good, because Redis refuses the channel.
func (c *Channel) Refuse(err error) {
	if !c.refused.CompareAndSwap(false, true) {
		return
	}
	c.Hear(false)
	c.Later(func() {
		c.Log.Debug(
			"relock: Redis refuses the channel on which this Client hears of forced releases, so that it notices them "+
				"at its next renewal; after NOPERM, grant this user access to the channels relock_client:*",
			"channel", c.Channel, "error", err,
		)
	})
}

// Heard has the records of the lock that a hint names checked. It is called on the goroutine that reads from the
// connection.
func (c *Channel) Heard(hint string) {
	if name, ok := strings.CutPrefix(hint, check); ok {
		c.Check(name)
	}
}
