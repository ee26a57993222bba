// Relockctl lists and releases the locks of relock, and of Redisson, in a Redis.
//
//	go run github.com/relock-go/relock/cmd/relockctl@latest -h
//
// The result is written to stdout, and all other text to stderr. With -json stdout has JSON and nothing else. Names are
// printed so that they cannot affect a terminal. Only the command unlock writes to Redis.
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

const usage = `relockctl lists and releases the locks of relock, and of Redisson, in a Redis.

Usage:
  relockctl [flags] list [PATTERN]    list the locks that are held, one line for each holder
  relockctl [flags] show NAME         show everything that Redis knows about one lock
  relockctl [flags] watch [PATTERN]   list repeatedly, until Ctrl-C
  relockctl [flags] unlock NAME       release a lock by force, after asking

PATTERN is a pattern of Redis, such as 'lock:orders:*'. Without it all locks are
listed. Flags may be anywhere; all arguments after -- are names.

Flags:
  -url URL      redis://user:password@host:port/db, or rediss:// for TLS
  -addr ADDR    host:port, instead of a URL
  -sentinel-master NAME
                the address is that of a Sentinel, which knows the Redis as NAME;
                -addr may then have several addresses, separated by commas
  -wide         list, watch: do not shorten anything, and show the hosts
  -json         print JSON; durations are in milliseconds, and -1 is a lease without end
  -every TIME   watch: the time between two lists; 1s by default, at least 100ms
  -yes          unlock: do not ask
  -version      print the version

Defaults to $REDIS_URL, then localhost:6379 (for a Sentinel: localhost:26379). If the URL
has no password, the password is read from $REDISCLI_AUTH. User and password are those of
the Redis. Those of a Sentinel are parameters of the URL:
redis://:secret@host:26379?sentinel_username=me&sentinel_password=other. For a Cluster
pass the address of any node.

list and watch read the whole keyspace with SCAN, in small steps; in a Cluster they do so
on each master. Keys that the user has no permission to read, and locks with an additional
key that holds other data, are left out and counted.

OWNER is the owner that acquired the lock from Redis. In a Go service its process may have
handed the lock off to another goroutine since, or several readers may share it. LABEL is
the display name of a Go service (see WithLabel of relock). It needs permission for HMGET
on relock_client:*, and is empty for Java services. TYPE lock may also be a fair lock
without waiters.

Names with characters that are not printable are quoted as in Go. Pass such a name with
$'...' of the shell: $'a\x1bb' for "a\x1bb". JSON has U+FFFD for bytes that are not UTF-8,
and escapes all other characters that are not printable.

unlock does not ask the holder, which may still be working. A holder whose lease is
renewed notices the loss at its next renewal; any other holder notices when it next asks
Redis about the lock, or when its lease expires. The next waiter acquires the lock. For a
read/write lock all readers and the writer lose it, and for a semaphore all permits are
released. If the holders change while you are asked, nothing is released.

Exit status:
  0  success; watch was ended with Ctrl-C
  1  Redis cannot be reached or returned an error; the key is not a lock; or the list is
     incomplete, and stderr has the number of keys that are left out
  2  the command line is not valid
  3  show, unlock: the lock is not held
  4  unlock: not released, because you did not answer yes, or the holders have changed
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
	leftOut  int // watch: number of keys that were left out when it was last printed
	redis    *connection
	client   *relock.Client
}

func main() {
	logging.Disable() // of go-redis, which returns everything important as an error
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	p := &program{in: os.Stdin, out: os.Stdout, err: os.Stderr, auth: os.Getenv("REDISCLI_AUTH")}
	err := p.run(ctx, os.Args[1:], os.Getenv("REDIS_URL"))
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
	url, addr := flags.String("url", "", ""), flags.String("addr", "", "")
	master := flags.String("sentinel-master", "", "")
	flags.BoolVar(&p.json, "json", false, "")
	flags.BoolVar(&p.wide, "wide", false, "")
	asksVersion := flags.Bool("version", false, "")
	flags.DurationVar(&p.every, "every", time.Second, "")
	flags.BoolVar(&p.yes, "yes", false, "")
	words, err := parseAnywhere(flags, args)
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
	command, words := "list", words
	if len(words) > 0 {
		command, words = words[0], words[1:]
	}
	do, err := p.command(command, words)
	addrs := strings.Split(*addr, ",")
	switch {
	case err != nil:
		return err
	case p.every < 100*time.Millisecond:
		return badUsage("-every %v: must be at least 100ms", p.every)
	case *url != "" && *addr != "":
		return badUsage("-url and -addr: use only one of them")
	case len(addrs) > 1 && *master == "":
		return badUsage("-addr %s: several addresses are only for -sentinel-master", quote(*addr))
	case *addr != "":
		*url = "redis://" + addrs[0]
	case *url == "":
		*url = env
	}
	if p.redis, err = connect(ctx, place{*url, addrs[1:], *master, p.auth}); err != nil {
		return err
	}
	defer p.redis.rdb.Close()
	if p.client, err = relock.New(p.redis.rdb, relock.WithLogger(slog.New(slog.DiscardHandler))); err != nil {
		return err
	}
	defer p.client.Close()
	return do(ctx)
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

// command returns the function for a command and its arguments.
func (p *program) command(command string, words []string) (do func(context.Context) error, err error) {
	word := ""
	if len(words) > 0 {
		word = words[0]
	}
	named := command == "show" || command == "unlock"
	switch {
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
	case "unlock":
		do = func(ctx context.Context) error { return p.unlock(ctx, word) }
	default:
		err = badUsage("%s: no such command", quote(command))
	}
	return do, err
}

// parseAnywhere is flags.Parse, except that flags may be before, between and after the arguments.
func parseAnywhere(flags *flag.FlagSet, args []string) (words []string, err error) {
	var rest []string
	for i, arg := range args {
		if arg == "--" {
			args, rest = args[:i], args[i+1:]
			break
		}
	}
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		if args = flags.Args(); len(args) == 0 {
			return append(words, rest...), nil
		}
		words, args = append(words, args[0]), args[1:]
	}
}
