package faults

// Where subscriptions are not answered, or no connection can be opened for them, a waiter waits in the queue all the same,
// as one that may not subscribe.

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

// A deafConn is a connection behind a proxy that does not answer subscriptions, or closes the connection.
type deafConn struct {
	net.Conn
	closes bool
}

func (c *deafConn) Write(b []byte) (int, error) {
	switch {
	case !bytes.Contains(b, []byte("\r\nsubscribe\r\n")):
		return c.Conn.Write(b)
	case c.closes:
		_ = c.Close()
		return 0, io.EOF
	}
	return len(b), nil
}

// A process whose subscriptions are not answered gets its turn beside two that pass the lock on.
func TestUnansweredSubscriberGetsItsTurn(t *testing.T) {
	for _, why := range []string{"silent", "closed", "maxclients", "vanished"} {
		t.Run(why, func(t *testing.T) {
			t.Parallel()
			s := testredis.Start(t)
			b := locktest.NewBench(t, s.Addr())
			var vanished atomic.Bool
			poor := b.ClientOn(s.Client(func(o *redis.Options) {
				if why != "maxclients" {
					o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
						if vanished.Load() {
							<-ctx.Done()
							return nil, ctx.Err()
						}
						conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
						return &deafConn{conn, why == "closed"}, err
					}
				}
			}))
			b.Must(poor.NewLock("other").Do(ctx, func(context.Context) error { return nil })) // there is a connection for requests
			within, cancel := context.WithTimeout(ctx, time.Minute)
			var others sync.WaitGroup
			for _, c := range []*Client{b.Client(), b.Client()} {
				waitgroup.Go(&others, func() {
					for within.Err() == nil {
						_ = c.NewLock(b.LockName).Do(within, func(context.Context) error { time.Sleep(50 * time.Millisecond); return nil })
					}
				})
			}
			time.Sleep(time.Second) // they have subscribed
			vanished.Store(why == "vanished")
			if why == "maxclients" {
				n := strings.Count(strings.TrimSpace(b.Rdb.ClientList(ctx).Val()), "\n") + 1
				b.Must(b.Rdb.ConfigSet(ctx, "maxclients", fmt.Sprint(n)).Err())
			}
			for range 2 {
				b.Must(poor.NewLock(b.LockName).Do(within, func(context.Context) error { return nil }))
			}
			b.Must(b.Rdb.ConfigSet(ctx, "maxclients", "1000").Err())
			cancel()
			others.Wait()
		})
	}
}
