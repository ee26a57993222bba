package main

// The minimal work of readers that a writer wakes: the limits of a read/write lock.
//
// Rules: a release of the writer is one script of the two commands that no such lock can omit: it deletes the record,
// and sends one message to all. Then each reader asks by itself, with one request ("bare wake"): this is the minimum if
// waiting readers are not known in Redis, as with Redisson's records. Or the readers read without a request ("bare
// broadcast"): nothing can be faster, and a release that grants the lock to all readers can at best come close. Neither
// is a usable lock: no lease is renewed, a writer excludes no readers that read already, and a lost message blocks.

import (
	"context"
	"errors"
	"sync"

	"github.com/redis/go-redis/v9"
)

// KEYS are the record of the writer and the number of readers. ARGV is the lease in milliseconds.
var (
	bareWrite = redis.NewScript(`
if redis.call('set', KEYS[1], 'write', 'nx', 'px', ARGV[1]) then
	return 1
end
return 0`)
	bareFree = redis.NewScript(`
redis.call('del', KEYS[1])
return redis.call('publish', KEYS[1], 'free')`)
	bareShare = redis.NewScript(`
if redis.call('exists', KEYS[1]) == 1 then
	return 0
end
redis.call('incr', KEYS[2])
return redis.call('pexpire', KEYS[2], ARGV[1])`)
	bareLeave = redis.NewScript(`return redis.call('decr', KEYS[2])`)
)

// A sharer is a peer whose lock readers can share. Its Acquire is that of a writer.
type sharer interface {
	peer
	Share(ctx context.Context, name string) (release func() error, err error)
}

type broadcastPeer struct {
	rdb     redis.UniversalClient
	lease   int64 // ms
	asks    bool  // a reader asks after the message
	channel *redis.PubSub

	mu   sync.Mutex // guards free
	free chan struct{}
}

// openBroadcast returns a function that opens a peer for one name, "bench".
func openBroadcast(asks bool) func(setting) (peer, error) {
	return func(s setting) (peer, error) {
		p := &broadcastPeer{rdb: s.client(), lease: s.lease.Milliseconds(), asks: asks, free: make(chan struct{})}
		p.channel = p.rdb.Subscribe(context.Background(), "{bench}")
		if _, err := p.channel.Receive(context.Background()); err != nil {
			p.Close()
			return nil, err
		}
		go p.listen()
		return p, nil
	}
}

// listen returns when the channel is closed.
func (p *broadcastPeer) listen() {
	for {
		if _, err := p.channel.ReceiveMessage(context.Background()); err != nil {
			return
		}
		p.mu.Lock()
		close(p.free)
		p.free = make(chan struct{})
		p.mu.Unlock()
	}
}

// next returns a channel that is closed by the next message.
func (p *broadcastPeer) next() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.free
}

// wait asks with a script until it succeeds, after each message. It asks only once unless asks is set.
func (p *broadcastPeer) wait(ctx context.Context, script *redis.Script, name string, asks bool) error {
	for {
		freed := p.next()
		taken, err := p.run(ctx, script, name)
		if taken || err != nil {
			return err
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), errors.New("the bare message was lost"))
		}
		if !asks {
			return nil
		}
	}
}

func (p *broadcastPeer) Acquire(ctx context.Context, name string) (func() error, error) {
	if err := p.wait(ctx, bareWrite, name, true); err != nil {
		return nil, err
	}
	return func() error {
		_, err := p.run(context.WithoutCancel(ctx), bareFree, name)
		return err
	}, nil
}

func (p *broadcastPeer) Share(ctx context.Context, name string) (func() error, error) {
	if err := p.wait(ctx, bareShare, name, p.asks); err != nil {
		return nil, err
	}
	return func() error {
		_, err := p.run(context.WithoutCancel(ctx), bareLeave, name)
		return err
	}, nil
}

func (p *broadcastPeer) run(ctx context.Context, script *redis.Script, name string) (bool, error) {
	return script.Run(ctx, p.rdb, []string{"{" + name + "}", "{" + name + "}:readers"}, p.lease).Bool()
}

func (p *broadcastPeer) Close() {
	_ = p.channel.Close() // the error does not matter now
	_ = p.rdb.Close()
}
