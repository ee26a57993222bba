package main

// The commands, with their flags and what the help says about them.

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/relock-go/relock/internal/discover"
)

const aboutAll = `relockctl lists and releases the locks of relock, and of Redisson, in a Redis,
and runs commands under a lock. Without a command it lists all locks.

Without --url and --addr the Redis is that of $REDIS_URL, or localhost:6379 (a
Sentinel: localhost:26379). The password of a URL without one is $REDISCLI_AUTH.
For a Cluster pass the address of any node. All in detail:
https://github.com/relock-go/relock/blob/main/docs/relockctl.md

Exit status:
  0  success
  1  Redis cannot be reached or returned an error, or something else failed
  2  the command line is not valid
  3  show, unlock: the lock is not held
  4  unlock: not released`

const aboutPatterns = `

PATTERN is a pattern of Redis, such as 'lock:orders:*'; without it all locks.`

const exitsOfLists = `

Exit status:
  0  success
  1  Redis failed, or the list is incomplete: stderr counts the keys left out
  2  the command line is not valid`

// commands returns the command relockctl with all others below it.
func (p *program) commands() *cobra.Command {
	cobra.EnableCommandSorting = false
	root := &cobra.Command{
		Use: "relockctl", Short: "lists and releases locks in a Redis, and runs commands under a lock", Long: aboutAll,
		Version:       version(),
		SilenceErrors: true, SilenceUsage: true, // main prints the error
		TraverseChildren:  true, // --addr in front of serve is that of the Redis
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args:              noSuchCommand, RunE: p.locks(p.list),
	}
	root.SetVersionTemplate("relockctl {{.Version}}\n")
	root.SetOut(p.out)
	root.SetErr(p.err)
	p.place.addFlags(root.PersistentFlags())
	root.AddCommand(
		p.listCommand(), p.showCommand(), p.watchCommand(), p.serveCommand(), p.unlockCommand(), p.runCommand(),
		p.completionCommand(root), p.versionCommand(root),
	)
	for _, c := range root.Commands() {
		c.Flags().SortFlags = false
	}
	return root
}

// addFlags adds the flags that say where the Redis is.
func (p *place) addFlags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&p.url, "url", "", "`URL` of the Redis, redis://user:password@host:port/db; rediss:// for TLS")
	flags.StringVar(&p.addr, "addr", "", "`host:port` of the Redis, instead of a URL")
	flags.StringVar(&p.master, "sentinel-master", "", "`name` of the Redis; the address is that of a Sentinel,\n"+
		"and --addr may have several, with commas between")
	flags.StringVar(&p.tls.ca, "tls-ca", "", "`file` of CAs that may have signed the certificate of the Redis")
	flags.StringVar(&p.tls.cert, "tls-cert", "", "`file` of the certificate with which relockctl identifies itself")
	flags.StringVar(&p.tls.key, "tls-key", "", "`file` of the key of --tls-cert")
	flags.BoolVar(&p.tls.insecure, "tls-insecure", false, "accept any certificate: anyone in between can read all")
}

// noSuchCommand returns an error that names the commands that were perhaps meant, unless none was named.
func noSuchCommand(root *cobra.Command, words []string) error {
	switch {
	case len(words) == 0:
		return nil
	case isAddress(words[0]):
		return badUsage("%s", useURL)
	}
	root.SuggestionsMinimumDistance = 2
	text := quote(words[0]) + ": no such command"
	if near := root.SuggestionsFor(words[0]); len(near) > 0 {
		text += " (did you mean " + strings.Join(near, " or ") + "?)"
	}
	return badUsage("%s", text)
}

// locks returns the function of a command for the locks that match a pattern.
func (p *program) locks(do func(ctx context.Context, pattern string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, words []string) error {
		pattern := "*"
		if len(words) == 1 && words[0] != "" {
			pattern = words[0]
		}
		if isAddress(pattern) {
			return badUsage("%s", useURL)
		}
		if p.every < 100*time.Millisecond {
			return badUsage("--every %v: must be at least 100ms", p.every)
		}
		return p.on(c.Context(), func(ctx context.Context) error { return do(ctx, pattern) })
	}
}

// useURL does not contain the address, which may contain a password.
const useURL = "the argument is an address: use --url"

func isAddress(word string) bool {
	return strings.HasPrefix(word, "redis://") || strings.HasPrefix(word, "rediss://")
}

// lock returns the function of a command for one lock.
func (p *program) lock(do func(ctx context.Context, name string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, words []string) error {
		return p.on(c.Context(), func(ctx context.Context) error { return do(ctx, words[0]) })
	}
}

// namesLike returns the names of locks that begin as typed, for a shell, which reads no others than plain ones.
func (p *program) namesLike(c *cobra.Command, words []string, typed string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(c.Context(), 2*time.Second)
	defer cancel()
	switch {
	case len(words) > 0: // perhaps the command of run, and its files
		return nil, cobra.ShellCompDirectiveDefault
	case p.open(ctx) != nil:
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names, _, _ := discover.NewScan(p.redis.rdb, literally(typed)+"*", nil).Step(ctx, 50) // as far as that many SCAN requests find them
	names = slices.DeleteFunc(names, func(name string) bool { return shellWord(name) != name })
	return names, cobra.ShellCompDirectiveNoFileComp
}

// literally returns a pattern of Redis that only name matches.
func literally(name string) string {
	return regexp.MustCompile(`[*?\[\]\\^]`).ReplaceAllString(name, `\$0`)
}

func (p *program) listCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "list [PATTERN]", Short: "list the locks that are held",
		Long: "Lists the locks that are held, with a line for each holder. Those that others\n" +
			"have waited for the longest come first." + aboutPatterns + exitsOfLists,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: p.namesLike,
		RunE:              p.locks(p.list),
	}
	p.addListFlags(c.Flags())
	return c
}

// addListFlags adds the flags of list and watch.
func (p *program) addListFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&p.waiting, "waiting", false, "only locks that others wait for")
	flags.BoolVar(&p.wide, "wide", false, "do not shorten anything, and show the hosts")
	p.addJSON(flags)
}

func (p *program) addJSON(flags *pflag.FlagSet) {
	flags.BoolVar(&p.json, "json", false, "print JSON; durations are in milliseconds, -1 is without end")
}

func (p *program) showCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "show NAME", Short: "show who holds a lock and who waits, and what to do",
		Long: `Shows everything that Redis knows about one lock: who holds it, and who waits.
Says what to do next.

Exit status:
  0  the lock is held
  1  Redis cannot be reached or returned an error, or the key is not a lock
  2  the command line is not valid
  3  the lock is not held`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: p.namesLike,
		RunE:              p.lock(p.show),
	}
	p.addJSON(c.Flags())
	return c
}

func (p *program) watchCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "watch [PATTERN]", Short: "list repeatedly, until Ctrl-C",
		Long:              "Lists the locks that are held, repeatedly, until Ctrl-C." + aboutPatterns + exitsOfLists,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: p.namesLike,
		RunE:              p.locks(p.watch),
	}
	p.addEvery(c.Flags())
	p.addListFlags(c.Flags())
	return c
}

func (p *program) addEvery(flags *pflag.FlagSet) {
	flags.DurationVar(&p.every, "every", time.Second, "the time between two lists, at least 100ms")
}

func (p *program) serveCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "serve [PATTERN]", Short: "serve a web page that shows the locks, until Ctrl-C",
		Long: "Serves a web page that shows who holds which locks, and who waits, until Ctrl-C.\n" +
			"The page has no authentication: everyone who can reach the address can see it." + aboutPatterns + `

Exit status:
  0  ended with Ctrl-C
  1  Redis failed, or the port cannot be opened
  2  the command line is not valid`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: p.namesLike,
		PreRunE:           func(*cobra.Command, []string) (err error) { p.page.tcp, err = p.page.check(); return err },
		RunE:              p.locks(p.serve),
	}
	flags := c.Flags()
	flags.StringVar(&p.page.addr, "addr", defaultPage, "`host:port` of the page; of the Redis in front of serve")
	p.addEvery(flags)
	flags.BoolVar(&p.page.expose, "expose", false, "allow an address that other machines can reach")
	flags.StringSliceVar(&p.page.hosts, "hosts", nil, "further `names` of this host in the URL, commas between")
	flags.BoolVar(&p.page.allowUnlock, "allow-unlock", false, "let the page release locks by force, after asking")
	return c
}

func (p *program) unlockCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "unlock NAME", Short: "release a lock by force, after asking",
		Long: `Releases a lock by force, after asking. Its holder may still be working, and
the next waiter acquires the lock. For a read/write lock all readers lose it,
and for a semaphore all permits are released.

Exit status:
  0  released
  1  Redis cannot be reached or returned an error, or the key is not a lock
  2  the command line is not valid
  3  the lock is not held
  4  not released: you did not answer yes, or the holders have changed meanwhile`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: p.namesLike, SuggestFor: []string{"release", "free", "force"},
		RunE: p.lock(p.unlock),
	}
	c.Flags().BoolVar(&p.yes, "yes", false, "do not ask")
	p.addJSON(c.Flags())
	return c
}

func (p *program) runCommand() *cobra.Command {
	j := &p.job
	c := &cobra.Command{
		Use: "run [flags] NAME -- COMMAND [ARG...]", Short: "run a command while holding a lock",
		Long: `Acquires a lock, runs a command, and releases the lock when it has ended. Its
environment has RELOCK_NAME, and with --fenced RELOCK_TOKEN.

Exit status:
  n    that of the command; 128+n: signal n ended the command, or the wait
  2    the command line is not valid
  75   not acquired in time (with --skip 0 if others hold it), or Redis failed
  76   the lock was lost, or could not be renewed, while the command ran
  126  the command cannot be executed; 127: it was not found`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     p.namesLike,
		RunE: func(c *cobra.Command, args []string) error {
			words, rest := args, []string(nil)
			if n := c.ArgsLenAtDash(); n >= 0 {
				words, rest = args[:n], args[n:]
			}
			if j.permits < 1 && c.Flags().Changed("semaphore") {
				return badUsage("--semaphore %d: must be at least 1", j.permits)
			}
			if err := j.complete(words, rest); err != nil {
				return err
			}
			defer p.close()
			return p.runLocked(c.Context()) // which has its own way with signals
		},
	}
	flags := c.Flags()
	flags.DurationVar(&j.wait, "wait", 10*time.Second, "how long to wait for the lock; 0s: a single attempt")
	flags.DurationVar(&j.lease, "lease", 0, "the lock is not renewed, and the command has that time at most")
	flags.BoolVar(&j.skip, "skip", false, "if others hold the lock for the whole wait, exit with 0")
	flags.DurationVar(&j.grace, "grace", defaultGrace, "tell the command to end so long before the lock expires")
	flags.BoolVar(&j.fair, "fair", false, "use a fair lock")
	flags.BoolVar(&j.fenced, "fenced", false, "draw a fencing token")
	flags.IntVar(&j.permits, "semaphore", 0, "acquire one of that many permits of a semaphore")
	return c
}

func (p *program) completionCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "print a script that completes command lines",
		Long: `Prints a script with which a shell completes the command lines of relockctl:

  bash  source <(relockctl completion bash)   in ~/.bashrc, with bash-completion
  zsh   source <(relockctl completion zsh)    in ~/.zshrc, after compinit
  fish  relockctl completion fish | source    in ~/.config/fish/config.fish`,
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		RunE: func(_ *cobra.Command, words []string) error {
			switch words[0] {
			case "bash":
				return root.GenBashCompletionV2(p.out, true)
			case "zsh":
				return root.GenZshCompletion(p.out)
			}
			return root.GenFishCompletion(p.out, true)
		},
	}
}

func (p *program) versionCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := p.out.WriteString("relockctl " + root.Version + "\n")
			return err
		},
	}
}
