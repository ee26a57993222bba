package history

// The rules with which a history is checked.
//
// Rules of the rules: none reports a history that is possible. A fault excuses the whole of a call, and an event that
// was not recorded did not happen. A rule checks exactly what its comment describes.

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Rules describe what is expected of one type of lock in one storm.
type Rules struct {
	Timeout time.Duration // the lease of holds that are renewed
	Slack   time.Duration // how late a busy machine may be
	Free    time.Duration // how long a lock may be free while an owner waits for it
	Calm    time.Duration // the same if there was no fault for as long as Free; 0: the same as Free
	Wait    time.Duration // how long an owner may wait; 0: there is no limit
	Fair    bool          // first come, first served
	Parts   bool          // a hold is one of several that are lost together
}

// A Violation describes an event that is not possible.
type Violation struct {
	Rule string
	What string
}

func (v Violation) String() string { return v.Rule + ": " + v.What }

var rules = []struct {
	name  string
	check func(History, Rules) []string
}{
	{"exclusion", exclusion},
	{"token", tokens},
	{"fence", fences},
	{"lease", leases},
	{"silence", silences},
	{"told", told},
	{"loss", losses},
	{"answer", answers},
	{"refusal", refusals},
	{"order", order},
	{"late", late},
	{"stuck", stuck},
	{"count", counts},
}

// Check returns how h violates the rules, with only a few violations of each rule.
func Check(h History, r Rules) []Violation {
	const enough = 5
	var all []Violation
	for _, rule := range rules {
		found := rule.check(h, r)
		for _, what := range found[:min(enough, len(found))] {
			all = append(all, Violation{rule.name, what})
		}
		if len(found) > enough {
			all = append(all, Violation{rule.name, fmt.Sprintf("and %d more", len(found)-enough)})
		}
	}
	return all
}

// A span is a hold during the time in which it was certainly valid, and Redis had not lost it.
type span struct {
	Hold
	from, until time.Duration
}

func (s span) String() string {
	what := "held"
	if s.Take.Shared {
		what = "shared"
	}
	token := ""
	if s.Take.Token != 0 {
		token = fmt.Sprintf(" with token %d", s.Take.Token)
	}
	return fmt.Sprintf("%s %s by %s from %v (asked for at %v, lease %v)%s until %v",
		s.Take.Name, what, s.Take.Owner, s.from, s.Take.Call, s.Take.Lease, token, s.until)
}

// spans returns the holds of each name, in the order in which they were granted.
func spans(h History) map[string][]span {
	all := make(map[string][]span)
	for _, hold := range h.Holds {
		s := span{hold, hold.Take.Return, hold.Trusted}
		for _, f := range h.Faults {
			if f.Kind == Forgets && f.hits(hold.Take) && f.From <= s.until && hold.Take.Call <= f.To {
				s.until = min(s.until, f.From)
			}
		}
		if s.from <= s.until {
			all[hold.Take.Name] = append(all[hold.Take.Name], s)
		}
	}
	for _, of := range all {
		slices.SortFunc(of, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	}
	return all
}

// exclusion checks that holds of two owners never overlap, unless both are shared.
func exclusion(h History, _ Rules) (wrong []string) {
	for _, of := range spans(h) {
		for i, a := range of {
			for _, b := range of[i+1:] {
				if b.from >= a.until {
					break
				}
				if a.Take.Owner != b.Take.Owner && !(a.Take.Shared && b.Take.Shared) {
					wrong = append(wrong, fmt.Sprintf("two hold it: %v; and %v", a, b))
				}
			}
		}
	}
	return wrong
}

// tokens checks that no two holds have the same token, and that an owner that asked after another hold was granted, or
// held the lock after it, has a greater one.
func tokens(h History, _ Rules) (wrong []string) {
	byName := make(map[string][]Op)
	for _, hold := range h.Holds {
		if hold.Take.Token != 0 {
			byName[hold.Take.Name] = append(byName[hold.Take.Name], hold.Take)
		}
		for _, op := range hold.Then {
			if op.Kind == Take && op.Outcome == Done && op.Token != 0 && op.Token != hold.Take.Token {
				wrong = append(
					wrong,
					fmt.Sprintf("a re-entry of %s changed the token from %d to %d", op.Name, hold.Take.Token, op.Token),
				)
			}
		}
	}
	for _, of := range spans(h) {
		for i, b := range of[min(1, len(of)):] {
			if a := of[i]; a.Take.Token != 0 && b.Take.Token != 0 && b.Take.Token <= a.Take.Token {
				wrong = append(wrong, fmt.Sprintf("held one after the other: %v; and %v", a, b))
			}
		}
	}
	for name, ops := range byName {
		granted := slices.SortedFunc(slices.Values(ops), func(a, b Op) int { return cmp.Compare(a.Return, b.Return) })
		slices.SortFunc(ops, func(a, b Op) int { return cmp.Compare(a.Call, b.Call) })
		seen := make(map[int64]bool)
		var greatest Op
		for _, op := range ops {
			for len(granted) > 0 && granted[0].Return < op.Call {
				if granted[0].Token > greatest.Token {
					greatest = granted[0]
				}
				granted = granted[1:]
			}
			if seen[op.Token] || op.Token < greatest.Token {
				wrong = append(wrong, fmt.Sprintf("%s: %s asked at %v and has token %d; %s had %d at %v",
					name, op.Owner, op.Call, op.Token, greatest.Owner, greatest.Token, greatest.Return))
			}
			seen[op.Token] = true
		}
	}
	return wrong
}

// fences checks that no greater token is seen while a hold is valid.
func fences(h History, _ Rules) (wrong []string) {
	for _, of := range spans(h) {
		for _, s := range of {
			if s.Overtaken != 0 && s.Overtaken < s.until {
				wrong = append(wrong, fmt.Sprintf("%v: refused at %v, for a greater token was seen", s, s.Overtaken))
			}
		}
	}
	return wrong
}

// leases checks that a hold that is not renewed is valid no longer than the lease that was asked for, and its owner
// is notified.
func leases(h History, r Rules) (wrong []string) {
	for _, hold := range h.Holds {
		if renewed, _ := hold.renewed(); renewed {
			continue
		}
		end := hold.Take.Return + hold.Take.Lease
		for _, op := range hold.Then {
			if op.Kind == Take {
				end = max(end, op.Return+op.Lease)
			}
		}
		wrong = append(wrong, overstayed(h, hold, end, r.Slack, "the end of its lease")...)
	}
	return wrong
}

// silences checks that a hold that is renewed is valid no longer than a timeout after the last answer, and its owner
// is notified.
func silences(h History, r Rules) (wrong []string) {
	for _, f := range h.Faults {
		if f.Kind != Silences {
			continue
		}
		for _, hold := range h.Holds {
			if !f.hits(hold.Take) || hold.Trusted < f.From && hold.Untold < f.From {
				continue
			}
			_, longest := hold.renewed()
			hold.Trusted, hold.Untold = below(hold.Trusted, f.To), below(hold.Untold, f.To)
			wrong = append(wrong, overstayed(h, hold, f.From+max(r.Timeout, longest), r.Slack, f.What)...)
		}
	}
	return wrong
}

// below returns t, or 0 if it is not below the limit.
func below(t, limit time.Duration) time.Duration {
	if t < limit {
		return t
	}
	return 0
}

// overstayed returns what is wrong with a hold whose validity must have ended.
func overstayed(h History, hold Hold, end, slack time.Duration, why string) (wrong []string) {
	s := span{hold, hold.Take.Return, hold.Trusted}
	if hold.Trusted > end {
		wrong = append(wrong, fmt.Sprintf("%v: trusted beyond %v, because of %s", s, end, why))
	}
	if hold.Untold > end+slack+stalled(h, end, hold.Untold) {
		wrong = append(wrong, fmt.Sprintf("%v: its owner had not been told at %v; %s: %v", s, hold.Untold, why, end))
	}
	return wrong
}

// stalled returns for how long the machine of the test stood still between two times.
func stalled(h History, from, to time.Duration) (sum time.Duration) {
	for _, f := range h.Faults {
		if f.Kind == Stalls {
			sum += max(0, min(to, f.To)-max(from, f.From))
		}
	}
	return sum
}

// told checks that the owner of a hold that Redis has lost is notified at the next renewal.
func told(h History, r Rules) (wrong []string) {
	for _, f := range h.Faults {
		if f.Kind != Forgets {
			continue
		}
		for _, hold := range h.Holds {
			renewed, _ := hold.renewed()
			if !renewed || !f.hits(hold.Take) || hold.Take.Return > f.From || hold.over() < f.From {
				continue
			}
			end := f.To + r.Timeout/3 + r.Slack
			if disturbed(h, hold.Take, hold.Take.Call, end) {
				continue // a late request may have put it there again
			}
			if hold.Untold > end+stalled(h, f.To, hold.Untold) {
				wrong = append(wrong, fmt.Sprintf("%v: its owner had not been told at %v of: %s at %v",
					span{hold, hold.Take.Return, hold.Trusted}, hold.Untold, f.What, f.From))
			}
		}
	}
	return wrong
}

// calm reports whether no fault that affects the lock hit a client between two times.
func calm(h History, name string, from, to time.Duration) bool {
	return !slices.ContainsFunc(h.Faults, func(f Fault) bool {
		return (f.Name == "" || f.Name == name) && f.From <= to && f.To >= from
	})
}

// disturbed reports whether a fault between two times hit op, other than a loss of data.
func disturbed(h History, op Op, from, to time.Duration) bool {
	return slices.ContainsFunc(h.Faults, func(f Fault) bool {
		return f.Kind != Forgets && f.Kind != Stalls && f.hits(op) && f.From <= to && f.To >= from
	})
}

// forgotten reports whether Redis may have lost the data between two times.
func forgotten(h History, op Op, from, to time.Duration) bool {
	return slices.ContainsFunc(h.Faults, func(f Fault) bool {
		return f.Kind == Forgets && f.hits(op) && f.From <= to && f.To >= from
	})
}

// losses checks that no owner loses a renewed hold without a reason.
func losses(h History, r Rules) (wrong []string) {
	for _, hold := range h.Holds {
		i := slices.IndexFunc(hold.Then, func(op Op) bool { return op.Outcome == Lost })
		if renewed, _ := hold.renewed(); i < 0 || !renewed || hold.Take.Lease != 0 {
			continue
		}
		from := hold.Take.Call - r.Timeout
		if r.Parts &&
			slices.ContainsFunc(
				h.Faults,
				func(f Fault) bool { return f.Kind == Forgets && f.From <= hold.over() && f.To >= from },
			) {
			continue
		}
		if disturbed(h, hold.Take, from, hold.over()) || forgotten(h, hold.Take, from, hold.over()) ||
			stalled(h, from, hold.over()) > 0 {
			continue
		}
		wrong = append(
			wrong,
			fmt.Sprintf(
				"%v: lost, and nothing was wrong (told at %v)",
				span{hold, hold.Take.Return, hold.Trusted},
				hold.Then[i].Return,
			),
		)
	}
	return wrong
}

// answers checks that an owner that has a hold to release is not told that it has none.
func answers(h History, _ Rules) (wrong []string) {
	for _, hold := range h.Holds {
		for _, op := range hold.Then {
			if op.Outcome == NotHeld {
				wrong = append(
					wrong,
					fmt.Sprintf(
						"%v: %v at %v is told that it holds nothing",
						span{hold, hold.Take.Return, hold.Trusted},
						op.Kind,
						op.Call,
					),
				)
			}
		}
	}
	return wrong
}

// counts checks that the hold count is that of the acquires and releases so far. It is kept locally, so it counts whether
// or not Redis has confirmed a release.
func counts(h History, _ Rules) (wrong []string) {
	for _, of := range spans(h) {
		for _, s := range of {
			count := s.Take.Level
			for _, op := range s.Then {
				if op.Outcome == Lost || op.Outcome == NotHeld || op.Return > s.until {
					break
				}
				switch {
				case op.Kind == Give:
					count--
				case op.Kind == Take && op.Outcome == Done:
					count++
				}
				if op.Level != count && (op.Outcome == Done || op.Kind == Give && op.Level > 0) {
					wrong = append(wrong, fmt.Sprintf("%v: the hold count is %d at %v, and not %d", s, op.Level, op.Return, count))
				}
			}
		}
	}
	return wrong
}

// A presence is the time in which an owner may have blocked others.
type presence struct {
	from, to time.Duration
	whose    int
}

// refusals checks that a try is not refused while no other owner is there.
func refusals(h History, r Rules) (wrong []string) {
	there := make(map[string][]presence)
	n := 0
	add := func(op Op, to time.Duration) {
		if op.Outcome != Done && !(op.Outcome == Refused && op.Once) {
			to += max(r.Timeout, op.Lease) + r.Slack // it may have left something in Redis
		}
		there[op.Name] = append(there[op.Name], presence{op.Call, to, n})
		n++
	}
	for _, op := range h.Failed {
		add(op, op.Return)
	}
	failed := n
	for _, hold := range h.Holds {
		op, to := hold.Take, hold.over()
		if last := len(hold.Then) - 1; last < 0 || hold.Then[last].Outcome != Done {
			_, longest := hold.renewed()
			to += max(r.Timeout, longest) + r.Slack
		}
		add(op, to)
	}
	for _, op := range h.Pending {
		add(op, op.Return)
	}
	for i, op := range h.Failed[:failed] {
		if !op.Once || op.Outcome != Refused || !calm(h, op.Name, op.Call-r.Free, op.Return) {
			continue
		}
		if !slices.ContainsFunc(
			there[op.Name],
			func(p presence) bool { return p.whose != i && p.from <= op.Return && op.Call <= p.to },
		) {
			wrong = append(
				wrong,
				fmt.Sprintf("%s: %s is refused at %v, and no other owner is there", op.Name, op.Owner, op.Return),
			)
		}
	}
	return wrong
}

// order checks that an owner that was seen in the queue before another one asked is served before that one.
func order(h History, r Rules) (wrong []string) {
	if !r.Fair {
		return nil
	}
	takes := make(map[[2]string][]Op) // by name and owner
	for _, hold := range h.Holds {
		key := [2]string{hold.Take.Name, hold.Take.Owner}
		takes[key] = append(takes[key], hold.Take)
	}
	for _, op := range h.Failed {
		key := [2]string{op.Name, op.Owner}
		takes[key] = append(takes[key], op)
	}
	for _, of := range takes {
		slices.SortFunc(of, func(a, b Op) int { return cmp.Compare(a.Call, b.Call) })
	}
	granted := spans(h)
	for _, q := range h.Queued {
		of := takes[[2]string{q.Name, q.Owner}]
		i := slices.IndexFunc(of, func(op Op) bool { return op.Call <= q.From && q.At <= op.Return })
		if i < 0 || of[i].Outcome != Done || i > 0 && of[i-1].Outcome != Done {
			continue // it gave up, or the place that was seen was left over from an earlier attempt
		}
		first := of[i]
		if first.Lease > 0 && first.Return-q.At >= first.Lease {
			continue // a grant of which it was not notified may have expired
		}
		if from := first.Call - r.Slack; disturbed(h, first, from, first.Return) || forgotten(h, first, from, first.Return) ||
			stalled(h, from, first.Return) > 0 {
			continue
		}
		all := granted[q.Name]
		from, _ := slices.BinarySearchFunc(all, q.At, func(s span, at time.Duration) int { return cmp.Compare(s.from, at) })
		for _, s := range all[from:] {
			if s.until >= first.Return {
				break
			}
			if s.Take.Call > q.At && s.Take.Owner != q.Owner {
				wrong = append(
					wrong,
					fmt.Sprintf(
						"%s asked at %v (lease %v), was queued at %v and served at %v; before that: %v",
						q.Owner,
						first.Call,
						first.Lease,
						q.At,
						first.Return,
						s,
					),
				)
				break
			}
		}
	}
	return wrong
}

// late checks that a caller that gives up returns at that time, and every caller returns.
func late(h History, r Rules) (wrong []string) {
	look := func(op Op, came string) {
		if limit := op.GiveUp + r.Slack; op.GiveUp > 0 && op.Return > limit+stalled(h, op.Call, op.Return) {
			wrong = append(
				wrong,
				fmt.Sprintf("%s: %s was to give up at %v and %s at %v", op.Name, op.Owner, op.GiveUp, came, op.Return),
			)
		}
	}
	for _, hold := range h.Holds {
		look(hold.Take, "came back")
		for _, op := range hold.Then {
			look(op, "came back")
		}
	}
	for _, op := range h.Failed {
		look(op, "came back")
	}
	for _, op := range h.Pending {
		wrong = append(wrong, fmt.Sprintf("%s: a %v of %s has not come back since %v", op.Name, op.Kind, op.Owner, op.Call))
		look(op, "was still waiting")
	}
	return wrong
}

// stuck checks that no owner waits for long while the lock is free, or longer than an owner may wait at all.
func stuck(h History, r Rules) (wrong []string) {
	held := make(map[string][]presence)
	for _, hold := range h.Holds {
		held[hold.Take.Name] = append(held[hold.Take.Name], presence{from: hold.Take.Return, to: hold.over()})
	}
	for _, of := range held {
		slices.SortFunc(of, func(a, b presence) int { return cmp.Compare(a.from, b.from) })
	}
	look := func(op Op) {
		if op.Once || op.Kind != Take {
			return
		}
		// A machine that stands still was busy before, and is busy afterwards.
		excuse := 3 * stalled(h, op.Call, op.Return)
		if r.Wait > 0 && op.Return-op.Call > r.Wait+excuse {
			wrong = append(wrong, fmt.Sprintf("%s: %s waited from %v to %v", op.Name, op.Owner, op.Call, op.Return))
		}
		if op.Return-op.Call <= min(r.Free, cmp.Or(r.Calm, r.Free)) {
			return
		}
		since := op.Call
		for _, p := range append(held[op.Name], presence{from: op.Return}) {
			if p.from >= op.Return {
				p.from = op.Return
			}
			longest := r.Free
			if r.Calm > 0 && p.from-since > r.Calm && calm(h, op.Name, since-r.Free, p.from) {
				longest = r.Calm
			}
			if p.from-since > longest+excuse {
				wrong = append(
					wrong,
					fmt.Sprintf(
						"%s: %s waited from %v to %v (lease %v), and the lock was free from %v to %v",
						op.Name,
						op.Owner,
						op.Call,
						op.Return,
						op.Lease,
						since,
						p.from,
					),
				)
				return
			}
			if since = max(since, p.to); p.from == op.Return {
				return
			}
		}
	}
	for _, hold := range h.Holds {
		look(hold.Take)
	}
	for _, op := range slices.Concat(h.Failed, h.Pending) {
		look(op)
	}
	return wrong
}
