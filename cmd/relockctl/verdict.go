package main

// What show says about the leases of a lock: whether they grow, and what to do next.
//
// The rule by which it judges is that of the package growth.

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/growth"
)

const (
	lookAgain = 500 * time.Millisecond // the time between two looks at a lock
	mostTold  = 10                     // how many holders are told of one by one
)

// lookOnTerminal is how long show looks on a terminal. That is enough for the usual lease of 30s.
const lookOnTerminal = 15 * time.Second

// usualLease is the lease that is renewed unless a service has set another one.
const usualLease = 30 * time.Second

// A fate is what becomes of a hold.
type fate int

const (
	unknown  fate = iota // it was not looked at for long enough
	grows                // its lease grows
	runsOut              // its lease does not grow
	endless              // its lease has no end
	detached             // no process has it
	expired              // a reader whose lease has expired
	gone                 // it ended while show looked
)

// A look is what was seen of a lock for a while.
type look struct {
	lock  relock.Inspection // as it was at first
	now   relock.Inspection // as it was at last
	time  time.Duration     // between both
	fates []fate            // of the holders of lock
}

// key identifies a hold. One owner may have both halves of a read/write lock.
func key(h relock.Holder) string { return fmt.Sprint(h.Field, h.Write) }

// observe looks at a lock for a while, until the fate of each hold is clear.
func (p *program) observe(ctx context.Context, i relock.Inspection, most time.Duration) (look, error) {
	l := look{lock: i, now: i, fates: make([]fate, len(i.Holders))}
	began := time.Now()
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for !l.judge() && time.Since(began)+lookAgain <= most {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return l, nil
		}
		now, err := p.client.Inspect(ctx, i.Name)
		if ctx.Err() != nil {
			return l, nil
		}
		if err != nil {
			return l, err
		}
		l.now, l.time = now, now.At.Sub(i.At)
	}
	return l, nil
}

// judge notes what is clear, and reports whether all is.
func (l *look) judge() bool {
	ends := make(map[string]time.Duration) // the remaining leases
	for _, h := range l.now.Holders {
		ends[key(h)] = h.Remaining
	}
	clear := true
	for n, h := range l.lock.Holders {
		left, held := ends[key(h)]
		grown := left - (h.Remaining - l.time)
		switch f := &l.fates[n]; {
		case *f == grows || *f == runsOut:
		case h.Detached:
			*f = detached
		case h.Remaining < 0 && held && left < 0: // which a renewal ends
			*f = endless
			clear = clear && l.time > growth.Within(usualLease)
		case h.Remaining == 0:
			*f = expired
		case !held:
			*f = gone
		case left < 0 || growth.Grows(grown):
			*f = grows
		case l.time > growth.Within(h.Remaining):
			*f = runsOut
		default:
			clear = false
		}
	}
	return clear
}

// watched looks at the lock, and prints what becomes of it.
func (p *program) watched(ctx context.Context, i relock.Inspection) (look, error) {
	_, _, people := size(p.err)
	people = people && p.lookFor > 0
	if people {
		fmt.Fprintf(p.err, "Looking whether the lease grows, for up to %v. Ctrl-C ends that.", p.lookFor)
	}
	l, err := p.observe(ctx, i, p.lookFor)
	if people {
		fmt.Fprint(p.err, "\r\x1b[K")
	}
	return l, err
}

// verdict returns what has become of the holds, and what to do next.
func (p *program) verdict(l look) string {
	var out strings.Builder
	for n, h := range l.lock.Holders {
		if n == mostTold {
			fmt.Fprintf(&out, "... and %d more holders.\n", len(l.lock.Holders)-n)
			break
		}
		who, left := whose(h), duration(max(h.Remaining-l.time, 0))
		say := func(color, head, format string, args ...any) {
			out.WriteString(p.painted(head, color) + " " + fmt.Sprintf(format, args...) + "\n")
		}
		switch l.fates[n] {
		case grows:
			say(green, "The lease grows:", "the process of %s is alive, and keeps %s.", who, of(h))
		case runsOut:
			say(red, "The lease runs out,", "in %s: in %v %s has not renewed it.\n"+
				"Its process has ended, is paused, cannot reach Redis, or asked for a lease that is not renewed.",
				left, seconds(l.time), who)
		case endless:
			renewed := "unless its process renews it,"
			if l.time > 0 {
				renewed = fmt.Sprintf("in %v nobody has renewed it, and", seconds(l.time))
			}
			say(red, "The lease has no end:", "%s only %s releases %s.", renewed, who, of(h))
		case detached:
			say(yellow, "The lease runs out,", "in %s: the hold was detached, and no process has attached it yet.", left)
		case expired:
			say(red, "The lease has expired:", "%s does not have the lock any more.", who)
		case gone:
			say(green, "The hold has ended:", "%s has released the lock or lost it, or the lease has run out.", who)
		case unknown:
			if l.time > 0 {
				say(yellow, "The lease did not grow", "in %v, and ends in %s. It is that of %s.", seconds(l.time), left, who)
			}
		}
	}
	return out.String() + l.next()
}

// of returns what the holder has of its lock.
func of(h relock.Holder) string {
	switch h.Permits {
	case 0:
		return "the lock"
	case 1:
		return "its permit"
	}
	return "its " + permits(h.Permits)
}

// whose returns a text for the owner of a hold, and its process.
func whose(h relock.Holder) string {
	var process []string
	if h.Label != "" {
		process = append(process, h.Label)
	}
	if h.Host != "" {
		process = append(process, h.Host)
	}
	if h.Client != "" {
		process = append(process, "client "+clientPrefix(h))
	}
	if len(process) == 0 {
		return quote(h.Owner)
	}
	return quote(h.Owner) + " (" + strings.Join(process, ", ") + ")"
}

// clientPrefix returns the beginning of the ID of a client, which is enough to find it in logs.
func clientPrefix(h relock.Holder) string { return h.Client[:min(8, len(h.Client))] }

// next returns what to do, with the commands for it.
func (l look) next() string {
	first := make(map[fate]relock.Holder)
	for n := len(l.fates) - 1; n >= 0; n-- {
		first[l.fates[n]] = l.lock.Holders[n]
	}
	is := func(f fate) bool { _, ok := first[f]; return ok }
	name := argument(l.lock.Name)
	advise := func(text, command, does string) string {
		if command != "" {
			command = fmt.Sprintf("  relockctl %s %s   # %s\n", command, name, does)
		}
		return "Next: " + text + ".\n" + command
	}
	all, ended := releases(l.now), " now, if the holder has surely ended"
	if len(l.now.Holders) > 1 {
		ended = " now, if the holders have surely ended"
	}
	free, gets := "the lock is free", "the lock"
	if l.lock.Type == relock.TypeSemaphore {
		free, gets = "the permits are free", "the permits"
	}
	switch {
	case is(gone) && len(l.now.Holders) > 0:
		return advise("nothing. The lock is in use, and not stuck", "watch", "who has it")
	case is(gone):
		return advise("nothing. The lock is free", "", "")
	case is(endless):
		return advise("find out who has acquired it without a lease", "unlock", all+" by force")
	case is(grows):
		text := "look at what that process does"
		if h := first[grows]; h.Client != "" {
			text += "; in logs its client ID begins with " + clientPrefix(h)
		}
		switch others := len(l.now.Holders) - 1; {
		case others == 1:
			text += "; there is 1 other holder"
		case others > 1:
			text += fmt.Sprintf("; there are %d other holders", others)
		}
		return advise(text, "unlock", all+" by force, while the process goes on")
	case is(unknown):
		return advise("find out whether the lease grows", "show --for "+lookLonger(l.lock), "looks for long enough")
	case waitersOf(l.now) == 0:
		return advise("nothing. Nobody waits, and "+free+" when the lease ends", "unlock", all+ended)
	}
	return advise("wait until the lease ends; then a waiter gets "+gets, "unlock", all+ended)
}

// releases returns what unlock does, which releases everything that is held of a lock.
func releases(i relock.Inspection) string {
	held, holders := heldPermits(i), len(i.Holders)
	switch {
	case i.More && held > 0:
		return "releases all permits of all holders"
	case held > 0 && holders > 1:
		return fmt.Sprintf("releases all %d permits of %d holders", held, holders)
	case held > 1:
		return fmt.Sprintf("releases all %d permits", held)
	case held == 1:
		return "releases the permit"
	case i.More:
		return "releases the lock of all holders"
	case holders > 1:
		return fmt.Sprintf("releases the lock of all %d holders", holders)
	}
	return "releases the lock"
}

// lookLonger returns how long one has to look to be certain, as a value for --for.
func lookLonger(i relock.Inspection) string {
	longest := time.Duration(0)
	for _, h := range i.Holders {
		longest = max(longest, growth.Within(h.Remaining))
	}
	return seconds(longest + 2*lookAgain).String()
}

func seconds(d time.Duration) time.Duration { return d.Round(time.Second) }

// addTo adds to the JSON of a lock which of its leases grow.
func (l look) addTo(lock jsonLock) jsonLock {
	for n, f := range l.fates {
		if f == grows || f == runsOut {
			isGrowing := f == grows
			lock.Holders[n].Grows = &isGrowing
		}
	}
	return lock
}
