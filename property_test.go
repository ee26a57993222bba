package relock

// Properties of what decides who is next, how long a hold is trusted, and where
// wake-ups come from: random use, against models that are simpler than the code.
//
// Rules: what is done is drawn first and played in a bubble afterwards, so that a
// failure can be made smaller; what happens is written down with its time, and judged at the end.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// inBubbleOf plays f in a bubble, and fails rt with what f returns.
func inBubbleOf(t *testing.T, rt *rapid.T, f func(t *testing.T) error) {
	var wrong error
	synctest.Test(t, func(t *testing.T) { wrong = f(t) })
	if wrong != nil {
		rt.Fatal(wrong)
	}
}

// One gate against the simplest model: who is inside, and a list of who waits.
func TestGateIsAQueue(t *testing.T) {
	errAway := errors.New("turned away")
	rapid.Check(t, func(rt *rapid.T) {
		var g gate
		inside, first := false, (*ticket)(nil) // first: whose turn it is, if it has not come by tryEnter
		var waiting, away []*ticket
		next := func() {
			if inside = len(waiting) > 0; inside {
				first, waiting = waiting[0], waiting[1:]
			} else {
				first = nil
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"tryEnter": func(rt *rapid.T) {
				if got := g.tryEnter(); got == inside {
					rt.Fatalf("tryEnter says %v", got)
				}
				inside = true
			},
			"enqueue": func(rt *rapid.T) {
				if !inside {
					rt.Skip()
				}
				waiting = append(waiting, g.enqueue(nil))
			},
			"leave": func(rt *rapid.T) {
				if !inside {
					rt.Skip()
				}
				g.leave()
				next()
			},
			"give up a place": func(rt *rapid.T) {
				if len(waiting) == 0 {
					rt.Skip()
				}
				i := rapid.IntRange(0, len(waiting)-1).Draw(rt, "which")
				g.cancel(waiting[i])
				waiting = slices.Delete(waiting, i, i+1)
			},
			"give up a turn": func(rt *rapid.T) {
				if first == nil {
					rt.Skip()
				}
				g.cancel(first)
				next()
			},
			"turn away": func(*rapid.T) {
				g.turnAway(errAway)
				away, waiting = append(away, waiting...), nil
			},
			"give up when turned away": func(rt *rapid.T) {
				if len(away) == 0 {
					rt.Skip()
				}
				g.cancel(away[0])
				away = away[1:]
			},
			"": func(rt *rapid.T) {
				switch {
				case g.taken != inside || len(g.queue) != len(waiting):
					rt.Fatalf("taken: %v, in line: %d; want %v, %d", g.taken, len(g.queue), inside, len(waiting))
				case first != nil && (!open(first) || first.err != nil):
					rt.Fatal("whose turn it is was not told")
				case slices.ContainsFunc(waiting, open):
					rt.Fatal("somebody was let through too early")
				case slices.ContainsFunc(away, func(t *ticket) bool { return !open(t) || t.err != errAway }):
					rt.Fatal("somebody who was turned away still waits")
				}
			},
		})
	})
}

// A visitor wants to pass some gates together.
type visitor struct {
	gates    []int // in order
	after    time.Duration
	stay     time.Duration
	patience time.Duration // 0: for ever
}

// Whoever wants several gates: nobody else is behind one of them meanwhile, all
// who have the patience get in soon, those who have not are back in time, those who
// want one gate only get in first come, first served, and nothing is left.
func TestGatesTogether(t *testing.T) {
	const most = 3 // gates
	visitors := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) visitor {
		var v visitor
		for g := range most {
			if rapid.Bool().Draw(rt, "gate") {
				v.gates = append(v.gates, g)
			}
		}
		if len(v.gates) == 0 {
			v.gates = []int{0}
		}
		v.after = time.Duration(rapid.IntRange(0, 300).Draw(rt, "after")) * time.Millisecond
		v.stay = time.Duration(rapid.IntRange(0, 50).Draw(rt, "stay")) * time.Millisecond
		if rapid.IntRange(0, 3).Draw(rt, "impatient") == 0 {
			v.patience = time.Duration(rapid.IntRange(1, 200).Draw(rt, "patience")) * time.Millisecond
		}
		return v
	}), 1, 20)
	rapid.Check(t, func(rt *rapid.T) {
		all := visitors.Draw(rt, "visitors")
		inBubbleOf(t, rt, func(t *testing.T) error { return visit(t, all) })
	})
}

func visit(t *testing.T, all []visitor) (wrong error) {
	e := newBubbleEngine(t)
	start := time.Now()
	var mu sync.Mutex // guards below
	inside := map[int]int{}
	entered := map[int][]int{} // by gate: those who want only that one, in the order in which they got in
	fail := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		if wrong == nil {
			wrong = fmt.Errorf(format, args...)
		}
	}
	var work sync.WaitGroup
	for i, v := range all {
		work.Go(func() {
			time.Sleep(v.after + time.Duration(i)*time.Nanosecond) // one after the other
			arrived := time.Now()
			p := &patience{ctx: context.Background()}
			if v.patience > 0 {
				p.deadline = arrived.Add(v.patience)
			}
			var wants []want
			for _, g := range v.gates {
				wants = append(wants, want{hold: &hold{backend: &fakeLock{e.redis, fmt.Sprint(g)}, key: holdKey{lockID{name: fmt.Sprint(g)}, owner(i)}}})
			}
			_, err := e.enterGates(p, wants)
			if waited := time.Since(arrived); err != nil {
				if err != errTimeUp || v.patience == 0 || waited != v.patience {
					fail("visitor %d gave up after %v: %v", i, waited, err)
				}
			} else {
				mu.Lock()
				for _, g := range v.gates {
					if inside[g]++; inside[g] > 1 && wrong == nil {
						wrong = fmt.Errorf("visitor %d is not alone behind gate %d", i, g)
					}
				}
				if len(v.gates) == 1 {
					entered[v.gates[0]] = append(entered[v.gates[0]], i)
				}
				mu.Unlock()
				time.Sleep(v.stay)
				mu.Lock()
				for _, g := range v.gates {
					inside[g]--
				}
				mu.Unlock()
			}
			e.mu.Lock()
			e.leaveAllLocked(wants)
			e.mu.Unlock()
		})
	}
	work.Wait()
	if took := time.Since(start); took > time.Duration(len(all))*(50*time.Millisecond+2*reserveTime)+time.Second {
		fail("it took %v until all were through", took)
	}
	for g, order := range entered {
		if !slices.IsSortedFunc(order, func(a, b int) int { return int(all[a].after - all[b].after) }) {
			fail("gate %d was passed in the order %v", g, order)
		}
	}
	if len(e.gates) != 0 {
		fail("%d gates are left", len(e.gates))
	}
	return wrong
}

// What is done to one lease, and how the fake Redis answers from then on.
type deed struct {
	after  time.Duration // that of before
	what   string
	length time.Duration
	renew  bool
}

// The schedule of one lease against its rules: trust, and when it is renewed.
func TestWatchdogKeepsTheRules(t *testing.T) {
	deeds := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) deed {
		return deed{
			after:  time.Duration(rapid.IntRange(0, 20_000).Draw(rt, "after ms")) * time.Millisecond,
			what:   rapid.SampledFrom([]string{"extend", "settle", "settle exactly", "works", "works", "fails", "slow", "gone", "remove"}).Draw(rt, "what"),
			length: time.Duration(rapid.IntRange(100, 60_000).Draw(rt, "length ms")) * time.Millisecond,
			renew:  rapid.Bool().Draw(rt, "renewed"),
		}
	}), 0, 15)
	rapid.Check(t, func(rt *rapid.T) {
		length := time.Duration(rapid.IntRange(100, 60_000).Draw(rt, "length ms")) * time.Millisecond
		renewed, all := rapid.Bool().Draw(rt, "renewed"), deeds.Draw(rt, "deeds")
		inBubbleOf(t, rt, func(t *testing.T) error { return keep(t, length, renewed, all) })
	})
}

// keeper is the model of one lease: what happens to it, in order.
type keeper struct {
	mu      sync.Mutex // guards below
	length  time.Duration
	until   time.Duration // trusted until then
	renewed bool
	due     time.Duration // a renewal is to be sent by then
	quiet   time.Duration // and not before
	over    bool
	mode    string
	wrong   error
}

func (k *keeper) fail(format string, args ...any) {
	if k.wrong == nil {
		k.wrong = fmt.Errorf(format, args...)
	}
}

// confirmed is a request that was sent at sent and granted a lease.
func (k *keeper) confirmed(sent, length time.Duration, renewed bool) {
	k.until = max(k.until, sent+length-length/100-2*time.Millisecond)
	k.length, k.renewed = length, renewed
	k.due = sent + length/3
	k.quiet = k.due - length/30
}

func keep(t *testing.T, length time.Duration, renewed bool, deeds []deed) error {
	k := &keeper{mode: "works"}
	var dog *watchdog
	dog = newWatchdog(func(ctx context.Context, leases []*lease) []renewal {
		sent := dog.now()
		k.mu.Lock()
		defer k.mu.Unlock()
		switch {
		case k.over || !k.renewed || sent >= k.until:
			k.fail("at %v: a lease is renewed that is not to be", sent)
		case sent < k.quiet || sent > k.due:
			k.fail("renewed at %v, want between %v and %v", sent, k.quiet, k.due)
		}
		// Without an answer: again after a quarter of what is left, so sooner and sooner.
		k.due = sent + max((k.until-sent)/4, k.length/200)
		k.quiet = k.due
		switch k.mode {
		case "fails":
			return []renewal{{err: errDown}}
		case "slow":
			k.mu.Unlock()
			time.Sleep(7*time.Second + 1)
			k.mu.Lock()
		case "gone":
			k.over = true
			return []renewal{{held: false}}
		}
		if !k.over && dog.now() < k.until {
			k.confirmed(sent, k.length, true)
			k.due = max(k.due, dog.now()) // it was answered late
		}
		return []renewal{{held: true}}
	}, func(*lease) string { return "" })
	defer dog.close()
	l, ends := newLease(dog)
	k.confirmed(0, length, renewed)
	dog.watch(l, dog.epoch, length, renewed)
	gone := false
	for i, d := range deeds {
		time.Sleep(d.after + time.Duration(i)*7*time.Nanosecond + 1) // never at the same instant as a renewal
		synctest.Wait()
		now := dog.now()
		k.mu.Lock()
		if !k.over && k.until <= now {
			k.over = true
		}
		trusted := k.until > now
		over := k.over
		switch {
		case d.what == "works" || d.what == "fails" || d.what == "slow" || d.what == "gone":
			k.mode = d.what
		case over:
		case d.what == "extend":
			sent := time.Now().Add(-d.length / 50) // it took a while to be answered
			k.confirmed(sent.Sub(dog.epoch), d.length, k.renewed || d.renew)
			dog.extend(l, sent, d.length, d.renew)
		case k.renewed: // only leases that run out are settled
		case d.what == "settle":
			k.until = max(k.until, now+d.length)
			dog.settle(l, time.Now().Add(d.length), false)
		case d.what == "settle exactly":
			k.until = now + d.length
			dog.settle(l, time.Now().Add(d.length), true)
		}
		if d.what == "remove" && !over {
			k.over, gone = true, true
			dog.remove(l)
		}
		if !over && !gone && dog.trusted(l, time.Now()) != trusted {
			k.fail("at %v: trusted: %v, want %v", now, !trusted, trusted)
		}
		k.mu.Unlock()
	}
	k.mu.Lock()
	if k.mode = "fails"; !k.renewed { // and so it must end, sooner or later
		k.mode = "works"
	}
	k.mu.Unlock()
	time.Sleep(24 * time.Hour)
	synctest.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.wrong != nil:
	case gone && ends.times != 0:
		k.fail("the end of a lease that was removed was told")
	case !gone && ends.times != 1:
		k.fail("the end was told %d times", ends.times)
	case !gone && errors.Is(ends.cause, errLapsed) && ends.at != k.until:
		k.fail("over at %v, want %v", ends.at, k.until)
	}
	return k.wrong
}

// Listeners, slots that move, servers that break and come back: when all has been
// well for a while, whoever listens hears all messages of its channel and no others,
// and what is left when all have gone is nothing.
func TestRouterFinds(t *testing.T) {
	type move struct {
		what      string
		which, to int
		after     time.Duration
	}
	moves := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) move {
		return move{
			what:  rapid.SampledFrom([]string{"join", "join", "leave", "move", "cut", "down", "up", "listen"}).Draw(rt, "what"),
			which: rapid.IntRange(0, 5).Draw(rt, "which"),
			to:    rapid.IntRange(-1, 2).Draw(rt, "to"),
			after: time.Duration(rapid.IntRange(0, 1500).Draw(rt, "after ms")) * time.Millisecond,
		}
	}), 1, 40)
	names := []string{"a", "b", "c"}
	rapid.Check(t, func(rt *rapid.T) {
		all := moves.Draw(rt, "moves")
		inBubbleOf(t, rt, func(t *testing.T) error {
			c, p := newFakeCluster(t, 3)
			var listening []*listener
			settle := func() error {
				for _, s := range c.servers {
					s.set(func() { s.down = false })
				}
				for i, name := range names {
					c.mu.Lock()
					lost := c.owner[name] < 0
					c.mu.Unlock()
					if lost {
						c.move(name, i)
					}
				}
				time.Sleep(10 * time.Second)
				for _, name := range names {
					for _, l := range listening {
						if woken(l); !ready(l) {
							return fmt.Errorf("%s is not ready", l.channel.name)
						}
					}
					c.publish(name)
					for _, l := range listening {
						if got := woken(l); got != (l.channel.name == name) {
							return fmt.Errorf("a listener of %s woken: %v, by a message on %s", l.channel.name, got, name)
						}
					}
				}
				return nil
			}
			for _, m := range all {
				time.Sleep(m.after)
				s := c.servers[m.which%3]
				switch m.what {
				case "join":
					listening = append(listening, p.join(names[m.which%3]))
				case "leave":
					if n := len(listening); n > 0 {
						listening[m.which%n].leave()
						listening = slices.Delete(listening, m.which%n, m.which%n+1)
					}
				case "move":
					c.move(names[m.which%3], m.to)
				case "cut":
					s.cut()
				case "down", "up":
					s.set(func() { s.down = m.what == "down" })
				case "listen":
					if err := settle(); err != nil {
						return err
					}
				}
			}
			if err := settle(); err != nil {
				return err
			}
			for _, l := range listening {
				l.leave()
			}
			time.Sleep(p.idle + 2*p.linger + time.Second)
			synctest.Wait()
			if len(p.channels) != 0 || len(p.links) != 0 {
				return fmt.Errorf("%d channels and %d links are left", len(p.channels), len(p.links))
			}
			return nil
		})
	})
}
