package relockui

// What the page shows of a lock, as texts.
//
// Rules: a holder ID, with which a program could release the lock, is not shown, and neither is anything of which it
// could be made: of the ID of a client only the first eight characters, and of a Java permit nothing. A name with
// characters that are not printable is quoted, as Go quotes it. What is not known is not guessed: Redis does not store
// since when a lock is held, so the page shows for how long it has seen a hold.

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/discover"
)

const (
	mostRows  = 100 // locks on a page, and holders and waiters on the page of a lock
	longName  = 200 // runes of a name that are shown
	shortID   = 8   // characters of the ID of a client that are shown
	noneKnown = "–"
	shortTime = time.Minute // see held
)

// A lock is an inspection of which the ends of long lists were cut off.
type lock struct {
	relock.Inspection
	holders int           // how many there are
	waits   int           // how many wait that are not gone
	since   time.Time     // since when the longest waiter of these waits, as far as it is known
	longest time.Duration // how long that is

	lapses map[string]lapse // of the leases of Holders, by their fields
}

func newLock(i relock.Inspection) lock {
	l := lock{Inspection: i, holders: len(i.Holders), waits: i.Waiting - i.Gone, lapses: make(map[string]lapse)}
	for _, w := range i.Waiters {
		if !w.Since.IsZero() && !isGone(w) && (l.since.IsZero() || w.Since.Before(l.since)) {
			l.since, l.longest = w.Since, max(0, i.At.Sub(w.Since))
		}
	}
	l.Holders = slices.Clone(i.Holders[:min(mostRows, len(i.Holders))])
	gone := slices.DeleteFunc(slices.Clone(i.Waiters), func(w relock.Waiter) bool { return !isGone(w) })
	all := append(slices.DeleteFunc(slices.Clone(i.Waiters), isGone), gone...)
	l.Waiters = slices.Clone(all[:min(mostRows, len(all))])
	return l
}

func isGone(w relock.Waiter) bool { return w.Reachable == relock.ReachableNo }

// sort sorts the locks: see compare.
func (s *sample) sort() {
	slices.SortFunc(s.locks, func(a, b lock) int { return compare(&a, &b) })
}

// compare puts the lock first whose longest living waiter has waited since the earliest time, then the one with the
// most waiters. Nothing here changes while the same processes wait, so that a row keeps its place from sample to sample:
// a duration would change, because each lock is inspected at another time.
func compare(a, b *lock) int {
	return cmp.Or(
		compareStarts(a.since, b.since),
		cmp.Compare(b.waits, a.waits),
		cmp.Compare(a.Name, b.Name),
	)
}

// compareStarts puts the earlier time first, and one that is not known last.
func compareStarts(a, b time.Time) int {
	if a.IsZero() || b.IsZero() {
		return b.Compare(a)
	}
	return a.Compare(b)
}

// A listView is the page of all locks.
type listView struct {
	Rows    []rowView
	Summary string
	At      string
	More    string // what is not shown, and why; or ""
	Problem string // why the list is old; or ""
	None    string // why there are no rows
}

// A choice is which of the locks a page lists.
type choice struct {
	q       string // see lock.matches
	waiting bool   // only those that others wait for, as far as it is known
}

func choiceOf(r *http.Request) choice { return choice{r.FormValue("q"), r.FormValue("waiting") == "1"} }

type rowView struct {
	Key     string // tells the rows of two locks apart: see keyOf
	Link    string // "" for a name that is too long
	Name    string
	Type    string
	Waiting string
	Longest string // "" if nobody waits
	Calm    bool   // the wait is no alarm: see mayBeElection
	Holder  whoView
	Others  string // the other holders; or ""
	Held    string
	Lease   string
	RunsOut bool // the lease is known not to grow
}

// newListView returns the view of those locks of s that were chosen. The summary also counts those that nobody waits
// for.
func newListView(s *sample, c choice) *listView {
	v := &listView{At: clock(s.at), None: "No lock is held."}
	held, rows, waited, longest := 0, 0, 0, time.Duration(0)
	for n := range s.locks {
		l := &s.locks[n]
		if !l.matches(c.q) {
			continue
		}
		held++
		if !c.waiting || l.waits > 0 {
			if rows++; rows <= mostRows {
				v.Rows = append(v.Rows, newRow(s, l))
			}
		}
		if l.waits > 0 {
			waited++
		}
		longest = max(longest, l.longest)
	}
	v.Summary = count(held, "lock") + " held"
	if c.q != "" {
		match := "match"
		if held == 1 {
			match = "matches"
		}
		v.Summary = fmt.Sprintf("%s of the %s held locks %s", number(held), number(len(s.locks)), match)
		v.None = "No lock that is held matches the filter."
	}
	switch {
	case longest > 0:
		v.Summary += fmt.Sprintf("; others wait for %d of them, the longest for %s", waited, duration(longest))
	case waited > 0:
		v.Summary += fmt.Sprintf("; others wait for %d of them", waited)
	case held > 0:
		v.Summary += "; nobody is known to wait"
		v.None = "Nobody is known to wait for a lock. Switch \u201cOnly waiting\u201d off to see all."
		if c.q != "" {
			v.None = "Nobody is known to wait for the locks that match. Switch \u201cOnly waiting\u201d off to see them."
		}
	}
	v.More = s.more(rows)
	if s.problem != nil {
		v.Problem = errorText(s.problem)
	}
	return v
}

// more returns what a list of the locks that match does not show.
func (s *sample) more(match int) string {
	var texts []string
	if n := match - mostRows; n > 0 {
		texts = append(texts, fmt.Sprintf("%s more are not shown: use the filter.", number(n)))
	}
	if s.beyond {
		texts = append(texts, "There are more than "+number(mostLocks)+
			" locks, which is all that this page reads: use a pattern of names.")
	}
	if s.partial {
		texts = append(texts, "The keyspace is large and has not been read to its end yet: more locks may appear.")
	}
	if s.leftOut > 0 {
		texts = append(texts, count(s.leftOut, "key")+
			" could not be read, for want of permission or because an additional key holds other data.")
	}
	return strings.Join(texts, " ")
}

func newRow(s *sample, l *lock) rowView {
	row := rowView{
		Key: keyOf(l.Name), Link: link("lock", l.Name), Name: readable(l.Name), Type: typeText(l), Waiting: l.waiting(),
		Held: noneKnown, Lease: noneKnown,
	}
	if l.waits > 0 {
		row.Longest = "unknown"
	}
	if !l.since.IsZero() {
		row.Longest = duration(l.longest)
	}
	row.Calm = l.mayBeElection() && !l.runsOut()
	if len(l.Holders) == 0 {
		return row
	}
	// Of several holders the one that was seen first: it is the one to look for.
	h := slices.MinFunc(l.Holders, func(a, b relock.Holder) int {
		return s.since[holding{l.Name, a.Field}].Compare(s.since[holding{l.Name, b.Field}])
	})
	row.Holder, row.Lease = who(h.Contender), lease(h.Remaining)
	row.Held = held(h, s.since[holding{l.Name, h.Field}], s.at)
	row.RunsOut = l.lapses[h.Field].fate(h, l.At) == runsOut
	if n := l.holders - 1; n > 0 {
		row.Others = "and " + number(n) + " more"
		if l.More {
			row.Others = "and more than " + number(n) + " more"
		}
	}
	return row
}

// A lockView is the page of one lock.
type lockView struct {
	Name     string
	Facts    []factView
	Holders  []holderView
	Waiters  []waiterView
	Others   string // the holders that are not shown; or ""
	Behind   string // the waiters that are not shown; or ""
	Release  string // the address of the form that releases it; "" if it may not be released here
	Command  string // releases it from a shell; "" if nobody holds it
	Ends     string // that it becomes free without a release; or ""
	At       string
	Problem  string
	NotFound bool
}

type factView struct{ Name, Value string }

type holderView struct {
	Who               whoView
	As, Held, Lease   string
	Grows             string // whether the lease does
	Verdict           string // the same on the form
	HoldCount         int
	Seal              string // of a form: see Handler.seal
	Choose, Preselect bool
}

type waiterView struct {
	Place            string // among those that are not gone
	Who              whoView
	As, Waits, Reach string
}

// newLockView returns the view of l, whose holds were seen first at the times in since. If it may be released, it has
// the address of the form.
func newLockView(l *lock, since map[holding]time.Time, mayRelease bool, problem error) *lockView {
	v := &lockView{Name: text(l.Name, longestLink), At: clock(l.At), NotFound: l.Type == relock.TypeNone}
	add := func(name, value string) { v.Facts = append(v.Facts, factView{name, value}) }
	if l.Type != relock.TypeNone { // what follows tells that no owner holds it or waits
		add("Type", typeText(l))
	}
	if l.holders > 0 {
		add("Lease", lease(l.TTL))
	}
	if l.Type == relock.TypeSemaphore {
		add("Free permits", number(l.Available))
	}
	add("Waiting", l.waiting())
	if !l.since.IsZero() {
		add("Longest wait", duration(l.longest))
	}
	if l.Token != 0 {
		add("Last fencing token", strconv.FormatInt(l.Token, 10))
	}
	for _, h := range l.Holders {
		first := since[holding{l.Name, h.Field}]
		v.Holders = append(v.Holders, holderView{
			Who: who(h.Contender), As: roleText(l, h),
			Held: held(h, first, time.Now()), Lease: lease(h.Remaining), HoldCount: h.HoldCount,
			Grows: l.lapses[h.Field].text(h, l.At), Verdict: l.lapses[h.Field].verdict(h, l.At),
		})
	}
	behind := v.addWaiters(l)
	if n := l.holders - len(l.Holders); n > 0 {
		v.Others = number(n) + " more holders are not shown."
	}
	if behind > 0 {
		v.Behind = number(behind) + " more wait behind them."
	}
	if l.holders > 0 {
		v.Command, v.Ends = unlockCommand(l.Name), l.ends()
		if mayRelease {
			v.Release = link("release", l.Name)
		}
	}
	if problem != nil {
		v.Problem = errorText(problem)
	}
	return v
}

// addWaiters adds the waiters of l that are shown, and returns how many others wait.
func (v *lockView) addWaiters(l *lock) (behind int) {
	behind = l.waits
	for n, w := range l.Waiters {
		as := "waiter"
		switch {
		case w.Permits > 0:
			as = count(w.Permits, "permit")
		case w.Write:
			as = "writer"
		}
		view := waiterView{number(n + 1), who(w.Contender), as, "unknown", string(w.Reachable)}
		if isGone(w) {
			view.Place, view.Waits = noneKnown, "gone"
		} else if behind--; !w.Since.IsZero() {
			view.Waits = duration(l.At.Sub(w.Since))
		}
		v.Waiters = append(v.Waiters, view)
	}
	return behind
}

// A whoView is a process, and the owner in it. Label, host and owner may be written in different directions, so the page
// isolates each of them.
type whoView struct {
	Process string // its label, or what is known of it
	Host    string // or ""
	Owner   string // or ""
	Client  string // what the ID of its client begins with, to search logs for; or ""
}

// who describes a contender without its ID.
func who(c relock.Contender) whoView {
	w := whoView{Owner: c.Owner, Client: c.Client[:min(shortID, len(c.Client))]}
	switch {
	case c.Client == "" && strings.HasPrefix(c.Owner, "permit "):
		return whoView{Process: "a Java service"}
	case c.Client == "":
		return whoView{Process: "an unknown program"}
	case c.Label != "":
		w.Process, w.Host = c.Label, c.Host
	case strings.HasPrefix(c.Owner, "thread "):
		w.Process = "Java client " + w.Client
	default:
		w.Process = "client " + w.Client
	}
	return w
}

// String returns what the page shows of w, for the filter.
func (w whoView) String() string {
	if w.Host != "" {
		return w.Process + " on " + w.Host
	}
	return w.Process
}

// matches reports whether q occurs in what the row of l shows, in upper or lower case.
func (l *lock) matches(q string) bool {
	q = strings.ToLower(strings.TrimSpace(q))
	has := func(s string) bool { return strings.Contains(strings.ToLower(s), q) }
	by := func(c relock.Contender) bool { w := who(c); return has(w.String()) || has(w.Owner) }
	return q == "" || has(l.Name) || has(readable(l.Name)) || has(typeText(l)) ||
		slices.ContainsFunc(l.Holders, func(h relock.Holder) bool { return by(h.Contender) }) ||
		slices.ContainsFunc(l.Waiters, func(w relock.Waiter) bool { return by(w.Contender) })
}

func (l *lock) waiting() string {
	if l.Gone > 0 {
		return number(l.waits) + ", and " + number(l.Gone) + " gone"
	}
	return number(l.waits)
}

func typeText(l *lock) string {
	switch {
	case l.Type == relock.TypeNone:
		return "not held, and nobody is known to wait"
	case l.Type == relock.TypeReadWrite && l.Mode != "":
		return "read/write lock, held to " + l.Mode
	case l.Type == relock.TypeReadWrite:
		return "read/write lock"
	case l.Type == relock.TypeFair:
		return "fair lock"
	case l.mayBeElection():
		return discover.FencedOrElection
	case l.Ambiguous:
		return "semaphore, or another counter"
	}
	return string(l.Type)
}

// mayBeElection reports whether the candidates of an election may be who waits for l: they wait by design, for as long
// as there is a leader.
func (l *lock) mayBeElection() bool { return discover.MayBeElection(l.Inspection) }

// runsOut reports whether the lease of a holder of l does not grow, which that of a leader does.
func (l *lock) runsOut() bool {
	return slices.ContainsFunc(l.Holders, func(h relock.Holder) bool {
		f := l.lapses[h.Field].fate(h, l.At)
		return f != grows && f != unknown
	})
}

// ends returns when l becomes free by itself, if no lease of it grows.
func (l *lock) ends() string {
	last := time.Duration(0)
	for _, h := range l.Holders {
		switch l.lapses[h.Field].fate(h, l.At) {
		case runsOut, detached, expired:
			last = max(last, h.Remaining)
		default:
			return ""
		}
	}
	if l.holders > len(l.Holders) || l.More || last == 0 { // 0: all leases have expired, so it is free
		return ""
	}
	return "It becomes free by itself in " + lease(last) + ", unless its holder renews the lease."
}

// unlockCommand returns the command that releases a lock by force. A name that a shell could read as something else is
// left to the user.
func unlockCommand(name string) string {
	switch {
	case plain.MatchString(name):
		return "relockctl unlock " + name
	case strings.HasPrefix(name, "-") || text(name, longestLink) != name:
		return "relockctl unlock NAME"
	}
	return "relockctl unlock '" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}

var plain = regexp.MustCompile(`^[\w:./@%+=,][\w:./@%+=,-]*$`)

func roleText(l *lock, h relock.Holder) string {
	switch {
	case h.Permits > 0:
		return count(h.Permits, "permit")
	case l.Type != relock.TypeReadWrite:
		return "holder"
	case h.Write:
		return "writer"
	}
	return "reader"
}

// held returns for how long the page has seen a hold. A hold of relock has an ID of its own. A Java thread has the same
// one each time, and may have released the lock in between. A hold that was seen for a short time may be old, and
// "at least 1s" would read as if it were not.
func held(h relock.Holder, since, now time.Time) string {
	switch {
	case since.IsZero():
		return noneKnown
	case strings.HasPrefix(h.Owner, "thread "), now.Sub(since) < shortTime:
		return "seen for " + duration(now.Sub(since))
	}
	return "at least " + duration(now.Sub(since))
}

func lease(left time.Duration) string {
	switch {
	case left < 0:
		return "no end"
	case left == 0:
		return "expired"
	case left < time.Second:
		return "under 1s"
	}
	return duration(left)
}

func duration(d time.Duration) string { return max(d, 0).Truncate(time.Second).String() }

// ageText returns the age of what was read at a time, and in how long something newer is due, for page.js: two numbers
// of milliseconds, or "" if nothing was read yet.
func ageText(at, due time.Time) string {
	if at.IsZero() {
		return ""
	}
	return fmt.Sprint(time.Since(at).Milliseconds(), " ", time.Until(due).Milliseconds())
}

func clock(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format("15:04:05 UTC")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return number(n) + " " + what + "s"
}

// number returns n with commas.
func number(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// readable returns a name as text: quoted if it is not plain, and without its end if it is long.
func readable(name string) string { return text(name, longName) }

// text is like readable, for names of which more than a number of runes are long.
func text(name string, long int) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError || r == '"' }
	cut := name
	if utf8.RuneCountInString(name) > long {
		cut = string([]rune(name)[:long]) + "…"
	}
	if name == "" || strings.TrimSpace(name) != name || strings.ContainsFunc(cut, odd) {
		return strconv.Quote(cut)
	}
	return cut
}

// keyOf returns a text for a name that is safe and short everywhere, and differs from that of any other name.
func keyOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:12])
}

// link returns the address of a page about a lock, or "" if the name is too long for an address.
func link(page, name string) string {
	if len(name) > longestLink {
		return ""
	}
	return page + "?name=" + url.QueryEscape(name)
}

// errorText returns what a person has to know of err, as a sentence.
func errorText(err error) string {
	if late := net.Error(nil); errors.As(err, &late) && late.Timeout() { // context.DeadlineExceeded is one, too
		return "Redis has not answered in time."
	}
	return strings.TrimSuffix(strings.TrimPrefix(err.Error(), "relock: "), ".") + "."
}
