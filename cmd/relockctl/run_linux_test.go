package main

// The command run on a terminal, and what only Linux has.

import (
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/testredis"
)

// beginOnTerminal starts relockctl run with args on a terminal of its own, and returns what types on it. The standard
// output of the command is not the terminal, which would echo what is typed.
func beginOnTerminal(t *testing.T, addr string, args ...string) (r *runOf, keys *os.File) {
	t.Helper()
	keys, side := openTerminal(t, 80, 24)
	cmd := command(addr, append([]string{"run"}, args...)...)
	cmd.Stdin = side
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	r = beginAs(t, cmd)
	side.Close()
	return r, keys
}

// The kernel delivers Ctrl-C and Ctrl-\ to the command. If relockctl forwarded them, it would get them twice.
func TestRunOnATerminalDeliversKeysOnce(t *testing.T) {
	s := testredis.Start(t)
	r, keys := beginOnTerminal(t, s.Addr(), "job", "--", "sh", "-c", traps("INT", "QUIT", "USR1")+forever)
	r.prints("ready")
	for range 3 {
		for key, name := range map[string]string{"\x03": "INT", "\x1c": "QUIT"} {
			_, err := io.WriteString(keys, key)
			must(t, err)
			r.prints(name)
			r.signal(syscall.SIGUSR1) // which is forwarded, after what was forwarded before
			r.prints("USR1")
		}
	}
	r.signal(syscall.SIGTERM)
	assert.Equal(t, 128+15, r.ends())
}

// A command in a background process group would be stopped when it reads from the terminal.
func TestRunOnATerminalLetsTheCommandRead(t *testing.T) {
	s := testredis.Start(t)
	r, keys := beginOnTerminal(t, s.Addr(), "job", "--", "sh", "-c", "echo ready; read line; echo \"$line\"")
	r.prints("ready")
	_, err := io.WriteString(keys, "typed\n")
	must(t, err)
	r.prints("typed")
	assert.Zero(t, r.ends(), r.stderr.String())
}

func TestRunOnATerminalEndsTheWait(t *testing.T) {
	s := testredis.Start(t)
	r, _ := beginOnTerminal(t, s.Addr(), "job", "--", "sh", "-c", "echo ready; read line")
	r.prints("ready")
	second, keys := beginOnTerminal(t, s.Addr(), "--wait", "1m", "job", "--", "echo", "started")
	awaitWaiter(t, s, "job")
	_, err := io.WriteString(keys, "\x03")
	must(t, err)
	assert.Equal(t, 128+2, second.ends())
}

// The command is a process without children here, because the kernel kills only that one.
func TestRunThatIsKilledTakesItsCommandAlong(t *testing.T) {
	s := testredis.Start(t)
	for name, begin := range map[string]func() *runOf{
		"without a terminal": func() *runOf {
			return begin(t, s.Addr(), "a", "--", "sh", "-c", "echo ready; exec sleep 1000")
		},
		"on a terminal": func() *runOf {
			r, _ := beginOnTerminal(t, s.Addr(), "b", "--", "sh", "-c", "trap '' HUP; echo ready; exec sleep 1000")
			return r
		},
	} {
		r := begin()
		r.prints("ready")
		r.signal(syscall.SIGKILL)
		assert.Equal(t, -1, r.ends(), name) // which waits until nothing has the standard output open
	}
	assert.True(t, isLocked(t, s, "a"), "until its lease ends")
}

// Whatever ends the command reaches what it has started: also what has left its group, its session and its parent.
func TestRunEndsAllThatTheCommandHasStarted(t *testing.T) {
	t.Parallel()
	const tough = "trap '' TERM HUP USR1; echo ready; while :; do sleep 0.05; done"
	for where, script := range map[string]string{
		"in its group": "(" + tough + ") & ",
		"in a session": `setsid sh -c "` + tough + `" & `,
		"as a daemon":  `(setsid sh -c "(` + tough + `) &" &) & `,
	} {
		for how, end := range map[string]func(r *runOf){
			"TERM":   func(r *runOf) { r.signal(syscall.SIGTERM) },
			"HUP":    func(r *runOf) { r.signal(syscall.SIGHUP) },
			"USR1":   func(r *runOf) { r.signal(syscall.SIGUSR1) },
			"killed": func(r *runOf) { r.input.Close() },
			"lost":   func(*runOf) {},
		} {
			t.Run(where+"/"+how, func(t *testing.T) {
				t.Parallel()
				lease := "0s"
				if how == "lost" {
					lease = "3s"
				}
				s := testredis.Start(t)
				r := begin(t, s.Addr(), "--lease", lease, "--grace", "1s", "job", "--", "sh", "-c",
					script+"read x; kill -9 $$; exit 1")
				r.prints("ready")
				end(r)
				status := r.ends() // which waits until nothing has the standard output open
				assert.Equal(t, how == "lost", status == statusLost, "status %d: %s", status, &r.stderr)
			})
		}
	}
}

// A process that starts another one and ends, again and again, has another number and parent at each look.
func TestRunEndsWhatRunsAway(t *testing.T) {
	t.Parallel()
	const script = `trap '' TERM; sleep 0.01; [ -d "$1" ] && sh -c "$0" "$0" "$1" & exit`
	for i := range 4 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			s := testredis.Start(t)
			r := begin(t, s.Addr(), "--lease", "3s", "--grace", "1s", "job", "--", "sh", "-c",
				`echo ready; setsid sh -c "$0" "$0" "$1" & sleep 1000`, script, t.TempDir())
			r.prints("ready")
			assert.Equal(t, statusLost, r.ends(), r.stderr.String())
			assert.NotContains(t, r.stderr.String(), "warning")
		})
	}
}

// A signal reaches them, too, once each.
func TestRunForwardsSignalsToAllThatTheCommandHasStarted(t *testing.T) {
	s := testredis.Start(t)
	r := begin(t, s.Addr(), "job", "--", "sh", "-c", `trap : USR1; setsid "$0" -c "$1"; exit 3`, "sh",
		"trap 'echo USR1; exit' USR1; "+forever)
	r.prints("ready")
	r.signal(syscall.SIGUSR1)
	r.prints("USR1")
	assert.Equal(t, 3, r.ends())
}

// The terminal has the command in the group of relockctl, whose shell starts another program.
func TestRunOnATerminalEndsAllWithTheLock(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	r, _ := beginOnTerminal(t, s.Addr(), "--lease", "3s", "--grace", "1s", "job", "--", "sh", "-c",
		"(trap '' TERM HUP; echo ready; while :; do sleep 0.05; done); true")
	r.prints("ready")
	assert.Equal(t, statusLost, r.ends())
}

// A process whose parent has ended becomes a child of relockctl, which reaps it: a shell may wait for it with kill -0.
func TestRunReapsWhatLosesItsParent(t *testing.T) {
	s := testredis.Start(t)
	r := begin(t, s.Addr(), "job", "--", "sh", "-c",
		`pid=$( (sleep 0.2 >/dev/null & echo $!) ); while kill -0 $pid; do sleep 0.05; done 2>/dev/null; echo gone`)
	r.prints("gone")
	assert.Zero(t, r.ends())
}

// A shell that relockctl replaces may have children, which are not of the command.
func TestRunLeavesOtherChildrenAlone(t *testing.T) {
	s := testredis.Start(t)
	const script = `exec 3<&0; (read x <&3; echo alive) & exec "$0" run job -- sh -c 'echo ready; read x'`
	cmd := command(s.Addr(), "-c", script, binary)
	cmd.Path, cmd.Args[0] = "/bin/sh", "sh"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	r := beginAs(t, cmd)
	r.prints("ready")
	r.signal(syscall.SIGTERM)
	testredis.Await(t, "the lock is free", soon, func() bool { return !isLocked(t, s, "job") })
	r.input.Close()
	r.prints("alive")
	assert.Equal(t, 128+15, r.ends())
	assert.Empty(t, r.stderr.String())
}

// alone returns a command that has not started what other tests have.
func alone(name string, args ...string) *child {
	c := &child{cmd: exec.Command(name, args...), ownGroup: true, before: map[int]string{}}
	for _, p := range c.below() {
		c.before[p.pid] = p.begun
	}
	return c
}

// A command may leave the process group that it was started in.
func TestSignalsReachACommandThatHasLeftItsGroup(t *testing.T) {
	c := alone("sleep", "10")
	must(t, c.cmd.Start()) // in the group of the test
	c.signal(syscall.SIGKILL)
	_ = c.cmd.Wait() // the result is in ProcessState
	assert.False(t, c.cmd.ProcessState.Exited())
}

// A number may have been given to another process by the time that it gets a signal.
func TestSignalsSpareProcessesWithANumberOfTheCommand(t *testing.T) {
	const real = syscall.Signal(40) // whose trap follows that of WINCH, which others ignore
	start := func() *exec.Cmd {
		cmd := exec.Command("sh", "-c", "trap 'exit 3' WINCH; trap 'exit 4' 40; "+forever)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		_, err = io.ReadFull(out, make([]byte, len("ready")))
		must(t, err)
		return cmd
	}
	spared := func(cmd *exec.Cmd) bool {
		must(t, cmd.Process.Signal(real))
		_ = cmd.Wait() // the result is in ProcessState
		return cmd.ProcessState.ExitCode() == 4
	}

	found := start()
	p, parent := stat(strconv.Itoa(found.Process.Pid))
	assert.Equal(t, os.Getpid(), parent)
	assert.Contains(t, searched()(parent), strconv.Itoa(p.pid))
	assert.Equal(t, found.Process.Pid, p.group)
	before := p
	before.begun = "1"
	before.signal(syscall.SIGWINCH)
	assert.True(t, spared(found))
	found = start()
	p, _ = stat(strconv.Itoa(found.Process.Pid))
	p.signal(syscall.SIGWINCH)
	assert.False(t, spared(found))

	c := alone("true")
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(t, c.cmd.Run())
	assert.Empty(t, c.left())
	later := start()
	c.cmd.Process = later.Process
	assert.Empty(t, c.left())
	c.signal(syscall.SIGWINCH)
	assert.True(t, spared(later))
}
