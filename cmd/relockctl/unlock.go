package main

// The command unlock.
//
// Rules: only the holders that were shown lose the lock: the script that releases it leaves those alone that have
// acquired it since. The exception is a semaphore with more permits than are shown. A key that is not a lock is refused
// by Inspect, and by ForceUnlock.

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/relock-go/relock"
)

var errChanged = statusError{statusNotFreed, "not released: the holders have changed meanwhile"}

// unlock releases the lock with the given name.
func (p *program) unlock(ctx context.Context, name string) error {
	i, err := p.heldBy(ctx, name)
	if err == nil && !p.yes {
		i, err = p.confirmed(ctx, i)
	}
	if err != nil {
		return err
	}
	freed := false
	if releasesAll(i) { // the number of permits is in Redis
		freed, err = p.client.NewSemaphore(name, 1).ForceUnlock(ctx)
	} else {
		freed, err = p.client.ForceUnlock(ctx, i)
	}
	if err == nil && !freed { // those that were shown do not hold it any more
		_, err = p.heldBy(ctx, name)
		err = cmp.Or(err, error(errChanged))
	}
	switch {
	case err != nil:
		return err
	case p.json:
		return p.print(jsonUnlock{true, lockJSON(i)})
	}
	_, err = fmt.Fprintf(p.out, "%s was released.\n", quote(name))
	return err
}

// heldBy returns the lock with the given name, or an error if it is not held.
func (p *program) heldBy(ctx context.Context, name string) (relock.Inspection, error) {
	i, err := p.client.Inspect(ctx, name)
	if err == nil && len(i.Holders) == 0 {
		err = statusError{statusFree, p.isNotHeld(name) + notAName("unlock", name)}
		if p.json {
			err = cmp.Or(p.print(jsonUnlock{false, lockJSON(i)}), err)
		}
	}
	return i, err
}

// confirmed shows a lock, and returns it as it is after the answer. It returns an error unless that is yes, and if the
// holders have changed.
func (p *program) confirmed(ctx context.Context, i relock.Inspection) (relock.Inspection, error) {
	p.colors = hasColors(p.err) // which the question is written to
	fmt.Fprintf(p.err, "%s\nThis %s. A holder may still be working. Release it? [y/N] ", p.details(i), releases(i))
	answer := p.answer(ctx)
	if answer == "" {
		return i, statusError{statusNotFreed, "not released: no answer: pass --yes in a script"}
	}
	if word := strings.ToLower(strings.TrimSpace(answer)); word != "y" && word != "yes" {
		return i, statusError{statusNotFreed, "not released"}
	}
	now, err := p.heldBy(ctx, i.Name)
	if err == nil && !slices.EqualFunc(i.Holders, now.Holders, func(a, b relock.Holder) bool { return a.Field == b.Field }) {
		err = errChanged
	}
	return now, err
}

// releases returns what unlock does: it releases everything that is held of a lock.
func releases(i relock.Inspection) string {
	held, holders := heldPermits(i), len(i.Holders)
	text := "releases "
	switch {
	case releasesAll(i):
		return text + "all permits of all holders, also of those that are not shown"
	case held > 0:
		text += permits(held)
	default:
		text += "the lock"
	}
	if holders > 1 {
		text += fmt.Sprintf(" of %d holders", holders)
	}
	return text
}

// heldPermits returns how many permits the holders of a semaphore have that i has.
func heldPermits(i relock.Inspection) (n int) {
	for _, h := range i.Holders {
		n += h.Permits
	}
	return n
}

// releasesAll reports whether holders lose the lock that are not in i. Only a semaphore may have so many.
func releasesAll(i relock.Inspection) bool { return i.Type == relock.TypeSemaphore && i.More }

// isNotHeld says that a lock is not held, and where: it may be held in another Redis, or in another database.
func (p *program) isNotHeld(name string) string {
	return quote(name) + " is not held at " + p.redis.where
}

// wildcards are the characters by which a pattern is known.
const wildcards = "*?["

// notAName returns what is to be added for a lock that is not held, and whose name looks like something else. A name
// may look like that.
func notAName(command, name string) string {
	switch {
	case strings.Contains(name, "…"):
		return "; the name was shortened: list --wide shows it whole"
	case !strings.ContainsAny(name, wildcards):
		return ""
	}
	return fmt.Sprintf("; %s takes the name of one lock, and not a pattern: relockctl list %s lists those that match it",
		command, argument(name))
}

// answer returns the line with which the user answers before ctx is done, or "".
func (p *program) answer(ctx context.Context) string {
	answer := make(chan string, 1)
	go func() { // a read cannot be interrupted: this goroutine ends with the program
		line, err := bufio.NewReader(p.in).ReadString('\n')
		if err != nil {
			fmt.Fprintln(p.err)
		}
		if err != nil && err != io.EOF {
			line = ""
		}
		answer <- line
	}()
	select {
	case line := <-answer:
		return line
	case <-ctx.Done():
		fmt.Fprintln(p.err)
		return "no"
	}
}
