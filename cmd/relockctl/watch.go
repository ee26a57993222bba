package main

// The command watch.
//
// Rules: on a terminal it uses the alternate screen, which is restored however the program ends; elsewhere it prints
// one list after the other. If Redis is unreachable, watch waits until it is back.

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	// These sequences select the alternate screen, without a cursor and line breaks, and restore the screen.
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leaveScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"

	home      = "\x1b[H"
	clearLine = "\x1b[K\r\n"
	clearRest = "\x1b[J"
)

// watch lists the locks repeatedly, until ctx is done.
func (p *program) watch(ctx context.Context, pattern string) error {
	draw := p.append
	if _, _, terminal := size(p.out); terminal && !p.json {
		if _, err := io.WriteString(p.out, enterScreen); err != nil {
			return err
		}
		defer func() { _, _ = io.WriteString(p.out, leaveScreen) }()
		draw = p.redraw
	}
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for seen := false; ; seen = true {
		found, err := p.held(ctx, pattern)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !seen:
			return err
		}
		if err := draw(pattern, found, err); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// append prints the list below the previous one.
func (p *program) append(pattern string, found finding, failed error) error {
	if failed != nil {
		fmt.Fprintln(p.err, "relockctl:", failed.Error()+advice(failed))
		return nil
	}
	if n := len(found.LeftOut); n != p.leftOut {
		if p.leftOut = n; n > 0 {
			err := found.notWhole()
			fmt.Fprintln(p.err, "relockctl:", err.Error()+advice(err))
		}
	}
	if p.json {
		return p.print(asJSON(found.Locks))
	}
	table, _ := p.table(found.Locks)
	_, err := fmt.Fprintf(p.out, "%s\n%s\n", p.title(pattern, found, nil), table)
	return err
}

// redraw prints the list over the previous one.
func (p *program) redraw(pattern string, found finding, failed error) error {
	_, rows, _ := size(p.out)
	lines := []string{p.title(pattern, found, failed) + "   Ctrl-C ends", ""}
	if len(found.Locks) > 0 {
		table, note := p.table(found.Locks)
		lines[1] = strings.TrimSuffix(note, "\n")
		lines = append(lines, strings.Split(strings.TrimSuffix(table, "\n"), "\n")...)
	}
	if more := len(lines) - (rows - 1); rows > 4 && more > 0 {
		lines = append(lines[:rows-2], fmt.Sprintf("… and %d more lines", more+1))
	}
	// One write, so that the screen never shows half of the list.
	_, err := io.WriteString(p.out, home+strings.Join(lines, clearLine)+clearLine+clearRest)
	return err
}

func (p *program) title(pattern string, found finding, failed error) string {
	state := found.total
	switch {
	case len(found.LeftOut) > 0:
		state += ", " + found.counted()
	case failed != nil:
		state = quote(failed.Error())
	}
	now := time.Now().Format(time.TimeOnly)
	return fmt.Sprintf("%s   locks %s at %s: %s", now, quote(pattern), p.redis.where, state)
}
