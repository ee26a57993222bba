// Relockctl lists and releases the locks of relock, and of Redisson, in a Redis, and runs commands under a lock.
//
//	go run github.com/relock-go/relock/cmd/relockctl@latest --help
//
// The result is written to stdout, and all other text to stderr. With --json stdout has JSON and nothing else. Names
// are printed so that they cannot affect a terminal. Only the commands unlock and run write to Redis, and serve if it
// is allowed to.
package main

// The program: from its arguments to its exit status.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/relock-go/relock"
)

// The exit statuses of main.
const (
	statusDone = iota
	statusFailed
	statusUsage
	statusFree
	statusNotFreed
)

// A statusError ends the program with its own exit status.
type statusError struct {
	status int
	text   string
}

func (e statusError) Error() string { return e.text }

// badUsage returns an error for a command line that is not valid.
func badUsage(format string, args ...any) error {
	return statusError{statusUsage, fmt.Sprintf(format, args...)}
}

// A program is one run of relockctl.
type program struct {
	in       io.Reader
	out, err *os.File
	notes    *patient // to err, of run and main
	json     bool
	wide     bool
	colors   bool
	waiting  bool // list and watch: only locks that others wait for
	every    time.Duration
	yes      bool
	job      job         // of run
	page     pageOptions // of serve
	leftOut  int         // watch: number of keys that were left out when it was last printed
	place    place
	redis    *connection    // nil before open
	client   *relock.Client // nil before open
}

func main() {
	logging.Disable() // of go-redis, which returns everything important as an error
	p := &program{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, notes: newPatient(os.Stderr),
		colors: hasColors(os.Stdout), place: place{env: os.Getenv("REDIS_URL"), auth: os.Getenv("REDISCLI_AUTH")},
	}
	status := statusDone
	if err := p.run(context.Background(), os.Args[1:]); err != nil {
		status = statusFailed
		if own := (statusError{}); errors.As(err, &own) {
			status = own.status
		}
		if text := err.Error(); text != "" {
			fmt.Fprintln(p.notes, "relockctl:", plain(err)+advice(err))
		}
	}
	p.notes.end()
	os.Exit(status)
}

// permissions is the page about the permissions that a Redis user needs.
const permissions = "https://github.com/relock-go/relock/blob/main/docs/security.md#the-smallest-set-of-permissions"

// refusals are parts of the answers of Redis to a user who lacks a permission. All but the first are about a command
// that a script calls, and depend on the version of Redis.
var refusals = []string{"NOPERM", "The user executing the script can't", "ACL failure in script"}

// advice returns what is to be added to the text of an error.
func advice(err error) string {
	if slices.ContainsFunc(refusals, func(part string) bool { return strings.Contains(err.Error(), part) }) {
		return "\nThe permissions that the user needs: " + permissions
	}
	return ""
}

// run runs the command that args name.
func (p *program) run(ctx context.Context, args []string) error {
	root := p.commands()
	root.SetArgs(args)
	understood := false
	root.PersistentPreRun = func(*cobra.Command, []string) { understood = true }
	command, err := root.ExecuteContextC(ctx)
	own := statusError{}
	bad := errors.As(err, &own) && own.status == statusUsage || errors.Is(err, relock.ErrInvalid)
	if err == nil || understood && !bad {
		return err
	}
	unknown := (*pflag.NotExistError)(nil)
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "" { // the text has the value, perhaps a password
		err = errors.New("a flag begins with two dashes")
	}
	return badUsage("%s; see %s -h", plain(err), command.CommandPath())
}

// on connects to Redis and calls do, whose ctx is canceled by a signal that ends the program.
func (p *program) on(ctx context.Context, do func(ctx context.Context) error) error {
	defer p.close()
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := p.open(ctx); err != nil {
		return err
	}
	return do(ctx)
}

// open connects to Redis.
func (p *program) open(ctx context.Context, options ...relock.Option) (err error) {
	if p.redis, err = connect(ctx, p.place); err != nil {
		return err
	}
	silent := []relock.Option{relock.WithLogger(slog.New(slog.DiscardHandler))} // unless options have another Logger
	p.client, err = relock.New(p.redis.rdb, append(silent, options...)...)
	return err
}

// close closes what open has opened.
func (p *program) close() {
	if p.client != nil {
		p.client.Close()
	}
	if p.redis != nil {
		p.redis.rdb.Close()
	}
}

// version returns the version of the module, which has the commit if it is no release, and that of Go.
func version() string {
	info, _ := debug.ReadBuildInfo()
	return info.Main.Version + " " + info.GoVersion
}
