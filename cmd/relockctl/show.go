package main

// Output of locks, as text and as JSON.
//
// Rules: a name with characters that are not printable is quoted, as Go quotes it, so that none of these characters
// reaches the terminal; labels and hosts are text already when Inspect returns them. A list on a terminal shortens long
// texts; JSON and show do not. JSON escapes all characters that are not printable.

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/discover"
	"github.com/relock-go/relock/internal/growth"
)

// list prints the locks that are held.
func (p *program) list(ctx context.Context, pattern string) error {
	found, err := p.held(ctx, pattern)
	switch {
	case err != nil:
	case p.json:
		err = p.print(asJSON(found.Locks))
	case len(found.Locks) > 0:
		text, note := p.table(found.Locks)
		if _, _, people := size(p.out); people { // programs count the lines
			text += "\n" + found.total + "\n" + note
		}
		_, err = io.WriteString(p.out, text)
	case len(found.LeftOut) == 0:
		fmt.Fprintln(p.err, p.nothing(pattern, found))
	}
	return cmp.Or(err, found.notWhole())
}

// show prints one lock, and what to do about it.
func (p *program) show(ctx context.Context, name string) error {
	i, err := p.client.Inspect(ctx, name)
	switch {
	case err != nil:
		return err
	case p.json:
		err = p.print(lockJSON(i))
	default:
		_, err = io.WriteString(p.out, p.details(i)+next(i))
	}
	if err == nil && !i.Held() {
		err = statusError{statusFree, ""}
		if hint := notAName("show", name); hint != "" {
			err = statusError{statusFree, p.isNotHeld(name) + hint}
		}
	}
	return err
}

// next returns what to do about a lock that is held, with the commands for it.
func next(i relock.Inspection) string {
	if len(i.Holders) == 0 {
		return ""
	}
	attached := slices.ContainsFunc(i.Holders, func(h relock.Holder) bool { return !h.Detached })
	text := ""
	switch {
	case i.TTL < 0:
		text = "find out who has acquired it without an end of its lease, which relock never does.\n"
	case !attached:
		text = "find out why no process has attached it. It is free when its lease ends.\n"
	default:
		text = fmt.Sprintf("see whether LEASE rises within %v. If so, its process is alive, and keeps the lock.\n"+
			"Otherwise its process has ended, is paused, cannot reach Redis, or asked for a lease that\n"+
			"is not renewed, or MinHold keeps the lock: it is free when the lease ends.\n  relockctl watch %s   # shows LEASE every second\n",
			growth.Within(i.TTL).Round(time.Second), argument(literally(i.Name)))
	}
	return fmt.Sprintf("\nNext: %s  relockctl unlock %s   # %s: make sure first that nobody works under it\n", text,
		argument(i.Name), releases(i))
}

// print prints v as JSON on one line.
func (p *program) print(v any) error {
	text, err := json.Marshal(v)
	if err == nil {
		_, err = fmt.Fprintf(p.out, "%s\n", harmless(string(text)))
	}
	return err
}

// harmless returns JSON in which no character can affect a terminal: characters that are not printable, such as C1
// controls and the overrides of the direction of text, are escaped. They occur only in strings.
func harmless(text string) string {
	var out strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&out, `\u%04x`, unit)
		}
	}
	return out.String()
}

// table returns a table with a line for each holder of each lock. On a terminal it is as wide as that, if need be by
// shorter texts and by less columns, which the note names.
func (p *program) table(locks []relock.Inspection) (text, note string) {
	columns, _, _ := size(p.out)
	n := 100
	if p.wide || columns == 0 {
		n, columns = 1<<20, 1<<20
	}
	for brief, width := false, columns+1; width > columns && n >= 8; n = n * 7 / 8 {
		if n < 26 && !brief {
			n, brief = 42, true
			note = "Not shown for lack of width: HOLDS, OWNER and CLIENT. --wide shows all.\n"
		}
		text, width = p.lines(locks, n, brief)
	}
	return text, note
}

// lines returns the table, with texts of n characters at most, and longer names, and without some columns if it is brief.
func (p *program) lines(locks []relock.Inspection, n int, brief bool) (table string, width int) {
	var rows []row
	for _, i := range locks {
		for _, h := range i.Holders {
			owner, client, has, host := short(quote(h.Owner), n), orNone(h.Client), holds(h), none
			switch {
			case p.wide:
				host = orNone(h.Host)
			case brief:
				owner, client, has = none, none, none
			default:
				client = fmt.Sprintf("%.8s", client) // enough to find it in logs
			}
			color := ""
			switch {
			case h.Remaining <= 0:
				color = red
			case waitersOf(i) > 0:
				color = yellow
			}
			rows = append(rows, row{color, []string{
				short(quote(i.Name), max(n+n/2, 20)), short(typeOf(i, h), max(n, 12)), owner, client, has, lease(h.Remaining), haveWaited(i),
				waiting(i), short(orNone(h.Label), n), host,
			}})
		}
	}
	heads := []string{"NAME", "TYPE", "OWNER", "CLIENT", "HOLDS", "LEASE", "HAS WAITED", "WAITING", "LABEL", "HOST"}
	return p.aligned(heads, rows)
}

// holds returns how much the holder has of its lock: its hold count, or its permits.
func holds(h relock.Holder) string {
	if h.Permits > 0 {
		return permits(h.Permits)
	}
	return strconv.Itoa(h.HoldCount)
}

// waiting returns the number of waiters. Those that are gone are counted apart.
func waiting(i relock.Inspection) string {
	text := strconv.Itoa(waitersOf(i))
	if i.Gone > 0 {
		text += fmt.Sprintf(", and %d gone", i.Gone)
	}
	return text
}

// haveWaited returns the text for how long others have waited for a lock at least.
func haveWaited(i relock.Inspection) string {
	first := firstSince(i)
	switch {
	case !first.Equal(never):
		return since(i, first)
	case waitersOf(i) > 0:
		return "unknown"
	}
	return none
}

// since returns the text for the time since t, as far as it is known.
func since(i relock.Inspection, t time.Time) string {
	return max(0, i.At.Sub(t)).Truncate(time.Second).String()
}

func isGone(w relock.Waiter) bool { return w.Reachable == relock.ReachableNo }

// details returns everything that is known about a lock.
func (p *program) details(i relock.Inspection) string {
	lockType := typeText(i)
	switch {
	case i.Type == relock.TypeNone:
		lockType = "none: not held, and no known waiters"
	case i.Ambiguous:
		lockType = "semaphore, or another counter, such as a latch, which looks the same without holders"
	}
	var out strings.Builder
	fact := func(name, text string) { fmt.Fprintf(&out, "%-11s%s\n", name, text) }
	fact("name", quote(i.Name))
	fact("redis", p.redis.where)
	fact("type", lockType)
	if i.Type != relock.TypeNone && len(i.Holders) == 0 {
		fact("held by", "no owner")
	}
	if len(i.Holders) > 0 {
		fact("lease", lease(i.TTL))
	}
	if i.Type == relock.TypeSemaphore {
		fact("available", available(i))
	}
	fact("waiting", waiting(i))
	if i.More {
		fact("shown", fmt.Sprintf("%d holders and %d waiters; there are more", len(i.Holders), len(i.Waiters)))
	}
	if i.Token != 0 {
		fact("token", fmt.Sprintf("%d, the last one", i.Token))
	}
	var holders, waiters []row
	for _, h := range i.Holders {
		holders = append(holders, row{"", []string{
			quote(h.Owner), orNone(h.Client), orNone(h.Label), orNone(h.Host), roleOf(i, h), holds(h), lease(h.Remaining),
		}})
	}
	for _, gone := range []bool{false, true} { // who is gone comes last, without a place
		for _, w := range i.Waiters {
			if isGone(w) != gone {
				continue
			}
			place, as := none, none
			if !gone {
				place = strconv.Itoa(len(waiters) + 1)
			}
			switch {
			case w.Permits > 0:
				as = permits(w.Permits)
			case w.Write:
				as = "write"
			}
			waiters = append(waiters, row{"", []string{
				place, quote(w.Owner), orNone(w.Client), orNone(w.Label), orNone(w.Host), as, waits(i, w),
				string(w.Reachable), until(i, w.AliveUntil), until(i, w.Deadline),
			}})
		}
	}
	if len(holders) > 0 {
		heads := []string{"HOLDER", "CLIENT", "LABEL", "HOST", "AS", "HOLDS", "LEASE"}
		table, _ := p.aligned(heads, holders)
		out.WriteString("\n" + table)
	}
	if len(waiters) > 0 {
		heads := []string{
			"", "WAITER", "CLIENT", "LABEL", "HOST", "AS", "HAS WAITED", "REACHABLE", "ALIVE FOR", "JAVA DEADLINE",
		}
		table, _ := p.aligned(heads, waiters)
		out.WriteString("\n" + table)
	}
	return out.String()
}

func typeOf(i relock.Inspection, h relock.Holder) string {
	if i.Type == relock.TypeReadWrite {
		return roleOf(i, h)
	}
	return typeText(i)
}

// typeText returns the type of a lock as far as it is known.
func typeText(i relock.Inspection) string {
	if discover.MayBeElection(i) {
		return discover.FencedOrElection
	}
	return string(i.Type)
}

// roleOf returns which of the two locks of a read/write lock a hold has.
func roleOf(i relock.Inspection, h relock.Holder) string {
	switch {
	case i.Type != relock.TypeReadWrite:
		return none
	case h.Write:
		return "write"
	}
	return "read"
}

func permits(n int) string { return count(n, "permit") }

// available returns how many permits of a semaphore are free, and of how many if that is known: without holders the key
// may be another counter.
func available(i relock.Inspection) string {
	if i.More || i.Ambiguous {
		return permits(i.Available)
	}
	return fmt.Sprintf("%d of %s", i.Available, permits(i.Available+heldPermits(i)))
}

// count returns the number n of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// lease returns the text for a remaining lease.
func lease(left time.Duration) string {
	switch {
	case left < 0:
		return "no end"
	case left == 0:
		return "expired"
	}
	return duration(left)
}

// until returns the text for the time from the inspection i until t.
func until(i relock.Inspection, t time.Time) string {
	if t.IsZero() {
		return none
	}
	return lease(max(0, t.Sub(i.At)))
}

// waits returns the text for how long a waiter has waited at least. Nobody knows how long one has waited that is gone.
func waits(i relock.Inspection, w relock.Waiter) string {
	switch {
	case isGone(w):
		return "gone"
	case w.Since.IsZero():
		return "unknown"
	}
	return since(i, w.Since)
}

func duration(d time.Duration) string {
	if d < time.Minute {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// none stands for a text that there is not.
const none = "-"

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}

// quote returns name unchanged if it is plain text, and quoted as in Go otherwise.
func quote(name string) string {
	if name == "" || strings.TrimSpace(name) != name || strings.Contains(name, `"`) || strings.ContainsFunc(name, isOdd) {
		return strconv.Quote(name)
	}
	return name
}

func isOdd(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }

// argument returns name as an argument of relockctl that a shell reads.
func argument(name string) string {
	if strings.HasPrefix(name, "-") {
		return "-- " + shellWord(name)
	}
	return shellWord(name)
}

// shellWord returns name as a word that a shell reads.
func shellWord(name string) string {
	switch {
	case regexp.MustCompile(`^[\w:./@%+=,-]+$`).MatchString(name):
		return name
	case !strings.ContainsFunc(name, isOdd):
		return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
	}
	quoted := strconv.Quote(name)
	return "$'" + strings.ReplaceAll(quoted[1:len(quoted)-1], "'", `\'`) + "'"
}

// The types that --json prints. Scripts rely on these names.
type (
	jsonLock struct {
		Name      string       `json:"name"`
		At        time.Time    `json:"at"`
		Type      string       `json:"type"` // "" if there is no lock
		Mode      string       `json:"mode,omitempty"`
		Held      bool         `json:"held"`
		TTL       int64        `json:"ttl_ms"`
		Token     int64        `json:"token,omitempty"`
		Available *int         `json:"available,omitempty"` // free permits of a semaphore
		Holders   []jsonHolder `json:"holders"`
		Waiters   []jsonWaiter `json:"waiters"` // the first 1,000
		Waiting   int          `json:"waiting"` // how many there are that are not gone
		Gone      int          `json:"gone,omitempty"`
	}
	jsonContender struct {
		Field  string `json:"field"`
		Client string `json:"client"`
		Owner  string `json:"owner"`
		Label  string `json:"label,omitempty"`
		Host   string `json:"host,omitempty"`
	}
	jsonHolder struct {
		jsonContender
		Write     bool  `json:"write"`
		HoldCount int   `json:"hold_count"`
		Permits   int   `json:"permits,omitempty"`  // of a semaphore
		Detached  bool  `json:"detached,omitempty"` // no process has attached it yet
		Remaining int64 `json:"remaining_ms"`
	}
	jsonWaiter struct {
		jsonContender
		Write      bool      `json:"write"`
		Permits    int       `json:"permits,omitempty"` // of a semaphore
		Since      time.Time `json:"since,omitzero"`    // whole seconds
		Reachable  string    `json:"reachable"`         // "yes", "no" or "unknown"
		Deadline   time.Time `json:"deadline,omitzero"`
		AliveUntil time.Time `json:"alive_until,omitzero"`
	}
	jsonUnlock struct {
		Unlocked bool     `json:"unlocked"`
		Lock     jsonLock `json:"lock"` // as it was before
	}
)

func asJSON(locks []relock.Inspection) []jsonLock {
	all := make([]jsonLock, len(locks))
	for n, i := range locks {
		all[n] = lockJSON(i)
	}
	return all
}

func lockJSON(i relock.Inspection) jsonLock {
	lock := jsonLock{
		Name: i.Name, At: i.At.UTC(), Type: string(i.Type), Mode: i.Mode, Held: i.Held(), TTL: i.TTL.Milliseconds(),
		Token:   i.Token,
		Holders: []jsonHolder{}, Waiters: []jsonWaiter{}, Waiting: waitersOf(i), Gone: i.Gone,
	}
	if i.Type == relock.TypeSemaphore {
		lock.Available = &i.Available
	}
	for _, h := range i.Holders {
		lock.Holders = append(
			lock.Holders,
			jsonHolder{
				jsonContender(h.Contender), h.Write, h.HoldCount, h.Permits, h.Detached, h.Remaining.Milliseconds(),
			},
		)
	}
	for _, w := range i.Waiters {
		lock.Waiters = append(lock.Waiters, jsonWaiter{
			jsonContender(w.Contender), w.Write, w.Permits, w.Since.UTC(), string(w.Reachable), w.Deadline.UTC(),
			w.AliveUntil.UTC(),
		})
	}
	return lock
}
