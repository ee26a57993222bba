//go:build go1.25

package sim

// The permits: the part of the witness that counts the permits of semaphores.
//
// Rules: available and taken permits add up to a number that was set. While calls that set it are under way, or may
// run late, there are several such numbers.

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// A number is a number of permits that a semaphore may have, or had.
type number struct {
	permits int
	until   time.Time // zero: it may have it now
}

// numbersOf returns the possible numbers of permits of a semaphore. mu is held.
func (w *witness) numbersOf(name string) []number {
	if w.numbers[name] == nil {
		w.numbers[name] = []number{{permits: w.world.plan.permitsOf(name)}}
	}
	return w.numbers[name]
}

// mostPermits returns the maximum number of permits of a semaphore since then. mu is held.
func (w *witness) mostPermits(name string, since time.Time) (most int) {
	for _, n := range w.numbersOf(name) {
		if n.until.IsZero() || !n.until.Before(since) {
			most = max(most, n.permits)
		}
	}
	return most
}

// sets records the begin of a call that sets the number of permits. If no other request can be under way, this is the
// only possible number after the call has returned.
func (w *witness) sets(name string, n int) (done func(err error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	began, alone := time.Now(), w.setting[name] == 0
	w.setting[name]++
	w.setEver[name]++
	nth := w.setEver[name]
	w.numbers[name] = append(w.numbersOf(name), number{permits: n})
	return func(err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		alone = alone && w.setEver[name] == nth // of two calls at the same time, either may have run last
		if w.setting[name]--; err != nil || !alone || !w.world.calm(began.Add(-lateLife)) {
			return
		}
		all := slices.DeleteFunc(w.numbers[name], func(o number) bool { return o.permits == n })
		for i := range all {
			if all[i].until.IsZero() {
				all[i].until = time.Now()
			}
		}
		w.numbers[name] = append(all, number{permits: n})
	}
}

// sums reports a semaphore whose available and taken permits do not add up to its number.
func (w *witness) sums() {
	for _, name := range w.world.semaphores() {
		var free string
		var taken map[string]float64
		w.world.redis[0].Look(func(m *miniredis.Miniredis) {
			free, _ = m.Get(name)
			taken, _ = m.SortedSet(takenKey(name))
			taken = maps.Clone(taken)
		})
		n, err := strconv.Atoi(free)
		if err != nil { // the number was never set
			continue
		}
		w.mu.Lock()
		all := w.numbersOf(name)
		ok := slices.ContainsFunc(all, func(o number) bool { return o.until.IsZero() && o.permits == n+len(taken) })
		forgot := slices.ContainsFunc(w.losses, func(l loss) bool { return l.name == name && w.world.plan.javaUses(name) })
		// Java services that are alone are not checked, and Redisson releases permits to a counter that is gone: see
		// internal/lua/semaphore.md.
		if !ok && !forgot && !w.world.plan.javaAlone(name) {
			w.report("available and taken permits add up", "%s: %d available, taken %v, of %v", name, n, taken, all)
		}
		w.mu.Unlock()
	}
}

// allFree reports a semaphore that is no longer used, and of which a permit is missing.
func (w *witness) allFree(s counted) {
	all, err := s.Permits(context.Background())
	free, err2 := s.Available(context.Background())
	w.mu.Lock()
	defer w.mu.Unlock()
	numbers := w.numbersOf(s.Name())
	known := slices.ContainsFunc(numbers, func(o number) bool { return o.until.IsZero() && o.permits == all })
	if err != nil || err2 != nil || !known || free != all {
		w.report("available and taken permits add up", "%s, after its last use: %d of %d are available, %v, %v; it has %v",
			s.Name(), free, all, err, err2, numbers)
	}
}

// A counted lock has permits.
type counted interface {
	Name() string
	Permits(ctx context.Context) (int, error)
	Available(ctx context.Context) (int, error)
}

// takenKey returns the key of the permits of a semaphore that are taken.
func takenKey(name string) string { return "{" + name + "}:timeout" }

// permitsOf returns the number of permits with a valid lease that the Client of h, or the Java service, has.
func (w *witness) permitsOf(h *hold) (n int) {
	now := float64(w.world.redis[0].Now().UnixMilli())
	w.world.redis[0].Look(func(m *miniredis.Miniredis) {
		taken, _ := m.SortedSet(takenKey(h.names[0]))
		for id, ends := range taken {
			if h.owns(0, id) && ends > now {
				n++
			}
		}
	})
	return n
}
