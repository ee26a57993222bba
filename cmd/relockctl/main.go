// Relockctl lists and releases the locks of relock, and of Redisson, in a Redis, and runs commands under a lock.
//
//	go run github.com/relock-go/relock/cmd/relockctl@latest -h
//
// The result is written to stdout, and all other text to stderr. With -json stdout has JSON and nothing else. Names are
// printed so that they cannot affect a terminal. Only the commands unlock and run write to Redis, and serve if it is
// allowed to.
package main

// The command line: its flags and commands, what is refused, and the exit status.

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/relock-go/relock"
)

const usage = `relockctl lists and releases the locks of relock, and of Redisson, in a Redis, and
runs commands under a lock.

Usage:
  relockctl [flags] list [PATTERN]    list the locks that are held, one line for each holder
  relockctl [flags] show NAME         show everything that Redis knows about one lock
  relockctl [flags] watch [PATTERN]   list repeatedly, until Ctrl-C
  relockctl [flags] serve [PATTERN]   serve a web page that shows the locks, until Ctrl-C
  relockctl [flags] unlock NAME       release a lock by force, after asking
  relockctl [flags] run NAME -- COMMAND [ARG...]
                                      run a command while holding a lock

PATTERN is a pattern of Redis, such as 'lock:orders:*'. Without it all locks are
listed. Flags may be anywhere before --; all arguments after it are names, or the command.

Flags:
  -url URL      redis://user:password@host:port/db, or rediss:// for TLS
  -addr ADDR    host:port, instead of a URL; behind serve it is the address of the page,
                127.0.0.1:8080 by default
  -sentinel-master NAME
                the address is that of a Sentinel, which knows the Redis as NAME;
                -addr may then have several addresses, separated by commas
  -wide         list, watch: do not shorten anything, and show the hosts
  -json         print JSON; durations are in milliseconds, and -1 is a lease without end
  -every TIME   watch, serve: the time between two lists; 1s by default, at least 100ms
  -expose       serve: allow an address that other machines can reach
  -hosts NAMES  serve: further names of this host in the URL of the page, with commas
                between them; localhost, 127.0.0.1, [::1] and the IP address of -addr
                are always allowed, and a request for another name is refused
  -allow-unlock serve: let the page release locks that match PATTERN by force, after asking
  -yes          unlock: do not ask
  -wait TIME    run: how long to wait for the lock; 10s by default, 0 for one attempt
  -lease TIME   run: the lock expires after TIME and is not renewed, so the command has
                that time at most; by default the lock is renewed while the command runs
  -skip         run: if others hold the lock for the whole wait, print nothing and exit
                with 0; all other failures are reported as without it
  -grace TIME   run: how long before the lock expires the command is told to end; 5s by
                default, and shorter than the lease, which is 30s without -lease
  -fair         run: use a fair lock
  -fenced       run: draw a fencing token
  -semaphore N  run: use a semaphore with N permits, and acquire one of them; if Redis has
                another number, that number applies, and a warning is printed
  -version      print the version

Defaults to $REDIS_URL, then localhost:6379 (for a Sentinel: localhost:26379). If the URL
has no password, the password is read from $REDISCLI_AUTH. User and password are those of
the Redis. Those of a Sentinel are parameters of the URL:
redis://:secret@host:26379?sentinel_username=me&sentinel_password=other. For a Cluster
pass the address of any node.

list, watch and serve read the keyspace with SCAN, in small steps; in a Cluster they do so
on each master. Keys that the user has no permission to read, and locks with an additional
key that holds other data, are left out and counted.

HOLDS is how many times the owner has acquired the lock; of a semaphore it is the number of
its permits. OWNER is the owner that acquired the lock from Redis. In a Go service its
process may have handed the lock off to another goroutine since, or several readers may
share it. Of a hold that was detached, and not attached by a process yet, it is "detached";
CLIENT, LABEL and HOST are those of the process that has detached it. LABEL is the display
name of a Go service (see WithLabel of relock). It needs permission for HMGET on
relock_client:*, and is empty for Java services. TYPE lock may also be a fair lock without
waiters.

WAITING is the number of waiters that Redis knows: all of a fair lock, and otherwise one for
each process. It is unknown without permission for relock_line:* and HMGET. show lists the
first 1,000 of them in order. WAITS FOR is the least that a waiter has waited. REACHABLE is
no if the waiter's process is not connected to its channel, so that it is passed over, and
unknown if it asks by itself, or without permission for PUBSUB NUMSUB. ALIVE FOR is how long
a waiter of a fair lock, or for a write lock, counts as alive without another sign of life,
and JAVA DEADLINE is how long until Java services remove a waiter of a fair lock, if it is
the first one then.

Names with characters that are not printable are quoted as in Go. Pass such a name with
$'...' of the shell: $'a\x1bb' for "a\x1bb". JSON has U+FFFD for bytes that are not UTF-8,
and escapes all other characters that are not printable.

unlock does not ask the holder, which may still be working, and the next waiter acquires
the lock. A process that uses relock, and has held a lock for more than a second, is told
of the loss by a message, usually within milliseconds. Without that message a holder
notices when it next renews its lease or asks Redis about the lock, or when its lease
expires. For a read/write lock all readers and the writer lose it, and for a semaphore all
permits are released. If the holders change while you are asked, nothing is released. To
release only one of several holders, use serve -allow-unlock.

serve prints the URL of the page, which shows who holds which locks, for how long at
least, and who waits. The locks that others have waited for the longest come first. The
page has no authentication: everyone who can reach the address can see it. Redis is read
only while somebody looks at the page, once in -every however many they are, and at most
5,000 locks are listed. With -allow-unlock only the holders that the page has shown lose
their lock, and each release is written to stderr. PATTERN limits which locks are listed,
and which can be released: the page of a single lock shows any lock.

run looks the command up, acquires the lock, runs the command, and releases the lock when
the command has ended. The command has RELOCK_NAME in its environment, and with -fenced
RELOCK_TOKEN. relockctl passes on the signals HUP, INT, QUIT, TERM, USR1 and USR2, but on a
terminal not INT and QUIT, which the terminal sends to the command itself. Without a
terminal the command has a process group of its own, and INT, QUIT, TERM and KILL go to all
processes of the group. A signal while relockctl waits ends the wait, and the command is
not started. If relockctl is killed, the command is killed, too; on other systems than
Linux, and for processes that the command has started, that is not so.

If the lock cannot be renewed, the command gets TERM when only the grace is left until the
lock may expire, and KILL after the grace, before another owner can acquire the lock. If the
lock is released by force, or its key is deleted, another owner may acquire it at once. Then
the command gets TERM when relockctl notices that, and KILL after the grace. When a lock
that was held for more than a second is released by force with relockctl or relock, a
message tells relockctl so, usually within milliseconds. Otherwise it notices at the next
renewal, after a third of the lease at most. A lock with -lease is not renewed, so then the
loss may show only when it is released. On Windows the command is killed instead of getting
TERM.

Exit status:
  0  success; watch or serve was ended with Ctrl-C
  1  Redis cannot be reached or returned an error; the key is not a lock; serve cannot open
     its port; or the list is incomplete, and stderr has the number of keys left out
  2  the command line is not valid
  3  show, unlock: the lock is not held
  4  unlock: not released, because you did not answer yes, or the holders have changed

Exit status of run: that of the command, or
  128+n  the command was ended by signal n, or the signal n has ended the wait
  2      the command line is not valid
  75     the lock was not acquired in time, or Redis cannot be reached or returned an error;
         with -skip 0 if others held the lock for the whole wait
  76     the lock was lost, or could not be renewed, while the command ran
  126    the command cannot be executed
  127    the command was not found
`

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

func badUsage(format string, args ...any) error {
	return statusError{statusUsage, fmt.Sprintf(format, args...) + "; see relockctl -h"}
}

// A program is one run of relockctl.
type program struct {
	in       io.Reader
	out, err *os.File
	json     bool
	wide     bool
	auth     string // REDISCLI_AUTH
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
	p := &program{in: os.Stdin, out: os.Stdout, err: os.Stderr, auth: os.Getenv("REDISCLI_AUTH")}
	err := p.run(context.Background(), os.Args[1:], os.Getenv("REDIS_URL"))
	if err == nil {
		return
	}
	status := statusFailed
	if own := (statusError{}); errors.As(err, &own) {
		status = own.status
	}
	if text := err.Error(); text != "" {
		fmt.Fprintln(p.err, "relockctl:", strings.TrimPrefix(text, "relock: "))
	}
	os.Exit(status)
}

func (p *program) run(ctx context.Context, args []string, env string) error {
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	url, addr := flags.String("url", "", ""), ""
	target := &addr
	flags.Func("addr", "", func(value string) error {
		*target = value
		return nil
	})
	master := flags.String("sentinel-master", "", "")
	flags.BoolVar(&p.json, "json", false, "")
	flags.BoolVar(&p.wide, "wide", false, "")
	asksVersion := flags.Bool("version", false, "")
	addTime(flags, &p.every, "every", time.Second)
	flags.BoolVar(&p.yes, "yes", false, "")
	p.job.addFlags(flags)
	p.page.addFlags(flags)
	words, rest, err := parseAnywhere(flags, args, func(command string) {
		if command == "serve" {
			target = &p.page.addr // and no longer the address of Redis
		}
	})
	if errors.Is(err, flag.ErrHelp) || err == nil && len(words) > 0 && words[0] == "help" {
		_, err = io.WriteString(p.out, usage)
		return err
	}
	if err != nil {
		return badUsage("%v", err)
	}
	if *asksVersion {
		_, err = fmt.Fprintln(p.out, "relockctl", version())
		return err
	}
	if len(words) == 0 || words[0] != "run" {
		words = append(words, rest...)
	}
	command := "list"
	if len(words) > 0 {
		command, words = words[0], words[1:]
	}
	do, err := p.command(command, words, rest)
	addrs := strings.Split(addr, ",")
	switch {
	case err != nil:
		return err
	case p.every < 100*time.Millisecond:
		return badUsage("-every %v: must be at least 100ms", p.every)
	case command == "serve" && p.page.check() != nil:
		return p.page.check()
	case *url != "" && addr != "":
		return badUsage("-url and -addr: use only one of them")
	case len(addrs) > 1 && *master == "":
		return badUsage("-addr %s: several addresses are only for -sentinel-master", quote(addr))
	case addr != "":
		*url = "redis://" + addrs[0]
	case *url == "":
		*url = env
	}
	p.place = place{*url, addrs[1:], *master, p.auth}
	defer p.close()
	if command == "run" { // which has its own way with signals
		return do(ctx)
	}
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

// version returns the version of the module, and the commit if Go knows it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "of unknown version"
	}
	text := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && !strings.Contains(text, s.Value[:min(12, len(s.Value))]) {
			text += " " + s.Value[:min(12, len(s.Value))]
		}
	}
	return text + " " + info.GoVersion
}

// command returns the function for a command, its arguments, and what was after --.
func (p *program) command(command string, words, rest []string) (do func(context.Context) error, err error) {
	if command == "run" {
		return p.runLocked, p.job.complete(words, rest)
	}
	word := ""
	if len(words) > 0 {
		word = words[0]
	}
	named := command == "show" || command == "unlock"
	switch {
	case len(words) > 1 && named:
		err = badUsage("%s %s: more than one argument: it takes one name", command, strings.Join(words, " "))
	case len(words) > 1:
		err = badUsage("%s %s: more than one argument; quote the pattern", command, strings.Join(words, " "))
	case named && len(words) == 0:
		err = badUsage("%s: the name of the lock is missing", command)
	case !named && word == "":
		word = "*"
	}
	switch command {
	case "list":
		do = func(ctx context.Context) error { return p.list(ctx, word) }
	case "show":
		do = func(ctx context.Context) error { return p.show(ctx, word) }
	case "watch":
		do = func(ctx context.Context) error { return p.watch(ctx, word) }
	case "serve":
		do = func(ctx context.Context) error { return p.serve(ctx, word) }
	case "unlock":
		do = func(ctx context.Context) error { return p.unlock(ctx, word) }
	default:
		err = badUsage("%s: no such command: there are list, show, watch, serve, unlock and run", quote(command))
	}
	return do, err
}

// addTime adds a flag for a time, of which d is the default.
func addTime(flags *flag.FlagSet, to *time.Duration, name string, d time.Duration) {
	*to = d
	flags.Func(name, "", func(text string) (err error) {
		if *to, err = time.ParseDuration(text); err != nil {
			return errors.New("must be a time with its unit, such as 10s or 500ms")
		}
		return nil
	})
}

// parseAnywhere is flags.Parse, except that flags may be before, between and after the arguments, of which rest are
// those after --. It passes the first argument to begin before it parses the flags behind it.
func parseAnywhere(flags *flag.FlagSet, args []string, begin func(command string)) (words, rest []string, err error) {
	for i, arg := range args {
		if arg == "--" {
			args, rest = args[:i], args[i+1:]
			break
		}
	}
	for {
		if err := flags.Parse(args); err != nil {
			return nil, nil, err
		}
		if args = flags.Args(); len(args) == 0 {
			return words, rest, nil
		}
		if len(words) == 0 {
			begin(args[0])
		}
		words, args = append(words, args[0]), args[1:]
	}
}
