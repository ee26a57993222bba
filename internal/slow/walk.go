package slow

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/relock-go/relock/internal/report"
)

// A name is a lock for which callers have waited without a break since a wait for it was reported. It is reported again
// when the longest wait has doubled, or else, because the callers of a lock in demand may each wait somewhat too long,
// when the time for which they have been waiting has doubled.
type name struct {
	since   time.Duration // when the first of them began to wait
	due     time.Duration // how long they will have been waiting when it is reported again
	longest time.Duration // the longest wait that was reported
}

func (w *Watch[H]) run() {
	ended := false
	defer func() {
		if !ended { // a hook has ended the goroutine during a lookup
			w.Spawn(w.run)
		}
	}()
	for w.Pause(w.Life, pause) == nil {
		w.look()
		if !w.isNeeded() && w.stop() {
			break
		}
	}
	ended = true
}

// stop reports whether the goroutine is to end. If there is a hold or a wait since the last look, whose call has found
// that there is a goroutine, it goes on.
func (w *Watch[H]) stop() bool {
	w.walking.Store(false)
	return !w.isNeeded() || !w.walking.CompareAndSwap(false, true)
}

// isNeeded reports whether there is anything to look at.
func (w *Watch[H]) isNeeded() (needed bool) {
	see := func(H, time.Duration) { needed = true }
	if w.Wait > 0 {
		w.host.Waiting(see)
	}
	if w.Hold > 0 {
		w.host.Held(see)
	}
	return needed
}

// An oldHold is a hold that was found too old.
type oldHold[H any] struct {
	hold H
	held time.Duration
}

// look reports the locks that have become slow since the last look, or twice as slow as when they were last reported.
// The slowest come first, and holds and waits take turns.
func (w *Watch[H]) look() {
	now := w.Now()
	waits := w.longWaits(now)
	holds := w.oldHolds(now, waits)
	ctx, cancel := context.WithTimeout(w.Life, lookupTime)
	defer cancel()
	for i := range max(len(holds), len(waits)) {
		if i < len(holds) && w.allowed(now) {
			h, held := holds[i].hold, holds[i].held
			w.report(func() { w.host.OldHold(h, held) })
		}
		if i < len(waits) && w.allowed(now) {
			long := *waits[i]
			if long.Holder == "" {
				long.Holder = w.host.Holder(ctx, long.First)
			}
			w.report(func() { w.host.LongWait(long) })
		}
	}
	if n := w.lines.More(now); n > 0 {
		w.report(func() { w.host.Omitted(n) })
	}
	w.last = now
}

// allowed reports whether another line may be reported. Lines that a slow Logger has not written yet count, too.
func (w *Watch[H]) allowed(now time.Duration) bool {
	return w.lines.Allows(now, w.pending.Load() < report.MostLines)
}

func (w *Watch[H]) report(line func()) {
	w.pending.Add(1)
	w.Later(func() {
		defer w.pending.Add(-1)
		line()
	})
}

// oldHolds returns the holds that have become too old since the last look, the oldest first. It also notes the holders
// in this process of the locks of waits.
func (w *Watch[H]) oldHolds(now time.Duration, waits []*LongWait[H]) (all []oldHold[H]) {
	if w.Hold == 0 && len(waits) == 0 {
		return nil
	}
	awaited := make(map[string]*LongWait[H], len(waits))
	for _, long := range waits {
		awaited[w.host.Name(long.First)] = long
	}
	others := make(map[*LongWait[H]]int)
	w.host.Held(func(h H, since time.Duration) {
		if held := now - since; w.Hold > 0 && crossed(w.Hold, w.last-since, held) {
			all = append(all, oldHold[H]{h, held})
		}
		switch long := awaited[w.host.Name(h)]; {
		case long == nil:
		case long.Holder != "":
			others[long]++
		default:
			long.Holder = w.host.Owner(h)
		}
	})
	for long, n := range others {
		long.Holder += fmt.Sprintf(", and %d more here", n)
	}
	slices.SortFunc(all, func(a, b oldHold[H]) int { return cmp.Compare(b.held, a.held) })
	return all
}

// longWaits returns the locks for which a call has waited too long, and which are to be reported now, the longest wait
// first.
func (w *Watch[H]) longWaits(now time.Duration) (all []*LongWait[H]) {
	if w.Wait == 0 {
		return nil
	}
	found := make(map[string]*LongWait[H])
	w.host.Waiting(func(h H, since time.Duration) {
		of := w.host.Name(h)
		long := found[of]
		if long == nil {
			long = new(LongWait[H])
			found[of] = long
		}
		if long.Waiters++; now-since >= long.Waited {
			long.First, long.Waited = h, now-since
		}
	})
	still := make(map[string]*name)
	for of, long := range found {
		known := w.names[of]
		if known == nil {
			known = &name{since: now - long.Waited}
		}
		if long.Waited >= w.Wait && (now-known.since >= known.due || long.Waited/2 >= known.longest) {
			known.due, known.longest = 2*(now-known.since), max(known.longest, long.Waited)
			all = append(all, long)
		}
		if known.due > 0 {
			still[of] = known
		}
	}
	w.names = still
	slices.SortFunc(all, func(a, b *LongWait[H]) int { return cmp.Compare(b.Waited, a.Waited) })
	return all
}

// crossed reports whether a time that was before at the last walk, and is after now, has reached limit, or limit
// doubled any number of times, between the two walks.
func crossed(limit, before, after time.Duration) bool {
	if after < limit {
		return false
	}
	for limit <= after/2 {
		limit *= 2
	}
	return before < limit
}
