package testredis

// One connection through the proxy.
//
// Rules: there are four goroutines, a reader and a writer for each direction, with a line of frames between them.
// Readers never wait for writers, so they notice at once when data arrives or a connection is closed; only writers
// wait. Replies belong to requests in order, and a RESP3 push belongs to none. On a pub/sub connection replies cannot
// be distinguished from messages, so the fault of a reply is applied to the next frame that the server sends.

import (
	"bufio"
	"context"
	"io"
	"net"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/waitgroup"
)

type session struct {
	proxy    *Proxy
	client   net.Conn
	server   net.Conn
	requests *line // from client to server
	replies  *line // from server to client

	mu     sync.Mutex // guards pubsub and owed
	pubsub bool       // the client has subscribed
	owed   []reply    // the replies that the server has not sent yet
}

// A reply is a reply that the server owes.
type reply struct {
	rule *Rule // whose fault is applied to it; nil: none
	last bool  // the connection of the client is closed after it
}

// serve forwards everything between a client and the server until both connections are closed.
func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.clients, client)
	}()

	server, err := new(net.Dialer).DialContext(p.ctx, "tcp", p.upstream)
	if err != nil {
		return // the client sees that its connection is closed
	}
	defer server.Close()
	stop := context.AfterFunc(p.ctx, func() { // readers wake up only when their connection is closed
		_ = client.Close()
		_ = server.Close()
	})
	defer stop()

	s := &session{proxy: p, client: client, server: server, requests: newLine(), replies: newLine()}
	var all sync.WaitGroup
	waitgroup.Go(&all, s.readRequests)
	waitgroup.Go(&all, s.writeRequests)
	waitgroup.Go(&all, s.readReplies)
	waitgroup.Go(&all, s.writeReplies)
	all.Wait()
}

func (s *session) readRequests() {
	r := bufio.NewReader(s.client)
	for {
		raw, cmd, err := readRequest(r)
		if err != nil {
			break
		}
		if !s.request(raw, cmd) {
			_, _ = io.Copy(io.Discard, r) // until either side closes the connection
			break
		}
	}
	s.requests.add(s.end())
	s.replies.add(s.end()) // later replies have no reader
}

// request handles a request. It returns false if the request was dropped and nothing may follow it.
func (s *session) request(raw []byte, cmd []string) bool {
	f := s.frame(raw)
	rule := s.proxy.ruleFor(cmd)
	switch rule.kind() {
	case dropRequest:
		s.endWhenAnswered()
		rule.fire()
		return false
	case delayRequest:
		f.due = f.due.Add(rule.fault.delay)
		rule.fire()
	case holdRequest:
		f.released = rule.released
		rule.fire()
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if Command("subscribe")(cmd) || Command("psubscribe")(cmd) || Command("ssubscribe")(cmd) {
		s.pubsub = true
	}
	switch rule.kind() {
	case loseReply, stallReply, delayReply:
		s.owed = append(s.owed, reply{rule: rule})
	default:
		if !s.pubsub {
			s.owed = append(s.owed, reply{})
		}
	}
	s.requests.add(f) // after owed, because its reply must find the entry there
	return true
}

// endWhenAnswered closes the connection of the client after all replies that are owed.
func (s *session) endWhenAnswered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.owed); n > 0 {
		s.owed[n-1].last = true
		return
	}
	s.replies.add(s.end())
}

func (s *session) readReplies() {
	r := bufio.NewReader(s.server)
	silent := false // after a StallReply
	for {
		raw, err := readFrame(r)
		if err != nil {
			break
		}
		silent = s.reply(raw, silent)
	}
	if !silent {
		s.replies.add(s.end())
	}
}

// reply handles a reply or a push, and reports whether the connection is silent from now on.
func (s *session) reply(raw []byte, silent bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var owed reply
	if len(s.owed) > 0 && (raw[0] != '>' || s.pubsub) {
		owed, s.owed = s.owed[0], s.owed[1:]
	}
	f := s.frame(raw)
	switch owed.rule.kind() {
	case loseReply:
		f = s.end()
		owed.rule.fire()
	case stallReply:
		silent = true
		owed.rule.fire()
	case delayReply:
		f.due = f.due.Add(owed.rule.fault.delay)
		owed.rule.fire()
	}
	if silent {
		return true
	}
	s.replies.add(f)
	if owed.last {
		s.replies.add(s.end())
	}
	return false
}

func (s *session) writeRequests() {
	s.forward(s.requests, s.server)
	// Only the write side: the server must receive everything before it, and then closes the connection itself.
	_ = s.server.(*net.TCPConn).CloseWrite()
}

func (s *session) writeReplies() {
	s.forward(s.replies, s.client)
	_ = s.client.Close()
}

// forward writes the frames of a line, each when it is due, until the end of the line or of the proxy.
func (s *session) forward(l *line, to net.Conn) {
	for {
		f, ok := l.next(s.proxy.ctx)
		if !ok || !f.wait(s.proxy.ctx) || !s.proxy.pass() || f.raw == nil {
			return
		}
		_, _ = to.Write(f.raw) // if the peer has gone, the data is lost, as on a network
	}
}

// frame returns a frame of data that has just arrived.
func (s *session) frame(raw []byte) frame {
	return frame{raw: raw, due: time.Now().Add(time.Duration(s.proxy.latency.Load()))}
}

// end returns the frame that ends a line.
func (s *session) end() frame { return s.frame(nil) }

// A frame is data on its way to a peer.
type frame struct {
	raw      []byte          // nil: the end
	due      time.Time       // it is not written before this time
	released <-chan struct{} // it is not written before this is closed; nil: it is not held
}

// wait waits until the frame may be written. It returns false if ctx is done first.
func (f frame) wait(ctx context.Context) bool {
	if d := time.Until(f.due); d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return false
		}
	}
	if f.released != nil {
		select {
		case <-f.released:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// A line holds the frames of one direction of a connection, in order. It has no limit.
type line struct {
	added chan struct{} // holds a token when frames may have been added

	mu     sync.Mutex // guards frames
	frames []frame
}

func newLine() *line { return &line{added: make(chan struct{}, 1)} }

func (l *line) add(f frame) {
	l.mu.Lock()
	l.frames = append(l.frames, f)
	l.mu.Unlock()
	select {
	case l.added <- struct{}{}:
	default: // there is a token already
	}
}

// next waits for the next frame. It returns false if ctx is done first.
func (l *line) next(ctx context.Context) (frame, bool) {
	for {
		if f, ok := l.take(); ok {
			return f, true
		}
		select {
		case <-l.added:
		case <-ctx.Done():
			return frame{}, false
		}
	}
}

func (l *line) take() (frame, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.frames) == 0 {
		return frame{}, false
	}
	f := l.frames[0]
	l.frames = l.frames[1:]
	return f, true
}
