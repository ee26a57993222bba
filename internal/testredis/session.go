package testredis

// One connection through the proxy.
//
// Rules: four goroutines, a reader and a writer for each direction, with a line
// of frames between them. Readers never wait for writers, so they see at once
// what arrives and who goes; only writers wait. Replies belong to requests in
// order; a RESP3 push belongs to none. On a pub/sub connection replies cannot be
// told from messages: there the fault of a reply hits what the server sends next.

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
	owed   []reply    // what the server has yet to answer
}

// A reply is one that the server owes.
type reply struct {
	rule *Rule // whose fault it suffers; nil: none
	last bool  // the connection of the client is closed behind it
}

// serve passes everything between a client and the server, until both have gone.
func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.clients, client)
	}()

	server, err := new(net.Dialer).DialContext(p.ctx, "tcp", p.upstream)
	if err != nil {
		return // the client sees its connection closed
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

// request takes in a request; false: it was dropped, and nothing may follow it.
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
	s.requests.add(f) // behind owed: its reply must find it there
	return true
}

// endWhenAnswered closes the connection of the client behind all replies that are owed.
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
	silent := false // from a StallReply on
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

// reply takes in a reply or a push, and tells whether the connection is silent from now on.
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
	// Half of it, for the server must see everything before it, and closes in turn.
	_ = s.server.(*net.TCPConn).CloseWrite()
}

func (s *session) writeReplies() {
	s.forward(s.replies, s.client)
	_ = s.client.Close()
}

// forward writes the frames of a line, each in its time, until its end or that of the proxy.
func (s *session) forward(l *line, to net.Conn) {
	for {
		f, ok := l.next(s.proxy.ctx)
		if !ok || !f.wait(s.proxy.ctx) || !s.proxy.pass() || f.raw == nil {
			return
		}
		_, _ = to.Write(f.raw) // a peer that has gone gets what it gets on a network: nothing
	}
}

// frame makes a frame of what just arrived.
func (s *session) frame(raw []byte) frame {
	return frame{raw: raw, due: time.Now().Add(time.Duration(s.proxy.latency.Load()))}
}

// end makes the frame that ends a line.
func (s *session) end() frame { return s.frame(nil) }

// A frame is on its way to a peer.
type frame struct {
	raw      []byte          // nil: the end
	due      time.Time       // not before
	released <-chan struct{} // not before it is closed; nil: not held
}

// wait waits until the frame may go on; false: ctx ended before.
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

// A line is one direction of a connection: frames in order, any number of them.
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
	default: // there is a token
	}
}

// next waits for the next frame; false: ctx ended before.
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
