//go:build unix

package main

// The command run, as a real process with real commands, without a terminal. See run_linux_test.go for the rest.

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

// A process that nohup or a shell has started in the background ignores some signals, and so would relockctl in these
// tests. A signal that is caught here is not ignored by the processes that are started.
func init() {
	for _, s := range forwarded {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

// A runOf is relockctl while it runs a command.
type runOf struct {
	t      *testing.T
	cmd    *exec.Cmd
	input  io.Closer   // its standard input, unless that is a terminal
	lines  chan string // of its standard output; closed when no process has it open
	stderr bytes.Buffer
}

// begin starts relockctl run with args, in a session of its own, which has no terminal.
func begin(t *testing.T, addr string, args ...string) *runOf {
	t.Helper()
	cmd := command(addr, append([]string{"run"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return beginAs(t, cmd)
}

// beginAs starts cmd, which is relockctl run.
func beginAs(t *testing.T, cmd *exec.Cmd) *runOf {
	t.Helper()
	r := &runOf{t: t, cmd: cmd, lines: make(chan string, 100)}
	if cmd.Stderr == nil {
		cmd.Stderr = &r.stderr
	}
	// A command that a killed relockctl leaves behind keeps stderr open.
	cmd.WaitDelay = time.Second
	read, write, err := os.Pipe()
	must(t, err)
	cmd.Stdout = write
	if cmd.Stdin == nil {
		r.input, err = cmd.StdinPipe()
		must(t, err)
	}
	must(t, cmd.Start())
	write.Close()
	go func() {
		defer close(r.lines)
		for scan := bufio.NewScanner(read); scan.Scan(); {
			r.lines <- scan.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		read.Close()
	})
	return r
}

// prints waits for the line.
func (r *runOf) prints(line string) {
	r.t.Helper()
	select {
	case got := <-r.lines:
		require.Equal(r.t, line, got)
	case <-time.After(3 * soon):
		require.Fail(r.t, "it does not print "+line)
	}
}

// ends waits until relockctl has ended, and all that it has started, and returns its exit status.
func (r *runOf) ends() int {
	r.t.Helper()
	for timeout := time.After(3 * soon); ; {
		select {
		case line, open := <-r.lines:
			if open {
				assert.Empty(r.t, line, "it prints something else")
				continue
			}
			_ = r.cmd.Wait() // the result is in ProcessState
			return r.cmd.ProcessState.ExitCode()
		case <-timeout:
			require.Fail(r.t, "it does not end")
		}
	}
}

func (r *runOf) signal(s os.Signal) {
	r.t.Helper()
	must(r.t, r.cmd.Process.Signal(s))
}

// forever is a script that prints ready and does not end by itself.
const forever = "echo ready; while :; do sleep 0.05; done"

// traps is a script that prints the name of each of the signals when the shell gets it.
func traps(signals ...string) (script string) {
	for _, s := range signals {
		script += "trap 'echo " + s + "' " + s + "; "
	}
	return script
}

func isLocked(t *testing.T, s *testredis.Server, name string) bool {
	t.Helper()
	locked, err := newClient(t, s.Client()).NewLock(name).IsLocked(ctx)
	must(t, err)
	return locked
}

func TestRunHasTheStatusOfItsCommand(t *testing.T) {
	s := testredis.Start(t)
	for script, want := range map[string]int{
		"exit 0":        0,
		"exit 7":        7,
		"exit 76":       76,
		"kill -9 $$":    128 + 9,
		"kill -TERM $$": 128 + 15,
	} {
		_, errs, status := ctl(t, s.Addr(), "", "run", "job", "--", "sh", "-c", script)
		assert.Equal(t, want, status, script)
		assert.Empty(t, errs, script)
		assert.False(t, isLocked(t, s, "job"), script)
	}
}

func TestRunGivesTheCommandItsArgumentsAndInput(t *testing.T) {
	s := testredis.Start(t)
	const script = `echo "$0 $*"; cat >&2`
	out, errs, status := ctl(t, s.Addr(), "typed", "run", "job", "--", "sh", "-c", script, "--", "--json", "--")
	assert.Zero(t, status)
	assert.Equal(t, "-- --json --\n", out)
	assert.Equal(t, "typed", errs)
}

func TestRunTellsTheCommandTheNameAndTheToken(t *testing.T) {
	s := testredis.Start(t)
	const script = `echo "$RELOCK_NAME,$RELOCK_TOKEN"`
	out := prints(t, s.Addr(), "run", "my job", "--", "sh", "-c", script)
	assert.Equal(t, "my job,\n", out)
	for _, fair := range []string{"--fair=false", "--fair"} {
		out := prints(t, s.Addr(), "run", "--fenced", fair, "fenced", "--", "sh", "-c", script)
		token := s.Client().Get(ctx, "redisson_lock_token:{fenced}").Val()
		assert.Equal(t, "fenced,"+token+"\n", out)
	}
}

// The relockctl that runs this one may have drawn a token for another lock.
func TestRunDoesNotPassOnATokenOfAnotherLock(t *testing.T) {
	t.Setenv("RELOCK_TOKEN", "7")
	s := testredis.Start(t)
	for _, flag := range []string{"--fenced=false", "--fenced"} {
		out := prints(t, s.Addr(), "run", flag, "job", "--", "sh", "-c", `echo "${RELOCK_TOKEN-none}"`)
		if assert.NotEqual(t, "7\n", out); flag != "--fenced" {
			assert.Equal(t, "none\n", out)
		}
	}
}

func TestRunWarnsOfAnotherNumberOfPermits(t *testing.T) {
	s := testredis.Start(t)
	_, err := newClient(t, s.Client()).NewSemaphore("job", 2).Acquire(ctx)
	must(t, err)
	for permits, warns := range map[string]bool{"2": false, "5": true} {
		out, errs, status := ctl(t, s.Addr(), "", "run", "--semaphore", permits, "job", "--", "echo", "started")
		assert.Zero(t, status, errs)
		assert.Equal(t, "started\n", out)
		assert.Equal(t, warns, strings.Contains(errs, "permits=2 asked=5"), errs)
		assert.Equal(t, warns, errs != "", errs)
	}
}

// The other locks are those that --fair and --semaphore name.
func TestRunAcquiresTheLockThatItsFlagsName(t *testing.T) {
	s := testredis.Start(t)
	for _, flags := range [][]string{{"--fair"}, {"--semaphore", "2"}, {"--fenced"}} {
		name := "job" + flags[0]
		script := `"$0" list "$RELOCK_NAME"`
		args := append(append([]string{"run"}, flags...), name, "--", "sh", "-c", script, binary)
		out := prints(t, s.Addr(), args...)
		assert.Contains(t, out, name)
		assert.Contains(t, out, "relockctl run sh", "the label")
	}
	permit := func(status int) {
		t.Helper()
		_, errs, got := ctl(t, s.Addr(), "", "run", "--wait", "0", "--semaphore", "2", "permits", "--", "true")
		assert.Equal(t, status, got, errs)
	}
	holder := newClient(t, s.Client()).NewSemaphore("permits", 2)
	for _, status := range []int{0, statusNotAcquired} {
		_, err := holder.Acquire(ctx)
		must(t, err)
		permit(status)
	}
}

func TestRunLooksForTheCommandBeforeItAsksRedis(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "data"), nil, 0o600))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for command, want := range map[string]int{
		"no-such-command":                statusNotFound,
		filepath.Join(dir, "no-such"):    statusNotFound,
		filepath.Join(dir, "data"):       statusNotExecutable,
		"data":                           statusNotExecutable,
		dir:                              statusNotExecutable,
		filepath.Join(dir, "data", "no"): statusNotExecutable,
	} {
		_, errs, status := ctl(t, "127.0.0.1:1", "", "run", "job", "--", command)
		assert.Equal(t, want, status, command)
		assert.Contains(t, errs, "relockctl: "+command)
	}
}

func TestRunReleasesTheLockIfTheCommandDoesNotStart(t *testing.T) {
	s := testredis.Start(t)
	program := filepath.Join(t.TempDir(), "program")
	must(t, os.WriteFile(program, []byte{0, 1, 2}, 0o700))
	_, errs, status := ctl(t, s.Addr(), "", "run", "job", "--", program)
	assert.Equal(t, statusNotExecutable, status)
	assert.Contains(t, errs, program)
	assert.False(t, isLocked(t, s, "job"))
}

func TestRunRefusesABadCommandLine(t *testing.T) {
	s := testredis.Start(t)
	for _, args := range []string{
		"",
		"job",
		"job --",
		"-- job true",
		"job true",
		"job true -- true",
		"--wait -1s job -- true",
		"--wait soon job -- true",
		"--lease -1s job -- true",
		"--grace -1s job -- true",
		"--grace 30s job -- true",
		"--lease 2s --grace 2s job -- true",
		"--lease 5s job -- true",
		"--semaphore 0 job -- true",
		"--semaphore many job -- true",
		"--semaphore 2 --fair job -- true",
		"--semaphore 2 --fenced job -- true",
		"--semaphore 99999999999 job -- true",
	} {
		_, errs, status := ctl(t, s.Addr(), "", append([]string{"run"}, strings.Fields(args)...)...)
		assert.Equal(t, statusUsage, status, args)
		assert.Contains(t, errs, "; see relockctl run -h", args)
	}
	_, _, status := ctl(t, s.Addr(), "", "run", "", "--", "true")
	assert.Equal(t, statusUsage, status, "an empty name")
}

// With --skip a job that runs elsewhere is no failure, and everything else is one.
func TestRunDoesNotStartTheCommandWithoutTheLock(t *testing.T) {
	s := testredis.Start(t)
	rdb := s.Client()
	must(t, newClient(t, rdb).NewLock("held").Lock(ctx))
	must(t, newClient(t, rdb).NewSemaphore("permits", 1).Lock(ctx))
	must(t, rdb.HSet(ctx, "data", "name", "bob").Err())
	for _, c := range []struct {
		addr, args, want string
		elsewhere        bool
	}{
		{s.Addr(), "--wait 10ms held", "held was not acquired within 10ms, because another owner holds it", true},
		{s.Addr(), "--wait 0 held", "held was not acquired, because another owner holds it", true},
		{s.Addr(), "--wait 0 --semaphore 1 permits", "others hold its permits, or wait for them", true},
		{s.Addr(), "--wait 10ms data", "not a lock", false},
		{"127.0.0.1:1", "--wait 10ms job", "cannot reach the Redis", false},
	} {
		for _, skip := range []string{"--skip=false", "--skip"} {
			args := append(append([]string{"run", skip}, strings.Fields(c.args)...), "--", "echo", "started")
			out, errs, status := ctl(t, c.addr, "", args...)
			assert.Empty(t, out, args)
			if skip == "--skip" && c.elsewhere {
				assert.Empty(t, errs, args)
				assert.Equal(t, statusDone, status, args)
			} else {
				assert.Contains(t, errs, c.want, args)
				assert.Equal(t, statusNotAcquired, status, args)
			}
		}
	}
	_, _, status := ctl(t, s.Addr(), "", "run", "--skip", "free", "--", "sh", "-c", "exit 3")
	assert.Equal(t, 3, status)
}

func TestRunWaitsForTheLock(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	hold, err := newClient(t, s.Client()).NewLock("job").Acquire(ctx)
	must(t, err)
	r := begin(t, s.Addr(), "--wait", "1m", "job", "--", "echo", "started")
	awaitWaiter(t, s, "job")
	must(t, hold.Release(ctx))
	r.prints("started")
	assert.Zero(t, r.ends(), r.stderr.String())
}

func TestRunDoesNotStartTheCommandIfRedisIsLostInTheWait(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	must(t, newClient(t, s.Client()).NewLock("job").Lock(ctx))
	r := begin(t, s.Addr(), "--wait", "2s", "--skip", "job", "--", "echo", "started")
	awaitWaiter(t, s, "job")
	s.Kill()
	assert.Equal(t, statusNotAcquired, r.ends(), r.stderr.String())
}

func TestRunSignalEndsTheWait(t *testing.T) {
	s := testredis.Start(t)
	c := newClient(t, s.Client())
	hold, err := c.NewLock("job").Acquire(ctx)
	must(t, err)
	for _, signal := range []syscall.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
	} {
		r := begin(t, s.Addr(), "--wait", "1m", "job", "--", "echo", "started")
		awaitWaiter(t, s, "job")
		r.signal(signal)
		assert.Equal(t, 128+int(signal), r.ends())
		assert.Contains(t, r.stderr.String(), "the command was not started")
		assert.Zero(t, waiters(t, c, "job"), "%v: the wait queue", signal)
	}
	must(t, hold.Release(ctx))
}

// A signal that arrives together with the lock ends the wait, too: untilSignal prefers it.
func TestRunSignalWinsAgainstTheLock(t *testing.T) {
	signals := make(chan os.Signal, 1)
	for range 100 { // the signal is read by either of the two parts
		_, caught := untilSignal(ctx, signals)
		signals <- syscall.SIGTERM
		require.Equal(t, syscall.SIGTERM, caught())
	}
	ctx, caught := untilSignal(ctx, signals)
	require.NoError(t, ctx.Err())
	require.Nil(t, caught())
}

func TestRunForwardsSignals(t *testing.T) {
	s := testredis.Start(t)
	r := begin(t, s.Addr(), "job", "--", "sh", "-c",
		traps("HUP", "INT", "QUIT", "TERM", "USR1")+"trap 'echo USR2; kill -9 $$' USR2; "+forever)
	r.prints("ready")
	for name, signal := range map[string]syscall.Signal{
		"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "TERM": syscall.SIGTERM,
		"USR1": syscall.SIGUSR1,
	} {
		r.signal(signal)
		r.prints(name)
	}
	assert.True(t, isLocked(t, s, "job"), "it goes on")
	r.signal(syscall.SIGUSR2)
	r.prints("USR2")
	assert.Equal(t, 128+9, r.ends())
	assert.False(t, isLocked(t, s, "job"))
}

// What ends the command does not wait for stderr, and a stderr that is closed does not end relockctl.
func TestRunEndsTheCommandWhateverStderrIs(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]func(t *testing.T, read, write *os.File){
		"full": func(t *testing.T, _, write *os.File) {
			for _, size := range []int{4096, 1} { // to the last byte
				must(t, write.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
				for _, err := write.Write(make([]byte, size)); err == nil; {
					_, err = write.Write(make([]byte, size))
				}
			}
		},
		"closed": func(_ *testing.T, read, _ *os.File) { read.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testredis.Start(t)
			read, write, err := os.Pipe()
			must(t, err)
			defer read.Close()
			state(t, read, write)
			cmd := command(s.Addr(), "run", "--lease", "3s", "--grace", "1s", "job", "--", "sh", "-c",
				"exec 2>/dev/null; "+traps("USR1")+"trap '' TERM; "+forever)
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			cmd.Stderr = write
			_ = write.Fd() // which makes it block, as one from a shell does
			r := beginAs(t, cmd)
			r.prints("ready")
			r.signal(syscall.SIGUSR1)
			r.prints("USR1")
			begun := time.Now()
			assert.Equal(t, statusLost, r.ends())
			assert.Less(t, time.Since(begun), testredis.Scale(begun, 5*time.Second))
		})
	}
}

// After a pause the command gets only what is left of the grace before another owner acquires the lock.
func TestRunCountsTheGraceFromTheEndOfTheLease(t *testing.T) {
	t.Parallel()
	for pause, left := range map[time.Duration]string{7 * time.Second: " 1s ", 9 * time.Second: " 0s "} {
		t.Run(pause.String(), func(t *testing.T) {
			t.Parallel()
			s := testredis.Start(t)
			r := begin(t, s.Addr(), "--lease", "8s", "--grace", "7s", "job", "--", "sh", "-c", "trap '' TERM; "+forever)
			r.prints("ready")
			begun := time.Now()
			r.signal(syscall.SIGSTOP)
			time.Sleep(pause)
			r.signal(syscall.SIGCONT)
			_, open := <-r.lines // it has ended, with all that it has started
			assert.False(t, open)
			assert.Less(t, time.Since(begun), max(pause, 8*time.Second)+3*time.Second)
			assert.Equal(t, statusLost, r.ends())
			assert.Contains(t, r.stderr.String(), "the command has"+left+"to end")
		})
	}
}

// A shell ends at once when it gets TERM. The program that it waits for has the grace, too.
func TestRunGivesTheGraceToTheProgramOfAShell(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	r := begin(t, s.Addr(), "--lease", "6s", "--grace", "4s", "job", "--", "sh", "-c",
		`sh -c "trap 'sleep 1; echo saved; exit' TERM; `+forever+`"; true`)
	r.prints("ready")
	r.prints("saved")
	assert.Equal(t, statusLost, r.ends())
}

// What a command that ended by itself has left running is left alone.
func TestRunWarnsOfWhatTheCommandHasLeft(t *testing.T) {
	s := testredis.Start(t)
	r := begin(t, s.Addr(), "job", "--", "sh", "-c", "exec 3<&0; (echo ready; read x <&3; echo alive) & exit 3")
	r.prints("ready")
	testredis.Await(t, "the lock is free", soon, func() bool { return !isLocked(t, s, "job") })
	_, err := r.cmd.Process.Wait()
	must(t, err)
	r.input.Close()
	r.prints("alive")
	_ = r.cmd.Wait()
	assert.Contains(t, r.stderr.String(), "warning: the command has left processes running, without the lock")
}

// As under nohup.
func TestRunLeavesIgnoredSignalsIgnored(t *testing.T) {
	s := testredis.Start(t)
	cmd := exec.Command("sh", "-c", `trap "" HUP; exec "$0" "$@"`, binary, "run", "job", "--", "sh", "-c",
		traps("USR1")+"kill -HUP $$; "+forever)
	cmd.Env = append(os.Environ(), "REDIS_URL=redis://"+s.Addr())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	r := beginAs(t, cmd)
	r.prints("ready")
	r.signal(syscall.SIGHUP)
	r.signal(syscall.SIGUSR1)
	r.prints("USR1")
	r.signal(syscall.SIGTERM)
	assert.Equal(t, 128+15, r.ends())
}

func TestRunRenewsTheLock(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	// Of the lease of 30s only 1.7s are for the command, unless the lease is renewed.
	prints(t, s.Addr(), "run", "--grace", "28s", "job", "--", "sleep", "4")
}

// The command is told before the lock is lost, not when it is.
func TestRunTellsTheCommandBeforeTheLeaseEnds(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	r := begin(t, s.Addr(), "--lease", "20s", "--grace", "18s", "job", "--", "sh", "-c",
		"trap 'echo TERM; read x; exit 5' TERM; echo ready; while :; do sleep 0.05; done")
	r.prints("ready")
	assert.Greater(t, s.Client().PTTL(ctx, "job").Val(), 18*time.Second)
	r.prints("TERM")
	left := s.Client().PTTL(ctx, "job").Val()
	assert.Less(t, left, 19*time.Second)
	assert.Greater(t, left, 10*time.Second)
	r.input.Close()
	assert.Equal(t, statusLost, r.ends())
	assert.Contains(t, r.stderr.String(), "job: its lease of 20s ends soon; the command has 18s to end")
	assert.False(t, isLocked(t, s, "job"))
}

func TestRunTellsTheCommandWhileRedisIsGone(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(s *testredis.Server){
		"paused": (*testredis.Server).Freeze,
		"killed": (*testredis.Server).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testredis.Start(t)
			r := begin(t, s.Addr(), "--grace", "27s", "job", "--", "sh", "-c",
				"trap 'echo TERM; exit' TERM; "+forever)
			r.prints("ready")
			fault(s)
			begun := time.Now()
			r.prints("TERM")
			assert.Less(t, time.Since(begun), 15*time.Second, "27s before the end of the lease")
			assert.Equal(t, statusLost, r.ends())
			assert.Contains(t, r.stderr.String(), "the command has 27s to end")
		})
	}
}

// The command is ended at once, and not when the lock is next renewed: after 6.6s with this grace, or never, which is
// longer than the test waits.
func TestRunEndsTheCommandAfterAForcedRelease(t *testing.T) {
	t.Parallel()
	for name, lease := range map[string]string{"renewed": "0s", "fixed lease": "1h"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testredis.Start(t)
			r := begin(t, s.Addr(), "--grace", "10s", "--lease", lease, "job", "--", "sh", "-c", forever)
			r.prints("ready")
			rdb := testredis.Client(t, s.Addr())
			testredis.Await(t, "relockctl listens", 15*time.Second, func() bool {
				return len(rdb.PubSubChannels(ctx, "relock_client:*").Val()) == 1
			})
			_, errs, status := ctl(t, s.Addr(), "", "unlock", "--yes", "job")
			require.Zero(t, status, errs)
			begun := time.Now()
			assert.Equal(t, statusLost, r.ends())
			assert.Less(t, time.Since(begun), testredis.Scale(begun, 4*time.Second))
			assert.Contains(t, r.stderr.String(), `"job": the lock was lost`)
		})
	}
}

func TestRunNoticesALossAtTheRelease(t *testing.T) {
	s := testredis.Start(t)
	_, errs, status := ctl(t, s.Addr(), "", "run", "job", "--", binary, "unlock", "--yes", "job")
	assert.Equal(t, statusLost, status)
	assert.Contains(t, errs, "the lock was lost while it ran")
}

func TestRunWarnsIfTheReleaseFails(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	r := begin(t, s.Addr(), "job", "--", "sh", "-c", "echo ready; read x; exit 3")
	r.prints("ready")
	s.Freeze()
	r.input.Close()
	assert.Equal(t, 3, r.ends())
	assert.Contains(t, r.stderr.String(), "warning: the command has ended, but the lock may stay held for up to 30s")
}
