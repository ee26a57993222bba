// Relockctl shows and frees the locks of relock, and of Redisson, in a Redis.
//
//	go run github.com/relock-go/relock/cmd/relockctl@latest -h
//
// The result goes to stdout, all other text to stderr. With -json stdout is JSON and
// nothing else. Names are printed so that they cannot do anything to a terminal. Only
// unlock writes to Redis.
package main

// The command line: what can be said, what is refused, and what the exit status means.

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

const usage = `relockctl shows and frees the locks of relock, and of Redisson, in a Redis.

Usage:
  relockctl [flags] list [PATTERN]    the locks that are held, a line for each holder
  relockctl [flags] show NAME         all that Redis knows of one lock, held or not
  relockctl [flags] watch [PATTERN]   list, again and again, until Ctrl-C
  relockctl [flags] unlock NAME       free a lock, whichever client holds it, after asking

PATTERN is one of Redis, such as 'lock:orders:*'; without it, all locks are listed.
Flags may stand anywhere; after -- everything is a name.

Flags:
  -url URL      redis://user:password@host:port/db, or rediss:// for TLS
  -addr ADDR    host:port, instead of a URL
  -sentinel-master NAME
                the address is that of a Sentinel, which knows the Redis by NAME;
                -addr may have several, with commas between them
  -wide         list, watch: names, owners and clients in full, and the hosts
  -version      say which version this is
  -json         print JSON: durations in ms, -1 for a lease that never ends
  -every TIME   watch: how often to look; 1s by default, at least 100ms
  -yes          unlock: do not ask

Without -url and -addr, the environment variable REDIS_URL counts, where a password
is not in sight, and then localhost:6379, or 26379 for a Sentinel. Where no password
stands there, that of the environment variable REDISCLI_AUTH counts. User and password
are those of the Redis; those of a Sentinel go behind the URL, as in
redis://:secret@host:26379?sentinel_username=me&sentinel_password=other. Of a Cluster
any node will do.

The whole keyspace is looked through, with SCAN, a little at a time; of a Cluster that
of each master. A key that the user may not read, and a lock with a key beside it that
no lock makes, are left out of a list and counted. The owner of a Go service is who took
the lock from Redis: its process may have handed it over to another one since, and readers
of one process may share it.

LABEL is what a service calls itself: see WithLabel of relock. It takes the right to
hmget on relock_client:*; without it, and for Java, there is none.

A name that is not plain text is printed as Go quotes it, and given to show and unlock
as $'...' of the shell: $'a\x1bb' for "a\x1bb". In JSON a byte that is no UTF-8 is U+FFFD,
and what is not printable is escaped.

The holder of a lock that is freed is not asked, and may still be at work: it notices
the loss at its next renewal. Waiters are woken. Of a read/write lock all readers and
the writer lose it. If it changes hands while you are asked, it is not freed.

Exit status:
  0  done; watch was ended with Ctrl-C
  1  Redis could not be reached, or refused; or the key of that name is not a lock;
     or the list is not whole: stderr counts what it leaves out
  2  the command line is not valid
  3  the lock is not held: show, unlock
  4  not freed: you did not say yes, or the lock has changed hands meanwhile
`

// The exit statuses of main.
const (
	statusDone = iota
	statusFailed
	statusUsage
	statusFree
	statusNotFreed
)

// A statusError ends the program with a status of its own.
type statusError struct {
	status int
	text   string
}

func (e statusError) Error() string { return e.text }

func badUsage(format string, args ...any) error {
	return statusError{statusUsage, fmt.Sprintf(format, args...) + "; relockctl -h explains"}
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
	leftOut  int // watch: how many keys were left out when it last said so
	redis    *connection
	client   *relock.Client
}

func main() {
	logging.Disable() // of go-redis: what matters comes back as an error
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
		return badUsage("-every %v: at least 100ms", p.every)
	case *url != "" && *addr != "":
		return badUsage("-url and -addr: one of them")
	case len(addrs) > 1 && *master == "":
		return badUsage("-addr %s: several are those of Sentinels, for -sentinel-master", quote(*addr))
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

// version is that of the module, and the commit where Go knows it.
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

// command is what these words ask for.
func (p *program) command(command string, words []string) (do func(context.Context) error, err error) {
	word := ""
	if len(words) > 0 {
		word = words[0]
	}
	named := command == "show" || command == "unlock"
	switch {
	case len(words) > 1:
		err = badUsage("%s %s: more than one word; quote a pattern", command, strings.Join(words, " "))
	case named && len(words) == 0:
		err = badUsage("%s: which lock?", command)
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

// parseAnywhere is flags.Parse with flags before, between and after the words.
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
