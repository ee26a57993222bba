package bubble

// The Redis server: a miniredis that runs one command after the other, with a clock that can be moved, and with the
// faults of a server.
//
// Rules: every command is run by the method run, so that commands run in the order in which they arrived. Each takes
// a moment of virtual time, in which the messages of the previous command reach their connections. miniredis reads
// the clock of the bubble by itself until the clock of Redis is moved; from then on the clock is set before each
// command. Leases expire by the wall clock, as those of a real Redis server do, so they last longer if the clock goes
// back.

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

const (
	service = 20 * time.Microsecond // the duration of one command
	kept    = 80                    // the number of commands for Recent
)

// Redis is a server in memory.
type Redis struct {
	mini *miniredis.Miniredis
	done chan struct{} // closed when run has returned

	running sync.Mutex // held while a command runs

	mu      sync.Mutex // guards below
	wake    *sync.Cond
	queue   []request
	links   []*Link
	ahead   time.Duration // of the clock, relative to that of the bubble
	moved   bool          // the clock was moved at some time
	down    bool
	frozen  bool
	closed  bool
	deny    func(cmd string, args []string) bool
	full    bool
	sources map[string]string // digest that clients send -> source
	recent  []Command
	count   int

	// Guarded by running.
	listening map[*server.Peer]bool // has subscribed
	top       *server.Peer          // whose command runs
	from      *Link                 // the link of the command, or nil
	wrote     bool                  // the script that runs has written something
}

type request struct {
	conn *conn
	args []string
	end  bool // of the connection
}

// A Command is a command that Redis has run.
type Command struct {
	At   time.Time
	Link string
	Args []string
}

// Start starts a server. It must be called in the bubble in which the server is used.
func Start() *Redis {
	r := &Redis{mini: miniredis.NewMiniRedis(), done: make(chan struct{}), sources: map[string]string{},
		listening: map[*server.Peer]bool{}}
	r.wake = sync.NewCond(&r.mu)
	r.mini.ClockTTL(true)
	first, err := r.mini.Dial() // creates a server without a listener
	if err != nil {
		panic(err) // it never fails
	}
	_ = first.Close()
	r.mini.Server().SetPreHook(r.hook)
	go r.run()
	return r
}

// Close stops the server permanently.
func (r *Redis) Close() {
	r.Stop()
	r.mu.Lock()
	r.closed = true
	r.wake.Broadcast()
	r.mu.Unlock()
	<-r.done
	r.running.Lock()
	peers := slices.Collect(maps.Keys(r.listening))
	r.running.Unlock()
	for _, peer := range peers {
		r.forget(peer)
	}
	r.mini.Close()
}

// Link creates a link for a process of this name. Its random decisions depend on seed.
func (r *Redis) Link(name string, seed uint64) *Link {
	l := &Link{Name: name, redis: r, rng: rand.New(rand.NewPCG(seed, 1)), conns: map[*conn]struct{}{}}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.links = append(r.links, l)
	return l
}

func (r *Redis) accepts() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.down && !r.frozen && !r.closed
}

func (r *Redis) enqueue(req request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down && !req.end {
		return
	}
	r.queue = append(r.queue, req)
	r.wake.Signal()
}

func (r *Redis) run() {
	defer close(r.done)
	for {
		r.mu.Lock()
		for (len(r.queue) == 0 || r.frozen) && !r.closed {
			r.wake.Wait()
		}
		if len(r.queue) == 0 {
			r.mu.Unlock()
			return
		}
		req := r.queue[0]
		r.queue = r.queue[1:]
		r.mu.Unlock()
		time.Sleep(service)
		r.serve(req)
	}
}

func (r *Redis) serve(req request) {
	c := req.conn
	if req.end {
		c.link.mu.Lock()
		c.mute = true
		c.link.mu.Unlock()
		r.forget(c.peer)
		return
	}
	args := req.args
	r.note(c.link.Name, args)
	var cut bool
	if verb := strings.ToLower(args[0]); verb == "eval" || verb == "evalsha" {
		lost, stalled := c.link.lost()
		cut = lost
		if lost || stalled {
			c.link.mu.Lock()
			c.mute = true
			c.link.mu.Unlock()
		}
	}
	r.dispatchFrom(c.link, c.peer, args)
	if cut {
		c.link.mu.Lock()
		c.cut()
		c.link.mu.Unlock()
	}
}

// forget ends the subscriptions of a connection that was closed.
func (r *Redis) forget(peer *server.Peer) {
	r.running.Lock()
	listens := r.listening[peer]
	delete(r.listening, peer)
	r.running.Unlock()
	if listens {
		r.dispatch(peer, []string{"unsubscribe"})
		r.dispatch(peer, []string{"punsubscribe"})
	}
}

// note records a command.
func (r *Redis) note(link string, args []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	if r.recent = append(r.recent, Command{time.Now(), link, args}); len(r.recent) > 2*kept {
		r.recent = append([]Command(nil), r.recent[kept:]...)
	}
	if len(args) > 1 && strings.EqualFold(args[0], "eval") {
		r.sources[shaOf(args[1])] = args[1]
	}
}

func shaOf(source string) string {
	sum := sha1.Sum([]byte(source))
	return hex.EncodeToString(sum[:])
}

func (r *Redis) dispatch(peer *server.Peer, args []string) { r.dispatchFrom(nil, peer, args) }

func (r *Redis) dispatchFrom(l *Link, peer *server.Peer, args []string) {
	r.running.Lock()
	defer r.running.Unlock()
	r.tick()
	r.top, r.from, r.wrote = peer, l, false
	if verb := strings.ToLower(args[0]); verb == "subscribe" || verb == "psubscribe" {
		r.listening[peer] = true
	}
	r.mini.Server().Dispatch(peer, args)
	peer.Flush()
}

// tick sets the clock of miniredis if it was moved.
func (r *Redis) tick() {
	r.mu.Lock()
	moved, ahead := r.moved, r.ahead
	r.mu.Unlock()
	if moved {
		r.mini.SetTime(time.Now().Add(ahead))
	}
}

// hook refuses commands, including those of scripts.
func (r *Redis) hook(c *server.Peer, cmd string, args ...string) bool {
	if cmd == "PUBSUB" && len(args) > 0 && strings.EqualFold(args[0], "shardnumsub") {
		c.WriteError("ERR unknown subcommand")
		return true
	}
	r.mu.Lock()
	deny, full := r.deny, r.full
	r.mu.Unlock()
	if deny != nil && deny(cmd, args) || r.from != nil && r.from.denies(cmd, args) {
		c.WriteError("NOPERM User default has no permissions to run the '" + strings.ToLower(cmd) + "' command")
		return true
	}
	if r.top == c {
		return false
	}
	grows := growing[cmd]
	if full && grows && !r.wrote {
		c.WriteError("OOM command not allowed when used memory > 'maxmemory'.")
		return true
	}
	r.wrote = r.wrote || grows || cmd == "DEL" || cmd == "HDEL" || cmd == "ZREM" || cmd == "LREM" || cmd == "LPOP" ||
		cmd == "PEXPIRE"
	return false
}

// growing contains those commands of scripts that need memory.
var growing = map[string]bool{"SET": true, "HSET": true, "ZADD": true, "RPUSH": true, "LPUSH": true, "INCR": true,
	"INCRBY": true, "DECR": true, "DECRBY": true, "HINCRBY": true, "ZINCRBY": true}

// Stop stops the server: connections are closed, and new ones are refused. It keeps its data.
func (r *Redis) Stop() {
	r.mu.Lock()
	r.down = true
	r.queue = slices.DeleteFunc(r.queue, func(req request) bool { return !req.end })
	links := r.links
	r.mu.Unlock()
	for _, l := range links {
		l.Cut()
	}
	r.FlushScripts()
}

// Return starts the server again, with the data that it has kept.
func (r *Redis) Return() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = false
}

// Freeze pauses the server as SIGSTOP does, and Thaw resumes it. It refuses new connections in between.
func (r *Redis) Freeze() { r.setFrozen(true) }
func (r *Redis) Thaw()   { r.setFrozen(false) }

func (r *Redis) setFrozen(frozen bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frozen = frozen
	r.wake.Signal()
}

// FlushScripts makes Redis forget all scripts.
func (r *Redis) FlushScripts() {
	r.dispatch(server.NewPeer(bufio.NewWriter(io.Discard)), []string{"script", "flush"})
}

// MoveClock moves the clock of Redis by a positive or negative time.
func (r *Redis) MoveClock(by time.Duration) {
	r.running.Lock()
	defer r.running.Unlock()
	r.mu.Lock()
	r.moved = true
	r.ahead += by
	r.mu.Unlock()
	if by < 0 {
		r.mini.FastForward(by)
	}
	r.tick()
	_ = r.mini.DB(0).Keys() // removes the keys that have expired
}

// Now returns the time on the clock of Redis.
func (r *Redis) Now() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Add(r.ahead)
}

// Deny makes Redis refuse the commands for which deny returns true. If deny is nil, no command is refused.
func (r *Redis) Deny(deny func(cmd string, args []string) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deny = deny
}

// Fill sets whether Redis refuses commands that need memory.
func (r *Redis) Fill(full bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.full = full
}

// Recent returns the last commands that Redis has run.
func (r *Redis) Recent() []Command {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Command(nil), r.recent[max(0, len(r.recent)-kept):]...)
}

// Source returns the script with this digest as a client has sent it, or "" if none has.
func (r *Redis) Source(sha string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sources[sha]
}

// Count returns the number of commands that Redis has run.
func (r *Redis) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// Look calls f with the data of Redis while no command runs. It takes no time.
func (r *Redis) Look(f func(*miniredis.Miniredis)) {
	r.running.Lock()
	defer r.running.Unlock()
	r.tick()
	f(r.mini)
}

// Watch subscribes to all channels with a pattern, as a tool for people does, until end is called. Redis counts such a
// subscriber when it publishes a message, although it waits for no lock.
func (r *Redis) Watch() (end func()) {
	var s *miniredis.Subscriber
	r.Look(func(m *miniredis.Miniredis) { s = m.NewSubscriber() })
	s.Psubscribe("*")
	go func() {
		for range s.Pmessages() {
		}
	}()
	return func() {
		r.Look(func(*miniredis.Miniredis) { // no message is sent meanwhile
			s.Punsubscribe("*")
			s.Close()
		})
	}
}

// A Snapshot is the data of Redis at some time.
type Snapshot struct {
	at   time.Time
	keys []keyed
}

type keyed struct {
	name, kind string
	ttl        time.Duration // 0: none
	text       string
	hash       []string
	list       []string
	scores     map[string]float64
}

// Save returns the data of Redis.
func (r *Redis) Save() (s Snapshot) {
	r.Look(func(m *miniredis.Miniredis) {
		s.at = time.Now()
		for _, name := range m.Keys() {
			k := keyed{name: name, kind: m.Type(name), ttl: m.TTL(name)}
			switch k.kind {
			case "string":
				k.text, _ = m.Get(name)
			case "hash":
				fields, _ := m.HKeys(name)
				for _, f := range fields {
					k.hash = append(k.hash, f, m.HGet(name, f))
				}
			case "list":
				list, _ := m.List(name) // List returns its own slice
				k.list = slices.Clone(list)
			case "zset":
				scores, _ := m.SortedSet(name) // SortedSet returns its own map
				k.scores = maps.Clone(scores)
			}
			s.keys = append(s.keys, k)
		}
	})
	return s
}

// Restore replaces the data of Redis with that of s, except for keys that have expired since. The zero Snapshot is
// empty.
func (r *Redis) Restore(s Snapshot) {
	r.Look(func(m *miniredis.Miniredis) {
		m.FlushAll()
		for _, k := range s.keys {
			if k.ttl > 0 {
				if k.ttl -= time.Since(s.at); k.ttl <= 0 {
					continue
				}
			}
			switch k.kind {
			case "string":
				_ = m.Set(k.name, k.text)
			case "hash":
				m.HSet(k.name, k.hash...)
			case "list":
				_, _ = m.Push(k.name, k.list...)
			case "zset":
				for member, score := range k.scores {
					_, _ = m.ZAdd(k.name, score, member)
				}
			}
			if k.ttl > 0 {
				m.SetTTL(k.name, k.ttl)
			}
		}
	})
}

// String returns the content of s, with one line for each key.
func (s Snapshot) String() string {
	var b strings.Builder
	for _, k := range s.keys {
		fmt.Fprintf(&b, "%s %s", k.kind, k.name)
		if k.ttl > 0 {
			fmt.Fprintf(&b, " (%v)", k.ttl.Round(time.Millisecond))
		}
		switch k.kind {
		case "string":
			fmt.Fprintf(&b, " %q", k.text)
		case "hash":
			fmt.Fprintf(&b, " %q", k.hash)
		case "list":
			fmt.Fprintf(&b, " %q", k.list)
		case "zset":
			fmt.Fprintf(&b, " %v", k.scores)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// parse reads one command and returns its length, or 0 if it is not complete.
func parse(data []byte) (args []string, n int) {
	line := func() (int, bool) {
		i := bytes.Index(data[n:], []byte("\r\n"))
		if i < 1 {
			return 0, false
		}
		v, err := strconv.Atoi(string(data[n+1 : n+i]))
		n += i + 2
		return v, err == nil
	}
	count, ok := line()
	if !ok {
		return nil, 0
	}
	for range count {
		length, ok := line()
		if !ok || len(data) < n+length+2 {
			return nil, 0
		}
		args = append(args, string(data[n:n+length]))
		n += length + 2
	}
	return args, n
}
