// Package testredis provides Redis servers for the tests of this module: a real server as a child process, a
// miniredis, and a proxy that injects faults.
package testredis

// A real redis-server as a child process.
//
// Rules: a server belongs to one test and never outlives it. It listens only on the loopback interface and keeps no
// data on disk. The process that answers at the port must be the one that was started, because otherwise two tests
// would use the same server. While the server is down, no process may answer there.

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Server is a redis-server that belongs to one test.
type Server struct {
	t    testing.TB
	bin  string
	dir  string
	env  []string // in addition to that of the test
	args []string
	port int

	clock string        // set by StartJumpy: the file with the time by which its clock is ahead
	ahead time.Duration // that time

	mu   sync.Mutex // guards proc
	proc *process
}

// Available reports whether there is a redis-server: the one that the environment variable RELOCK_REDIS_SERVER names,
// or else the one on the PATH.
func Available() bool {
	_, err := findServer()
	return err == nil
}

func findServer() (string, error) {
	name := os.Getenv("RELOCK_REDIS_SERVER")
	if name == "" {
		name = "redis-server"
	}
	return exec.LookPath(name)
}

// Start starts a redis-server (7.0 or later) on a free port and waits until it answers. It is killed when the test
// ends. args are passed to the server, such as "--maxmemory", "4mb"; they must allow PING and INFO for a client
// without a password. Without a redis-server the test is skipped, or fails if the environment has CI=true.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return launch(t, func(int) []string { return args })
}

// launch is like Start, with arguments that depend on the port.
func launch(t testing.TB, args func(port int) []string) *Server {
	t.Helper()
	return startWith(t, nil, args)
}

// startWith is like launch, with additional environment variables.
func startWith(t testing.TB, env []string, args func(port int) []string) *Server {
	t.Helper()
	bin, err := findServer()
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("this test needs a redis-server: %v", err)
		}
		countSkipped(t)
		t.Skipf("this test needs a redis-server on the PATH or named by RELOCK_REDIS_SERVER: %v", err)
	}
	Enter(t)
	s := &Server{t: t, bin: bin, dir: t.TempDir(), env: env}
	if err := os.WriteFile(s.config(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		// The port is below the range of outgoing connections. Each server holds the UDP port of the same number
		// until its test ends, so that no other test starts a server there between Kill and Restart.
		s.port = 20000 + rand.IntN(10000)
		var claim net.PacketConn
		if claim, err = net.ListenPacket("udp", s.Addr()); err != nil {
			continue
		}
		s.args = args(s.port)
		if err = s.start(); err == nil {
			t.Cleanup(func() { _ = claim.Close() })
			t.Cleanup(s.stop)
			return s
		}
		_ = claim.Close()
	}
	t.Fatalf("redis-server does not start: %v", err)
	return nil
}

// Addr returns the address of the server, which a Restart does not change.
func (s *Server) Addr() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
}

// Client returns a client of the server. It is closed when the test ends.
func (s *Server) Client(opts ...func(*redis.Options)) *redis.Client {
	s.t.Helper()
	return Client(s.t, s.Addr(), opts...)
}

// Pid returns the process ID of the server.
func (s *Server) Pid() int { return s.process().cmd.Process.Pid }

// Freeze pauses the server with SIGSTOP: its connections stay open, and nothing is answered. After Freeze has
// returned, no command runs.
func (s *Server) Freeze() {
	s.t.Helper()
	p := s.process()
	if err := p.cmd.Process.Signal(sigstop); err != nil {
		s.t.Fatalf("freeze redis-server: %v", err)
	}
	Await(s.t, "redis-server is frozen", 5*time.Second, func() bool { return isStopped(p.cmd.Process.Pid) })
}

// Thaw resumes a paused server with SIGCONT.
func (s *Server) Thaw() {
	s.t.Helper()
	if err := s.process().cmd.Process.Signal(sigcont); err != nil {
		s.t.Fatalf("thaw redis-server: %v", err)
	}
}

// Kill kills the server with SIGKILL, paused or not, and waits until it has ended.
func (s *Server) Kill() { s.process().kill() }

// Restart starts the server again, on the same port and without its data. A server that still runs is killed first.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	if err := s.start(); err != nil {
		s.t.Fatalf("redis-server does not start again: %v", err)
	}
}

func (s *Server) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// stop ends the server together with the test.
func (s *Server) stop() {
	p := s.process()
	_ = p.cmd.Process.Signal(sigcont) // it may be paused, or have ended
	p.kill()
}

// start runs a server at s.port and waits until it answers.
func (s *Server) start() error {
	args := append([]string{
		s.config(),
		"--bind", "127.0.0.1",
		"--port", strconv.Itoa(s.port),
		"--dir", s.dir,
		"--save", "",
		"--appendonly", "no",
		"--enable-debug-command", "yes",
	}, s.args...)
	p, err := startProcess(s.bin, args, s.env, filepath.Join(s.dir, "redis.log"))
	if err != nil {
		return err
	}
	if err := p.awaitAnswer(s.Addr()); err != nil {
		p.kill()
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc = p
	return nil
}

// config returns the name of a file that is empty except for what the server writes into it. A sentinel requires the
// file, and makes the servers whose role it changes write to it.
func (s *Server) config() string { return filepath.Join(s.dir, "redis.conf") }

// A process is one run of redis-server.
type process struct {
	cmd  *exec.Cmd
	log  string
	gone chan struct{} // closed when it has ended and was waited for
}

func startProcess(bin string, args, env []string, log string) (*process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the child has its own
	cmd := exec.Command(bin, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out, out
	dieWithUs(cmd)

	p := &process{cmd: cmd, log: log, gone: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The child dies with the thread that started it, and Go may end any thread except one that is locked to a
		// running goroutine.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.gone)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it always returns an error, because the process is killed
		}
	}()
	return p, <-started
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.gone
}

// awaitAnswer waits until this process, and no other, answers at addr.
func (p *process) awaitAnswer(addr string) error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		pid, err := whoAnswers(addr)
		if err == nil && pid == p.cmd.Process.Pid {
			return nil
		}
		if err == nil {
			return fmt.Errorf("another redis-server has %s: process %d", addr, pid)
		}
		select {
		case <-p.gone: // also if another process has the port
			log, _ := os.ReadFile(p.log)
			return fmt.Errorf("it ended at once: %s", bytes.TrimSpace(log))
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no answer: %w", err)
		}
	}
}

// whoAnswers asks the server at addr for its process ID.
func whoAnswers(addr string) (int, error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return 0, err
	}
	if _, err := conn.Write([]byte("PING\r\nINFO server\r\n")); err != nil {
		return 0, err
	}
	r := bufio.NewReader(conn)
	pong, err := readFrame(r)
	if err != nil {
		return 0, err
	}
	if string(pong) != "+PONG\r\n" {
		return 0, fmt.Errorf("PING was answered with %q", pong)
	}
	info, err := readFrame(r)
	if err != nil {
		return 0, err
	}
	_, after, found := bytes.Cut(info, []byte("\r\nprocess_id:"))
	id, _, _ := bytes.Cut(after, []byte("\r\n"))
	if !found {
		return 0, errors.New("INFO names no process_id")
	}
	return strconv.Atoi(string(id))
}
