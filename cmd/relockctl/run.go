package main

// The command run: it runs a command while it holds a lock.
//
// Rules: the command is looked up before Redis is asked for anything, and is not started once a signal has arrived. The
// lock is acquired with an explicit lease, and renewed here with Hold.Extend, because the watchdog does not tell when
// the validity of a hold ends, and the command has to end before that. The validity counts from before the last request
// that Redis has confirmed. See supervise.go for how the command is ended.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/relock-go/relock"
)

// The exit statuses of run that are not those of its command. The first two are those of a shell. The others are in the
// range of sysexits.h, so that few commands use them.
const (
	statusNotExecutable = 126
	statusNotFound      = 127
	statusSignal        = 128 // plus the number of the signal
	statusNotAcquired   = 75
	statusLost          = 76
)

const defaultGrace = 5 * time.Second

// renewedLease is the lease of a lock that is renewed, as with the default of relock.WithWatchdogTimeout.
const renewedLease = 30 * time.Second

// A job is what the command line of run asks for.
type job struct {
	name    string
	path    string   // the file of the command
	args    []string // the command, as it was called, and its arguments
	wait    time.Duration
	lease   time.Duration // 0: renewedLease, renewed
	grace   time.Duration
	fair    bool
	fenced  bool
	skip    bool // succeed without the command if others hold the lock
	permits int  // of a semaphore; 0: the lock is not a semaphore
}

// complete adds the name and the command to j. It returns an error for a command line that is not valid, and for a
// command that is not found.
func (j *job) complete(words, args []string) (err error) {
	switch {
	case len(words) != 1 || len(args) == 0:
		return badUsage("run: needs a name, then --, then the command: relockctl run NAME -- COMMAND [ARG...]")
	case min(j.wait, j.lease, j.grace) < 0:
		return badUsage("run: a time must not be negative")
	case j.grace >= validity(j.leaseOrDefault()):
		return badUsage("--grace %v: must be shorter than the lease of %v; pass a shorter one", j.grace, j.leaseOrDefault())
	case j.permits > 0 && (j.fair || j.fenced):
		return badUsage("--semaphore cannot be used with --fair or --fenced")
	}
	j.name, j.args = words[0], args
	j.path, err = lookUp(args[0])
	return err
}

func (j *job) leaseOrDefault() time.Duration {
	if j.lease > 0 {
		return j.lease
	}
	return renewedLease
}

// validity returns how long a lease is valid, counted from before its request: see the documentation of relock.
func validity(lease time.Duration) time.Duration { return lease - lease/100 - 2*time.Millisecond }

// lookUp returns the file of a command. Its errors have the exit statuses of a shell.
func lookUp(command string) (string, error) {
	path, err := exec.LookPath(command)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrNotFound) && !onPath(command), errors.Is(err, fs.ErrNotExist):
		return "", statusError{statusNotFound, quote(command) + ": command not found"}
	}
	return "", statusError{statusNotExecutable, quote(command) + ": cannot be executed"}
}

// onPath reports whether a directory of the PATH has a file with the name of the command, which LookPath has found to
// be not executable.
func onPath(command string) bool {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if info, err := os.Stat(filepath.Join(dir, command)); err == nil && !info.IsDir() {
			return true
		}
	}
	return false
}

// runLocked acquires the lock, runs the command and releases the lock. Its error has the exit status.
func (p *program) runLocked(ctx context.Context) error {
	signals := make(chan os.Signal, 16)
	for _, s := range forwarded {
		if !signal.Ignored(s) { // as under nohup: the command is to ignore it, too
			signal.Notify(signals, s)
		}
	}
	defer signal.Stop(signals)
	if !signal.Ignored(syscall.SIGPIPE) { // of a stderr that is closed, which is to end neither relockctl nor the command
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	}
	k, err := p.acquire(ctx, signals)
	if err != nil {
		return err
	}
	c, err := p.start(k)
	if err != nil {
		_ = k.release(ctx)
		return statusError{statusNotExecutable, fmt.Sprintf("%s: cannot be executed: %v", quote(p.job.args[0]), err)}
	}
	why := p.supervise(ctx, k, c, signals)
	released := k.release(ctx)
	c.warn(p.notes)
	switch {
	case why != nil:
		return statusError{statusLost, ""} // supervise has printed why
	case errors.Is(released, relock.ErrNotHeld):
		return statusError{statusLost, "the command has ended, but the lock was lost while it ran: " + plain(released)}
	case released != nil:
		fmt.Fprintf(p.notes, "relockctl: warning: the command has ended, but the lock may stay held for up to %v: %v\n",
			k.lease, plain(released))
	}
	if status := exitStatus(c.cmd.ProcessState); status != 0 {
		return statusError{status, ""}
	}
	return nil
}

// plain returns the text of an error of relock without the name of the package, and without its advice to those who
// write programs.
func plain(err error) string {
	text, _, _ := strings.Cut(err.Error(), ": use a name that no other data has")
	return strings.TrimPrefix(text, "relock: ")
}

// acquire connects to Redis and acquires the lock, until a signal arrives.
func (p *program) acquire(ctx context.Context, signals <-chan os.Signal) (*keeper, error) {
	waiting, caught := untilSignal(ctx, signals)
	k, err := p.ask(waiting)
	if s := caught(); s != nil {
		if k != nil {
			_ = k.release(ctx)
		}
		return nil, statusError{statusSignal + int(s.(syscall.Signal)),
			fmt.Sprintf("%v: the command was not started", s)}
	}
	if own := (statusError{}); err != nil && !errors.As(err, &own) && !errors.Is(err, relock.ErrInvalid) {
		err = statusError{statusNotAcquired, plain(err)}
	}
	return k, err
}

// untilSignal returns a copy of ctx that is canceled when a signal arrives, and a function that ends that and returns
// the signal, or nil.
func untilSignal(ctx context.Context, signals <-chan os.Signal) (context.Context, func() os.Signal) {
	ctx, cancel := context.WithCancel(ctx)
	caught := make(chan os.Signal, 1)
	go func() {
		defer close(caught)
		defer cancel()
		select {
		case s := <-signals:
			caught <- s
			return
		case <-ctx.Done():
		}
		select {
		case s := <-signals: // it arrived together with the lock
			caught <- s
		default:
		}
	}()
	return ctx, func() os.Signal {
		cancel()
		return <-caught
	}
}

// ask connects to Redis and acquires the lock.
func (p *program) ask(ctx context.Context) (*keeper, error) {
	j := p.job
	label := "relockctl run " + short(quote(filepath.Base(j.path)), 40)
	options := []relock.Option{relock.WithLabel(label)}
	if j.permits > 0 { // of which Redis may have another number; the Client warns of that
		warnings := slog.NewTextHandler(p.notes, &slog.HandlerOptions{Level: slog.LevelWarn})
		options = append(options, relock.WithLogger(slog.New(warnings)))
	}
	if err := p.open(ctx, options...); err != nil {
		return nil, err
	}
	hold, ok, err := j.tryAcquire(ctx, j.lock(p.client))
	switch {
	case err != nil:
		return nil, err
	case !ok && j.skip:
		return nil, statusError{statusDone, ""}
	case !ok:
		return nil, statusError{statusNotAcquired, j.notAcquired()}
	}
	k := &keeper{hold: hold, lease: j.leaseOrDefault(), renews: j.lease == 0, grace: j.grace}
	// A lock may have been granted long before TryAcquire returns. So the command begins with a fresh lease, the end of
	// which is known here.
	if err = k.extend(ctx); err == nil && !time.Now().Before(k.until.Add(-k.grace)) {
		err = fmt.Errorf("%s: Redis answers too slowly for a lease of %v with a grace of %v", quote(j.name), k.lease, j.grace)
	}
	if err == nil && j.fenced {
		k.token, err = hold.Token()
	}
	if err != nil {
		_ = k.release(context.WithoutCancel(ctx))
		return nil, err
	}
	return k, nil
}

// notAcquired returns why the lock was not acquired.
func (j *job) notAcquired() string {
	text := quote(j.name) + " was not acquired"
	if j.wait > 0 {
		text += fmt.Sprintf(" within %v", j.wait)
	}
	why := "another owner holds it"
	if j.permits > 0 {
		why = "others hold its permits, or wait for them"
	}
	return text + ", because " + why + "; relockctl show " + shellWord(j.name) + " shows who"
}

// tryAcquire acquires the lock, within the wait. A wait also ends with false if Redis has been lost meanwhile, which is
// not to be skipped: one more attempt tells that by its error.
func (j *job) tryAcquire(ctx context.Context, lock relock.Acquirer) (*relock.Hold, bool, error) {
	hold, ok, err := lock.TryAcquire(ctx, j.wait, j.leaseOrDefault())
	if err == nil && !ok && j.skip && j.wait > 0 {
		return lock.TryAcquire(ctx, 0, j.leaseOrDefault())
	}
	return hold, ok, err
}

// lock returns the lock that j asks for.
func (j *job) lock(c *relock.Client) relock.Acquirer {
	var options []relock.LockOption
	if j.fenced {
		options = append(options, relock.Fenced())
	}
	switch {
	case j.permits > 0:
		return c.NewSemaphore(j.name, j.permits)
	case j.fair:
		return c.NewFairLock(j.name, options...)
	}
	return c.NewLock(j.name, options...)
}

// A keeper keeps the hold of a lock valid while the command runs. After acquire, one goroutine uses it at a time.
type keeper struct {
	hold   *relock.Hold
	lease  time.Duration
	renews bool
	grace  time.Duration
	until  time.Time // the end of the validity
	token  int64     // the fencing token; 0 without --fenced
}

// extend renews the lease once.
func (k *keeper) extend(ctx context.Context) error {
	sent := time.Now()
	err := k.hold.Extend(ctx, k.lease)
	if err == nil {
		k.until = sent.Add(validity(k.lease))
	}
	return err
}

func (k *keeper) release(ctx context.Context) error { return k.hold.Release(ctx) }

// A renewal is the outcome of one attempt to renew a lease.
type renewal struct {
	until time.Time // the end of the validity
	err   error
}

// renew renews the lease until ctx is canceled or the lock is lost, and sends the outcomes to outcomes. It renews it
// three times before the command would have to end, and more often after a failure.
func (k *keeper) renew(ctx context.Context, outcomes chan<- renewal) {
	third := max((validity(k.lease)-k.grace)/3, 10*time.Millisecond)
	for pause := third; ; {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		err := k.extend(ctx)
		select {
		case outcomes <- renewal{k.until, err}:
		case <-ctx.Done():
			return
		}
		switch {
		case err == nil:
			pause = third
		case errors.Is(err, relock.ErrNotHeld):
			return
		default:
			pause = min(third/10, time.Second)
		}
	}
}

// A child is the command while it runs.
type child struct {
	cmd      *exec.Cmd
	ownGroup bool           // it has a process group of its own
	noGroup  bool           // that group was empty, so that others may get its number
	ended    chan struct{}  // closed when the command has ended
	deaths   chan os.Signal // gets SIGCHLD; nil where relockctl has no other children
	before   map[int]string // processes that are not of the command, and when they were started
}

// start starts the command.
func (p *program) start(k *keeper) (*child, error) {
	cmd := exec.Command(p.job.path, p.job.args[1:]...)
	cmd.Args[0] = p.job.args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.in, p.out, p.err
	_ = os.Unsetenv("RELOCK_TOKEN") // which may be that of another lock, of the relockctl that runs this one
	cmd.Env = append(os.Environ(), "RELOCK_NAME="+p.job.name)
	if p.job.fenced {
		cmd.Env = append(cmd.Env, "RELOCK_TOKEN="+strconv.FormatInt(k.token, 10))
	}
	c := &child{cmd: cmd, ended: make(chan struct{})}
	c.prepare()
	started := make(chan error)
	go func() {
		// Linux kills the command when the thread that started it ends. This thread ends after the command, with its
		// goroutine, because it is not unlocked.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the result is in cmd.ProcessState
			close(c.ended)
		}
	}()
	return c, <-started
}
