// Leader shows work that only one of several processes may do, and that stops when
// its process is not the leader any more. Three candidates, each with connections
// of its own, ask for the same lock; the one that has it leads.
//
//	go run ./examples/leader
//
// The program cuts the leader off from Redis, by unplugging its connections. No
// message can tell the leader that its lock is over: it has to know by itself. The ctx that Do hands to its work ends by the
// leader's own clock, a little before the lease in Redis does, and only then can
// another candidate get the lock. So they never lead at the same time.
//
// The work must look at that ctx, and at nothing else. A write that is on its way
// already cannot be called back by any lock: see examples/postgres.
//
// Then the second leader resigns, by returning. The third one has the lock after a
// round trip or two, because a release is announced.
//
// It needs nothing but Go: without REDIS_URL (redis://user:password@host:port/db)
// it runs on an embedded miniredis.
//
// Rules: two that lead at the same time are exit status 1.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/examples/internal/demo"
)

const lease = time.Second // renewed every third

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "leader:", err)
		os.Exit(1)
	}
}

func run() error {
	redis.SetLogger(quiet{}) // it would tell of every connection that is unplugged
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	options, stop, err := demo.Start()
	if err != nil {
		return err
	}
	defer stop()

	office := &office{start: time.Now(), elected: make(chan *candidate, 3)}
	name := "relock:leader:" + rand.Text()
	campaign, end := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer end()
	for _, who := range []string{"red", "green", "blue"} {
		c := &candidate{name: who, office: office, resign: make(chan struct{})}
		all.Add(1)
		go func() {
			defer all.Done()
			if err := c.campaign(campaign, options, name); err != nil && campaign.Err() == nil {
				office.say("%s: %v", c.name, err)
			}
		}()
	}

	first, err := office.next(ctx)
	if err != nil {
		return err
	}
	time.Sleep(lease / 2)
	office.say("%s is cut off from Redis", first.name)
	first.plug.pull()

	second, err := office.next(ctx)
	if err != nil {
		return err
	}
	time.Sleep(lease / 2)
	office.say("%s is asked to resign", second.name)
	close(second.resign)

	if _, err := office.next(ctx); err != nil {
		return err
	}
	time.Sleep(lease / 2)
	end()
	all.Wait()
	if n := office.most; n != 1 {
		return fmt.Errorf("%d led at the same time", n)
	}
	fmt.Println("never more than one led at the same time")
	return nil
}

// A candidate is one process.
type candidate struct {
	name   string
	office *office
	plug   plug
	resign chan struct{}
}

// campaign leads whenever it can, until ctx ends or it has resigned.
func (c *candidate) campaign(ctx context.Context, options *redis.Options, name string) error {
	own := *options
	own.Dialer = c.plug.dial
	own.MaxRetries = -1
	own.DialerRetries = 1
	rdb := redis.NewClient(&own)
	defer rdb.Close()
	client, err := relock.New(rdb,
		relock.WithWatchdogTimeout(lease),
		relock.WithLogger(slog.New(slog.DiscardHandler)), // it would log the loss
	)
	if err != nil {
		return err
	}
	defer client.Close()

	lock := client.NewLock(name)
	for {
		err := lock.Do(ctx, c.lead) // waits until it is our turn
		switch {
		case errors.Is(err, errResigned):
			return nil
		case errors.Is(err, relock.ErrLockLost):
			return nil // another program would wait a little, and be a candidate again
		case err != nil:
			return err
		}
	}
}

var errResigned = errors.New("resigned")

// lead is the work of the leader. It goes on while ctx is alive.
func (c *candidate) lead(ctx context.Context) error {
	c.office.begin(c)
	defer c.office.end()
	step := time.NewTicker(50 * time.Millisecond)
	defer step.Stop()
	steps := 0
	for {
		select {
		case <-step.C:
			steps++ // whatever only the leader may do, with ctx
		case <-c.resign:
			c.office.say("%s resigns after %d steps", c.name, steps)
			return errResigned
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), relock.ErrLockLost) {
				c.office.say("%s stops after %d steps: the lock is lost", c.name, steps)
			} else {
				c.office.say("%s stops after %d steps: the program ends", c.name, steps)
			}
			return ctx.Err()
		}
	}
}

// An office is what is led, and who looks on.
type office struct {
	start   time.Time
	elected chan *candidate

	mu        sync.Mutex // guards below
	now, most int
}

func (o *office) begin(c *candidate) {
	o.mu.Lock()
	o.now++
	o.most = max(o.most, o.now)
	o.mu.Unlock()
	o.say("%s leads", c.name)
	o.elected <- c
}

func (o *office) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.now--
}

func (o *office) next(ctx context.Context) (*candidate, error) {
	select {
	case c := <-o.elected:
		return c, nil
	case <-time.After(10 * lease):
		return nil, errors.New("no candidate was elected")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (o *office) say(format string, args ...any) {
	fmt.Printf("%6.2fs  %s\n", time.Since(o.start).Seconds(), fmt.Sprintf(format, args...))
}

// A plug is how a candidate is connected to Redis, until it is pulled.
type plug struct {
	mu     sync.Mutex // guards below
	pulled bool
	conns  []net.Conn
}

func (p *plug) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pulled {
		return nil, errors.New("unplugged")
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err == nil {
		p.conns = append(p.conns, conn)
	}
	return conn, err
}

func (p *plug) pull() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pulled = true
	for _, conn := range p.conns {
		conn.Close()
	}
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
