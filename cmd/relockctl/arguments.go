package main

// The arguments, before cobra reads them, and what is said about those that are wrong.
//
// Rules: flags may be anywhere in front of "--", and begin with two dashes, or with one, as in earlier versions. What
// is behind "--" is never looked at. A flag that another command has is refused.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// defaultCommand is meant if none is named.
const defaultCommand = "list"

// arrange returns args in the order in which cobra reads them: flags of root, the command, its flags, and its words.
// All flags have two dashes, and their values behind "=". It returns the command, too, or nil if none is found.
func arrange(root *cobra.Command, args []string) (*cobra.Command, []string, error) {
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		return root, arrangeTyped(root, args), nil
	}
	line, err := read(root, args)
	if err != nil {
		return line.command, nil, err
	}
	for _, asked := range []string{"--help", "--version"} {
		if line.command == nil && slices.Contains(line.front, asked) {
			return root, []string{asked}, nil
		}
	}
	if line.command == nil {
		line.command = find(root, defaultCommand)
	}
	args, err = line.arranged(root)
	return line.command, args, err
}

// arrangeTyped is arrange for a command line that a shell wants to complete: the last argument is not complete, and a
// command that is not there yet is not added. What cannot be arranged is left as it is.
func arrangeTyped(root *cobra.Command, args []string) []string {
	request, typed, last := args[:1], args[1:max(1, len(args)-1)], args[len(args)-1:]
	line, err := read(root, typed)
	if before := len(typed) - 1; err != nil && before >= 0 && strings.HasPrefix(typed[before], "-") {
		if line, err = read(root, typed[:before]); err == nil { // a flag, whose value is not complete
			typed, last = typed[:before], append([]string{"--" + strings.TrimLeft(typed[before], "-")}, last...)
		}
	}
	switch {
	case err != nil:
	case line.command == nil: // the flags of a command cannot be read yet, and do not matter
		typed, _ = line.split(root)
	default:
		if arranged, err := line.arranged(root); err == nil {
			typed = arranged
		}
	}
	return slices.Concat(request, typed, last)
}

// A line is a command line.
type line struct {
	command *cobra.Command // nil if none is named
	front   []string       // flags in front of the command
	flags   []string       // flags behind it
	words   []string
	rest    []string // "--" and what is behind it
}

// read reads args as far as no knowledge of the command is needed.
func read(root *cobra.Command, args []string) (l line, err error) {
	if end := slices.Index(args, "--"); end >= 0 {
		args, l.rest = args[:end], args[end:]
	}
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if len(arg) < 2 || arg[0] != '-' {
			if l.command != nil {
				l.words = append(l.words, arg)
			} else if l.command = find(root, arg); l.command == nil {
				return l, noSuchCommand(root, arg)
			}
			continue
		}
		name, value, given := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if name == "h" {
			name = "help"
		}
		f := flagOf(l.command, root, name)
		if f == nil {
			return l, noSuchFlag(l.command, root, name, arg)
		}
		text := "--" + name
		switch {
		case given:
			text += "=" + value
		case f.NoOptDefVal == "" && len(args) == 0: // it is not a bool
			bad := badUsage
			if root.PersistentFlags().Lookup(name) == f {
				bad = badPlace
			}
			return l, bad("--%s needs a value: --%[1]s %s", name, cmp.Or(valueName(f), "VALUE"))
		case f.NoOptDefVal == "":
			text += "=" + args[0]
			args = args[1:]
		}
		if l.command == nil {
			l.front = append(l.front, text)
		} else {
			l.flags = append(l.flags, text)
		}
	}
	return l, nil
}

// split returns the flags in front of the command that are for root, and the others.
func (l line) split(root *cobra.Command) (ofRoot, others []string) {
	for _, flag := range l.front {
		if root.PersistentFlags().Lookup(nameIn(flag)) != nil {
			ofRoot = append(ofRoot, flag)
		} else {
			others = append(others, flag)
		}
	}
	return ofRoot, others
}

// nameIn returns the name of a flag that begins with two dashes, and may have a value behind "=".
func nameIn(flag string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(flag, "--"), "=")
	return name
}

// arranged returns the line in the order in which cobra reads it.
func (l line) arranged(root *cobra.Command) ([]string, error) {
	front, moved := l.split(root)
	for _, flag := range moved {
		if l.command.Flags().Lookup(nameIn(flag)) == nil {
			return nil, noSuchFlag(l.command, root, nameIn(flag), flag)
		}
	}
	return slices.Concat(front, []string{l.command.Name()}, moved, l.flags, l.words, l.rest), nil
}

// find returns the command with that name, or nil.
func find(root *cobra.Command, name string) *cobra.Command {
	for _, c := range root.Commands() {
		if c.Name() == name {
			return c
		}
	}
	return nil
}

// flagOf returns the flag with that name: of the command, or, in front of it, of any command. A flag takes a value
// either in all commands or in none.
func flagOf(command, root *cobra.Command, name string) *pflag.Flag {
	if name == "version" && command == nil {
		root.InitDefaultVersionFlag()
		return root.Flags().Lookup(name)
	}
	if f := root.PersistentFlags().Lookup(name); f != nil {
		return f
	}
	if command != nil {
		return command.Flags().Lookup(name)
	}
	for _, c := range root.Commands() {
		if f := c.Flags().Lookup(name); f != nil {
			return f
		}
	}
	return nil
}

func valueName(f *pflag.Flag) string {
	name, _ := pflag.UnquoteUsage(f)
	return name
}

// noSuchCommand returns an error that names the commands that were perhaps meant, or all.
func noSuchCommand(root *cobra.Command, word string) error {
	if isAddress(word) {
		return badPlace("%s", useURL)
	}
	root.SuggestionsMinimumDistance = 2
	if near := root.SuggestionsFor(word); len(near) > 0 {
		return badUsage("%s: no such command (did you mean %s?)", quote(word), strings.Join(near, " or "))
	}
	return badUsage("%s: no such command: there are %s", quote(word), enumerate(namesOf(root.Commands())))
}

// meant are flags that other programs have, and what they are called here.
var meant = map[string]string{"host": "addr", "server": "addr", "port": "addr"}

// noSuchFlag returns an error that names the commands that have the flag, or the flag that was perhaps meant. It was
// typed with one dash or two.
func noSuchFlag(command, root *cobra.Command, name, typed string) error {
	of := "relockctl"
	if command != nil {
		of = command.Name()
	}
	dashes := "--"
	if len(name) == 1 && !strings.HasPrefix(typed, dashes) { // a letter, as other programs have it
		dashes = "-"
	}
	text := fmt.Sprintf("%s has no flag %s%s", of, dashes, quote(name))
	var owners, all []string
	for _, c := range root.Commands() {
		if c.Flags().Lookup(name) != nil {
			owners = append(owners, c.Name())
		}
		if c == command || command == nil {
			c.Flags().VisitAll(func(f *pflag.Flag) { all = append(all, f.Name) })
		}
	}
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) { all = append(all, f.Name) })
	if len(owners) > 0 {
		return badUsage("%s, which is for %s", text, enumerate(owners))
	}
	unlike := func(flag string) int {
		switch {
		case len(name) > 1 && strings.HasPrefix(flag, name):
			return 0
		case flag == meant[name]:
			return 1
		}
		return distance(name, flag)
	}
	best := slices.MinFunc(all, func(a, b string) int { return cmp.Compare(unlike(a), unlike(b)) })
	if unlike(best) <= 2 {
		return badUsage("%s (did you mean --%s?)", text, best)
	}
	return badUsage("%s", text)
}

// distance returns in how many letters a and b differ: their Levenshtein distance.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		above := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := above
			if a[i] != b[j] {
				cost++
			}
			above = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

func namesOf(commands []*cobra.Command) (names []string) {
	for _, c := range commands {
		names = append(names, c.Name())
	}
	return names
}

// enumerate returns words as part of a sentence.
func enumerate(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
