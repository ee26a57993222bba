// Leader shows work that only one of several processes may do, and that stops when its process is no longer the leader.
// Three candidates, each with connections of its own, take part in the same election. Each term has a token that is
// greater than that of the term before.
//
//	go run ./examples/leader
//
// The program cuts the leader off from Redis, by closing its connections. No message can tell the leader that its term
// is over: it has to find out by itself. The context that Lead passes to its work is canceled by the leader's own
// clock, shortly before the lease in Redis expires, and only then can another candidate be elected. So no two
// candidates lead at the same time.
//
// The work must check that context, and nothing else. A write that was already sent cannot be revoked by any lock: see
// examples/postgres.
//
// Then the second leader resigns, by returning. The third candidate is the leader after a round trip or two, because
// the release elects it. An observer watches the election. It asks ten times in each lease, and misses shorter
// vacancies.
//
// It needs only Go: without REDIS_URL (redis://user:password@host:port/db) it runs on an embedded miniredis.
//
// Rules: the exit status is 1 if two candidates lead at the same time.
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

const lease = time.Second // renewed every third of it

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "leader:", err)
		os.Exit(1)
	}
}

func run() error {
	redis.SetLogger(quiet{}) // it would log every connection that is closed
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

	looking := make(chan error, 1)
	go func() { looking <- office.observe(campaign, options, name) }()

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
	if err := <-looking; err != nil {
		return err
	}
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

	election *relock.Election
}

// campaign leads whenever it can, until ctx is done or it has resigned.
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

	c.election = client.NewElection(name)
	for {
		err := c.election.Lead(ctx, c.lead) // blocks until this candidate is the leader
		switch {
		case errors.Is(err, errResigned):
			return nil
		case errors.Is(err, relock.ErrLockLost):
			return nil // another program might wait a little and campaign again
		case err != nil:
			return err
		}
	}
}

var errResigned = errors.New("resigned")

// lead is the work of the leader. It continues until ctx is canceled.
func (c *candidate) lead(ctx context.Context) error {
	number, err := c.election.Token(ctx)
	if err != nil {
		return err
	}
	c.office.begin(c, number)
	defer c.office.end()
	step := time.NewTicker(50 * time.Millisecond)
	defer step.Stop()
	steps := 0
	for {
		select {
		case <-step.C:
			steps++ // the work that only the leader may do, with ctx
		case <-c.resign:
			c.office.say("%s resigns after %d steps", c.name, steps)
			return errResigned
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), relock.ErrLockLost) {
				c.office.say("%s stops after %d steps: the lead is lost", c.name, steps)
			} else {
				c.office.say("%s stops after %d steps: the program ends", c.name, steps)
			}
			return ctx.Err()
		}
	}
}

// An office records who leads, and what the observer sees.
type office struct {
	start   time.Time
	elected chan *candidate

	mu        sync.Mutex // guards below
	now, most int
}

func (o *office) begin(c *candidate, number int64) {
	o.mu.Lock()
	o.now++
	o.most = max(o.most, o.now)
	o.mu.Unlock()
	o.say("%s leads term %d", c.name, number)
	o.elected <- c
}

// observe prints who leads, as seen by a process that is not a candidate.
func (o *office) observe(ctx context.Context, options *redis.Options, name string) error {
	rdb := redis.NewClient(options)
	defer rdb.Close()
	client, err := relock.New(rdb, relock.WithPollInterval(lease/10)) // Observe asks as often
	if err != nil {
		return err
	}
	defer client.Close()
	for leader, err := range client.NewElection(name).Observe(ctx) {
		switch {
		case err != nil:
			return err
		case leader.Vacant():
			o.say("  seen: no leader")
		default:
			o.say("  seen: the leader of term %d", leader.Token)
		}
	}
	return nil
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

// A plug is the connection of a candidate to Redis, which can be cut.
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
