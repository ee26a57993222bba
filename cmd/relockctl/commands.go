package main

// The commands, with their flags and what the help says about them. The manual page says more: see manual.go.

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/discover"
)

const summary = `relockctl lists and releases the locks of relock, and of Redisson, in a Redis,
and runs commands under a lock.`

const aboutPatterns = `PATTERN is a pattern of Redis, such as 'lock:orders:*'; without it all locks.`

// commands returns the command relockctl with all others below it.
func (p *program) commands() *cobra.Command {
	cobra.EnableCommandSorting = false
	root := &cobra.Command{
		Use: "relockctl", Short: "lists and releases locks in a Redis, and runs commands under a lock", Long: summary,
		Version:       version(),
		SilenceErrors: true, SilenceUsage: true, // main prints the error
		TraverseChildren:  true, // --addr in front of serve is that of the Redis
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args:              noSuchCommand, RunE: p.locks(p.list),
	}
	root.SetVersionTemplate("relockctl {{.Version}}\n")
	root.SetOut(p.out)
	root.SetErr(p.err)
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { c.Print(helpText(c)) })
	p.place.addFlags(root.PersistentFlags())
	root.AddCommand(
		p.listCommand(), p.showCommand(), p.watchCommand(), p.serveCommand(), p.unlockCommand(), p.runCommand(),
		p.completionCommand(root), p.manCommand(root), p.versionCommand(root),
	)
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) { p.complete(root, f) })
	for _, c := range append(root.Commands(), root) {
		c.Flags().VisitAll(func(f *pflag.Flag) { p.complete(c, f) })
		c.Flags().BoolP("help", "h", false, "describe the command")
		c.Flags().SortFlags = false
	}
	return root
}

// addFlags adds the flags that say where the Redis is.
func (p *place) addFlags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	addText(flags, &p.url, "url", "URL", "redis://user:password@host:port/db; rediss:// for TLS")
	addText(flags, &p.addr, "addr", "ADDR", "host:port, instead of a URL")
	addText(flags, &p.master, "sentinel-master", "NAME", "of the Redis; the address is that of a Sentinel,\n"+
		"and --addr may have several, with commas between")
	addText(flags, &p.tls.ca, "tls-ca", "FILE", "CAs that may have signed the certificate of the Redis")
	addText(flags, &p.tls.cert, "tls-cert", "FILE", "the certificate with which relockctl identifies itself")
	addText(flags, &p.tls.key, "tls-key", "FILE", "the key of --tls-cert")
	flags.BoolVar(&p.tls.insecure, "tls-insecure", false, "accept any certificate: anyone in between can read all")
}

// locks returns the function of a command for the locks that match a pattern.
func (p *program) locks(do func(ctx context.Context, pattern string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, words []string) error {
		pattern := "*"
		switch {
		case len(words) > 1:
			return badUsage("%s %s: more than one argument; quote the pattern", c.Name(), strings.Join(words, " "))
		case len(words) == 1 && isAddress(words[0]):
			return badPlace("%s: %s", c.Name(), useURL)
		case len(words) == 1 && words[0] != "":
			pattern = words[0]
		}
		if c.Flags().Lookup("every") != nil && p.every < 100*time.Millisecond {
			return badUsage("--every %v: must be at least 100ms", p.every)
		}
		return p.withPlace(c, func(ctx context.Context) error { return do(ctx, pattern) })
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
		switch {
		case len(words) > 1:
			return badUsage("%s %s: more than one argument: it takes one name", c.Name(), strings.Join(words, " "))
		case len(words) == 0:
			return badUsage("%s: the name of the lock is missing", c.Name())
		}
		err := p.withPlace(c, func(ctx context.Context) error { return do(ctx, words[0]) })
		if errors.Is(err, relock.ErrInvalid) { // the name is
			return badUsage("%s", plain(err))
		}
		return err
	}
}

func (p *program) withPlace(c *cobra.Command, do func(ctx context.Context) error) error {
	if err := p.place.complete(p.url); err != nil {
		return err
	}
	return p.on(c.Context(), do)
}

// completed is how long a shell may wait for the names of locks, and completing how many SCAN requests that takes.
const (
	completed  = 2 * time.Second
	completing = 50
)

// namesLike returns the names of locks that begin as typed, for a shell, which reads no others than plain ones.
func (p *program) namesLike(c *cobra.Command, words []string, typed string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(c.Context(), completed)
	defer cancel()
	defer p.close()
	if len(words) > 0 || p.place.complete(p.url) != nil || p.open(ctx) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	pattern := regexp.MustCompile(`[*?\[\]\\^]`).ReplaceAllString(typed, `\$0`) + "*"
	names, _, _ := discover.NewScan(p.redis.rdb, pattern, nil).Step(ctx, completing) // there may be none
	names = slices.DeleteFunc(names, func(name string) bool { return shellWord(name) != name })
	return names, cobra.ShellCompDirectiveNoFileComp
}

// complete tells a shell what the value of a flag may be.
func (p *program) complete(c *cobra.Command, f *pflag.Flag) {
	values := cobra.NoFileCompletions
	switch {
	case f.Value.Type() == "FILE":
		return
	case f.Name == "sort":
		values = cobra.FixedCompletions(orders, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveKeepOrder)
	}
	if err := c.RegisterFlagCompletionFunc(f.Name, values); err != nil {
		panic(err) // it is registered twice
	}
}

// The parts of the help that are annotations of a command.
const (
	ofExits  = "exit status"
	ofManual = "manual"
)

func annotated(exits, manual string) map[string]string {
	return map[string]string{ofExits: exits, ofManual: manual}
}

func (p *program) listCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "list [PATTERN]", Short: "list the locks that are held",
		Long: "Lists the locks that are held, with a line for each holder. Those that others\n" +
			"have waited for the longest come first.\n\n" + aboutPatterns,
		Annotations:       annotated(exitsOfLists, manualOfList),
		ValidArgsFunction: p.namesLike,
		RunE:              p.locks(p.list),
	}
	p.addListFlags(c.Flags())
	p.addJSON(c.Flags())
	return c
}

// addListFlags adds the flags of list and watch.
func (p *program) addListFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&p.choice.waiting, "waiting", false, "only locks that others wait for")
	p.choice.sort = byWaiting
	flags.Var(sortFlag{&p.choice.sort}, "sort", "waiting, name or lease (waiting: the longest wait first)")
	flags.BoolVar(&p.wide, "wide", false, "do not shorten anything, and show the hosts")
}

func (p *program) addJSON(flags *pflag.FlagSet) {
	flags.BoolVar(&p.json, "json", false, "print JSON; durations are in milliseconds, -1 is without end")
}

func (p *program) showCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "show NAME", Short: "show who holds a lock and who waits, and what to do",
		Long: "Shows everything that Redis knows about one lock: who holds it, and who waits.\n" +
			"Says what to do, and whether the lease grows (its process is alive) or runs out.",
		Annotations:       annotated(exitsOfShow, manualOfShow),
		ValidArgsFunction: p.namesLike,
	}
	if _, _, people := size(p.out); people {
		p.lookFor = lookOnTerminal
	}
	addTime(c.Flags(), &p.lookFor, "for", p.lookFor,
		"how long to watch whether the lease grows\n(15s on a terminal, else 0)")
	p.addJSON(c.Flags())
	show := p.lock(p.show)
	c.RunE = func(c *cobra.Command, words []string) error {
		switch {
		case p.lookFor < 0:
			return badUsage("--for %v: must not be negative", p.lookFor)
		case p.json && !c.Flags().Changed("for"):
			p.lookFor = 0
		}
		return show(c, words)
	}
	return c
}

func (p *program) watchCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "watch [PATTERN]", Short: "list repeatedly, until Ctrl-C",
		Long:              "Lists the locks that are held, repeatedly, until Ctrl-C.\n\n" + aboutPatterns,
		Annotations:       annotated(exitsOfLists, ""),
		ValidArgsFunction: p.namesLike,
		RunE:              p.locks(p.watch),
	}
	addTime(c.Flags(), &p.every, "every", time.Second, "the time between two lists (1s), at least 100ms")
	p.addListFlags(c.Flags())
	p.addJSON(c.Flags())
	return c
}

func (p *program) serveCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "serve [PATTERN]", Short: "serve a web page that shows the locks, until Ctrl-C",
		Long: "Serves a web page that shows who holds which locks, and who waits, until Ctrl-C.\n" +
			"The page has no authentication: everyone who can reach the address can see it.\n\n" + aboutPatterns,
		Annotations:       annotated(exitsOfServe, manualOfServe),
		ValidArgsFunction: p.namesLike,
	}
	flags := c.Flags()
	p.page.addr = defaultPage
	addText(flags, &p.page.addr, "addr", "ADDR", "of the page (127.0.0.1:8080); of the Redis in front of serve")
	addTime(flags, &p.every, "every", time.Second, "the time between two lists (1s), at least 100ms")
	flags.BoolVar(&p.page.expose, "expose", false, "allow an address that other machines can reach")
	addText(flags, &p.page.hosts, "hosts", "NAMES", "further names of this host in the URL, commas between")
	flags.BoolVar(&p.page.allowUnlock, "allow-unlock", false, "let the page release locks by force, after asking")
	serve := p.locks(p.serve)
	c.RunE = func(c *cobra.Command, words []string) error {
		if err := p.page.check(); err != nil {
			return err
		}
		return serve(c, words)
	}
	return c
}

func (p *program) unlockCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "unlock NAME", Short: "release a lock by force, after asking",
		Long: "Releases a lock by force, after asking. Its holder may still be working, and\n" +
			"the next waiter acquires the lock. For a read/write lock all readers lose it,\n" +
			"and for a semaphore all permits are released.",
		Annotations:       annotated(exitsOfUnlock, manualOfUnlock),
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
		Use: "run NAME -- COMMAND [ARG...]", Short: "run a command while holding a lock",
		Long: "Acquires a lock, runs a command, and releases the lock when it has ended. Its\n" +
			"environment has RELOCK_NAME, and with --fenced RELOCK_TOKEN.",
		Annotations: annotated(exitsOfRun, manualOfRun),
		ValidArgsFunction: func(c *cobra.Command, words []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(words) > 0 { // the command, and its files
				return nil, cobra.ShellCompDirectiveDefault
			}
			return p.namesLike(c, words, typed)
		},
		RunE: func(c *cobra.Command, args []string) error {
			words, rest := args, []string(nil)
			if n := c.ArgsLenAtDash(); n >= 0 {
				words, rest = args[:n], args[n:]
			}
			if err := j.complete(words, rest); err != nil {
				return err
			}
			if err := p.place.complete(p.url); err != nil {
				return err
			}
			defer p.close()
			return p.runLocked(c.Context()) // which has its own way with signals
		},
	}
	flags := c.Flags()
	addTime(flags, &j.wait, "wait", 10*time.Second, "how long to wait for the lock (10s); 0: a single attempt")
	addTime(flags, &j.lease, "lease", 0, "the lock is not renewed, and the command has that time at most")
	flags.BoolVar(&j.skip, "skip", false, "if others hold the lock for the whole wait, exit with 0")
	addTime(flags, &j.grace, "grace", defaultGrace, "tell the command to end so long before the lock expires (5s)")
	flags.BoolVar(&j.fair, "fair", false, "use a fair lock")
	flags.BoolVar(&j.fenced, "fenced", false, "draw a fencing token")
	flags.Var(permitsFlag{&j.permits}, "semaphore", "acquire one of `N` permits of a semaphore")
	return c
}

func (p *program) completionCommand(root *cobra.Command) *cobra.Command {
	shells := map[string]func() error{
		"bash": func() error { return root.GenBashCompletionV2(p.out, true) },
		"zsh":  func() error { return root.GenZshCompletion(p.out) },
		"fish": func() error { return root.GenFishCompletion(p.out, true) },
	}
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "print a script that completes command lines",
		Long: `Prints a script with which a shell completes the command lines of relockctl:

  bash  source <(relockctl completion bash)   in ~/.bashrc, with bash-completion
  zsh   source <(relockctl completion zsh)    in ~/.zshrc, after compinit
  fish  relockctl completion fish | source    in ~/.config/fish/config.fish`,
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(_ *cobra.Command, words []string) error {
			if len(words) != 1 || shells[words[0]] == nil {
				return badUsage("completion: needs the name of a shell: bash, zsh or fish")
			}
			return shells[words[0]]()
		},
	}
}

func (p *program) manCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "man", Short: "print the manual page",
		Long: `Prints the manual page, which explains everything:

  relockctl man | man -l -                              read it
  relockctl man >~/.local/share/man/man1/relockctl.1    install it`,
		RunE: func(c *cobra.Command, words []string) error {
			if err := noWords(c, words); err != nil {
				return err
			}
			_, err := p.out.WriteString(manual(root))
			return err
		},
	}
}

func (p *program) versionCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the version",
		RunE: func(c *cobra.Command, words []string) error {
			if err := noWords(c, words); err != nil {
				return err
			}
			_, err := p.out.WriteString("relockctl " + root.Version + "\n")
			return err
		},
	}
}

// noSuchCommand returns an error that names the commands that were perhaps meant, unless none was named.
func noSuchCommand(root *cobra.Command, words []string) error {
	switch {
	case len(words) == 0:
		return nil
	case isAddress(words[0]):
		return badPlace("%s", useURL)
	}
	root.SuggestionsMinimumDistance = 2
	text := quote(words[0]) + ": no such command"
	if near := root.SuggestionsFor(words[0]); len(near) > 0 {
		text += " (did you mean " + strings.Join(near, " or ") + "?)"
	}
	return badUsage("%s", text)
}

func noWords(c *cobra.Command, words []string) error {
	if len(words) > 0 {
		return badUsage("%s takes no argument", c.Name())
	}
	return nil
}

// A textFlag is a flag for a text of some kind, which the help names.
type textFlag struct {
	to   *string
	kind string
}

func (f textFlag) String() string { return *f.to }
func (f textFlag) Type() string   { return f.kind }

func (f textFlag) Set(text string) error {
	*f.to = text
	return nil
}

// addText adds a flag for a text.
func addText(flags *pflag.FlagSet, to *string, name, kind, usage string) {
	flags.Var(textFlag{to, kind}, name, usage)
}

// A timeFlag is a flag for a time with its unit.
type timeFlag struct{ to *time.Duration }

func (f timeFlag) String() string { return f.to.String() }
func (f timeFlag) Type() string   { return "TIME" }

func (f timeFlag) Set(text string) (err error) {
	if *f.to, err = time.ParseDuration(text); err != nil {
		return errors.New("must be a time with its unit, such as 10s or 500ms")
	}
	return nil
}

// addTime adds a flag for a time, of which d is the default.
func addTime(flags *pflag.FlagSet, to *time.Duration, name string, d time.Duration, usage string) {
	*to = d
	flags.Var(timeFlag{to}, name, usage)
}

// A sortFlag is the flag for the order of a list.
type sortFlag struct{ to *string }

func (f sortFlag) String() string { return *f.to }
func (f sortFlag) Type() string   { return "KEY" }

func (f sortFlag) Set(text string) error {
	if !slices.Contains(orders, text) {
		return errors.New("must be waiting, name or lease")
	}
	*f.to = text
	return nil
}

// A permitsFlag is the flag for the number of permits.
type permitsFlag struct{ to *int }

func (f permitsFlag) String() string { return strconv.Itoa(*f.to) }
func (f permitsFlag) Type() string   { return "N" }

func (f permitsFlag) Set(text string) (err error) {
	if *f.to, err = strconv.Atoi(text); err != nil || *f.to < 1 {
		return errors.New("must be a number of permits, at least 1")
	}
	return nil
}
