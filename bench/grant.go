package main

// The minimal work of a lock that is granted by a release: the limit of a hand-off.
//
// Rules: a release is one script of the commands that no such lock can omit. It deletes the record, takes the next
// waiter, writes the record of that waiter, and notifies it. This is not a usable lock: it renews no lease, and a
// waiter that crashed, a lost message or a late request blocks it.

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// KEYS are the record and the list of waiters. ARGV are the wait, which begins with its client, and the lease in
// milliseconds.
var (
	bareTake = redis.NewScript(`
if redis.call('set', KEYS[1], ARGV[1], 'nx', 'px', ARGV[2]) then
	return 1
end
redis.call('rpush', KEYS[2], ARGV[1])
return 0`)
	bareGrant = redis.NewScript(`
redis.call('del', KEYS[1])
local next = redis.call('lpop', KEYS[2])
if next then
	redis.call('set', KEYS[1], next, 'px', ARGV[2])
	return redis.call('publish', KEYS[1] .. next:sub(1, 36), next)
end
return 0`)
)

type grantPeer struct {
	rdb     redis.UniversalClient
	id      string
	lease   int64 // ms
	channel *redis.PubSub
	last    atomic.Int64 // the number of the last wait

	mu    sync.Mutex // guards waits
	waits map[string]chan struct{}
}

// openGrant returns a peer for one name, "bench".
func openGrant(s setting) (peer, error) {
	p := &grantPeer{
		rdb:   s.client(),
		id:    uuid.NewString(),
		lease: s.lease.Milliseconds(),
		waits: make(map[string]chan struct{}),
	}
	p.channel = p.rdb.Subscribe(context.Background(), "{bench}"+p.id)
	if _, err := p.channel.Receive(context.Background()); err != nil {
		p.Close()
		return nil, err
	}
	go p.listen()
	return p, nil
}

// listen returns when the channel is closed.
func (p *grantPeer) listen() {
	for {
		message, err := p.channel.ReceiveMessage(context.Background())
		if err != nil {
			return
		}
		p.mu.Lock()
		heard := p.waits[message.Payload]
		p.mu.Unlock()
		if heard != nil {
			heard <- struct{}{}
		}
	}
}

// begin returns a new wait, and the channel on which its grant is delivered, once.
func (p *grantPeer) begin() (wait string, heard chan struct{}) {
	wait, heard = p.id+":"+strconv.FormatInt(p.last.Add(1), 10), make(chan struct{}, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waits[wait] = heard
	return wait, heard
}

func (p *grantPeer) end(wait string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waits, wait)
}

func (p *grantPeer) Acquire(ctx context.Context, name string) (func() error, error) {
	wait, heard := p.begin()
	defer p.end(wait)
	taken, err := p.run(ctx, bareTake, name, wait)
	if err != nil {
		return nil, err
	}
	if !taken {
		select {
		case <-heard:
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), errors.New("the bare grant was lost"))
		}
	}
	return func() error {
		_, err := p.run(context.WithoutCancel(ctx), bareGrant, name, wait)
		return err
	}, nil
}

func (p *grantPeer) run(ctx context.Context, script *redis.Script, name, wait string) (bool, error) {
	return script.Run(ctx, p.rdb, []string{"{" + name + "}", "{" + name + "}:waiters"}, wait, p.lease).Bool()
}

func (p *grantPeer) Close() {
	_ = p.channel.Close() // the error does not matter now
	_ = p.rdb.Close()
}
