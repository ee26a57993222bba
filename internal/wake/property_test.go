//go:build go1.25

package wake

// Properties of listeners: random operations are compared with a model that is simpler than the code.
//
// Rules: a test draws all its steps first and then plays them in a bubble, so that rapid can shrink a failure.

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/relock-go/relock/internal/tests/seeds"
)

var properties = seeds.New("wake")

// inBubbleOf plays f in a bubble, and fails rt with the error that f returns.
func inBubbleOf(t *testing.T, rt *rapid.T, f func(t *testing.T) error) {
	var wrong error
	synctest.Test(t, func(t *testing.T) { wrong = f(t) })
	require.NoError(rt, wrong)
}

// Slots move, and servers fail and come back. Once the servers have worked for a while, a listener receives every
// message of its channel and no other message. Nothing is left when all listeners have left.
func TestListenersHearTheirChannelThroughMovesAndOutages(t *testing.T) {
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
	properties.Play(t, 5, func(q *seeds.Sequence) {
		q.SetRapid()
		rapid.Check(q.T, func(rt *rapid.T) {
			all := moves.Draw(rt, "moves")
			q.Note(all)
			inBubbleOf(q.T, rt, func(t *testing.T) error {
				c, p := newFakeCluster(t, 3)
				var listening []*Listener
				settle := func() error {
					for _, s := range c.servers {
						s.Set(func() { s.Down = false })
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
					synctest.Wait()
					assertLists(t, p)
					for _, name := range names {
						for _, l := range listening {
							if woken(l); !ready(l) {
								return fmt.Errorf("%s is not ready", l.Name())
							}
						}
						c.publish(name)
						for _, l := range listening {
							if got := woken(l); got != (l.Name() == name) {
								return fmt.Errorf("a listener of %s woken: %v, by a message on %s", l.Name(), got, name)
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
						listening = append(listening, p.Join(names[m.which%3]))
					case "leave":
						if n := len(listening); n > 0 {
							listening[m.which%n].Leave()
							listening = slices.Delete(listening, m.which%n, m.which%n+1)
						}
					case "move":
						c.move(names[m.which%3], m.to)
					case "cut":
						s.Cut()
					case "down", "up":
						s.Set(func() { s.Down = m.what == "down" })
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
					l.Leave()
				}
				time.Sleep(idleTime + 2*p.idleTTL + time.Second)
				synctest.Wait()
				if len(p.channels) != 0 || len(p.links) != 0 {
					return fmt.Errorf("%d channels and %d links are left", len(p.channels), len(p.links))
				}
				return nil
			})
		})
	})
}
