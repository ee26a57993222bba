package relockui

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
)

// What is stuck comes first: the longest wait, then the most waiters, then the name. For how long a lock is held does
// not count, because rows of locks that change hands would move all the time.
func TestLongestWaitComesFirst(t *testing.T) {
	now := time.Now()
	lockOf := func(name string, held time.Duration, waits ...time.Duration) (lock, holding, time.Time) {
		i := relock.Inspection{Name: name, At: now, Type: relock.TypeLock, Waiting: len(waits)}
		i.Holders = []relock.Holder{{Contender: relock.Contender{Field: "f"}, HoldCount: 1, Remaining: time.Minute}}
		for _, w := range waits {
			waiter := relock.Waiter{}
			if w > 0 {
				waiter.Since = now.Add(-w)
			}
			i.Waiters = append(i.Waiters, waiter)
		}
		return newLock(i), holding{name, "f"}, now.Add(-held)
	}
	s := &sample{at: now, since: make(map[holding]time.Time)}
	add := func(name string, held time.Duration, waits ...time.Duration) {
		l, id, since := lockOf(name, held, waits...)
		s.locks = append(s.locks, l)
		s.since[id] = since
	}
	add("new", time.Second)
	add("old", time.Hour)
	add("b", time.Minute)
	add("a", time.Minute)
	add("java waits", time.Second, 0)
	add("short wait", time.Hour, time.Second, 2*time.Second)
	add("long wait", time.Second, time.Hour, time.Second)
	s.sort()
	var names []string
	for _, row := range newListView(s, choice{}).Rows {
		names = append(names, row.Name)
	}
	assert.Equal(t, []string{"long wait", "short wait", "java waits", "a", "b", "new", "old"}, names)
	v := newListView(s, choice{})
	assert.Equal(t, "7 locks held; others wait for 3 of them, the longest for 1h0m0s", v.Summary)
	assert.Equal(t, "unknown", v.Rows[2].Longest)
	assert.Equal(t, "at least 1h0m0s", v.Rows[6].Held)
}

// Waiters that are gone are shown behind the others, and have neither a place nor a wait. They are counted apart, and
// do not make a lock look stuck.
func TestWaitersThatAreGoneDoNotWait(t *testing.T) {
	now := time.Now()
	waiter := func(owner string, waited time.Duration, reachable relock.Reachability) relock.Waiter {
		return relock.Waiter{
			Contender: relock.Contender{Owner: owner, Client: "client-1"},
			Since:     now.Add(-waited), Reachable: reachable,
		}
	}
	lockOf := func(name string, waiters ...relock.Waiter) lock {
		i := relock.Inspection{Name: name, At: now, Type: relock.TypeLock, Waiters: waiters, Waiting: len(waiters)}
		i.Holders = []relock.Holder{{HoldCount: 1, Remaining: time.Minute}}
		for _, w := range waiters {
			if w.Reachable == relock.ReachableNo {
				i.Gone++
			}
		}
		return newLock(i)
	}
	var dead []relock.Waiter
	for range mostRows {
		dead = append(dead, waiter("dead", time.Hour, relock.ReachableNo))
	}
	all := append(dead, waiter("goroutine 7", time.Minute, relock.ReachableYes),
		waiter("goroutine 8", time.Second, relock.ReachableUnknown))
	mixed, gone := lockOf("mixed", all...), lockOf("only gone", dead[:1]...)

	s := &sample{at: now, locks: []lock{gone, mixed}, since: make(map[holding]time.Time)}
	s.sort()
	v := newListView(s, choice{})
	assert.Equal(t, "2 locks held; others wait for 1 of them, the longest for 1m0s", v.Summary)
	assert.Equal(t, "mixed", v.Rows[0].Name)
	assert.Equal(t, "2, and 100 gone", v.Rows[0].Waiting)
	assert.Equal(t, "1m0s", v.Rows[0].Longest)
	assert.Equal(t, "0, and 1 gone", v.Rows[1].Waiting)
	assert.Empty(t, v.Rows[1].Longest, "nobody waits")

	one := newLockView(&mixed, nil, false, nil)
	assert.Contains(t, one.Facts, factView{"Longest wait", "1m0s"})
	assert.Contains(t, one.Facts, factView{"Waiting", "2, and 100 gone"})
	assert.Empty(t, one.Behind)
	require.Len(t, one.Waiters, mostRows)
	assert.Equal(t, []waiterView{
		{"1", whoView{Process: "client client-1", Owner: "goroutine 7", Client: "client-1"}, "waiter", "1m0s", "yes"},
		{"2", whoView{Process: "client client-1", Owner: "goroutine 8", Client: "client-1"}, "waiter", "1s", "unknown"},
		{noneKnown, whoView{Process: "client client-1", Owner: "dead", Client: "client-1"}, "waiter", "gone", "no"},
	}, one.Waiters[:3])
}

// What a filter matches is what the row shows, or the row of a waiter.
func TestFilterFindsWhatIsShown(t *testing.T) {
	l := newLock(relock.Inspection{
		Name: "lock:Orders:42", Type: relock.TypeFair,
		Holders: []relock.Holder{{Contender: relock.Contender{Client: "12345678-9", Owner: "goroutine 7", Label: "Orders-1",
			Host: "node-3"}}},
		Waiters: []relock.Waiter{{Contender: relock.Contender{Client: "87654321-9", Owner: "thread 5"}}},
	})
	for _, q := range []string{"", " ", "orders:42", "ORDERS-1", "node-3", "goroutine 7", "fair", "java client 87654321"} {
		assert.True(t, l.matches(q), q)
	}
	for _, q := range []string{"12345678-9", "semaphore", "x"} {
		assert.False(t, l.matches(q), q)
	}
}

// Redis has the counter of fencing tokens, and not whether the lock is that of an election.
func TestElectionsAreCalledSo(t *testing.T) {
	l := newLock(relock.Inspection{Name: "leader", Type: relock.TypeLock, Token: 7})
	assert.Equal(t, "fenced lock or election", typeText(&l))
	assert.True(t, l.matches("election"))
	assert.Contains(t, newLockView(&l, nil, false, nil).Facts, factView{"Last fencing token", "7"})
	l.Token = 0
	assert.Equal(t, "lock", typeText(&l))
	fair := newLock(relock.Inspection{Type: relock.TypeFair, Token: 7})
	assert.Equal(t, "fair lock", typeText(&fair))
}

// The candidates of an election wait by design, and an election cannot be told from a fenced lock. So a wait for one is
// no alarm, unless the lease of its holder does not grow.
func TestWaitForALeaderIsNoAlarm(t *testing.T) {
	now := time.Now()
	h := relock.Holder{Contender: relock.Contender{Field: "f"}, HoldCount: 1, Remaining: 30 * time.Second}
	calm := func(token int64, seenFor time.Duration) bool {
		l := newLock(relock.Inspection{
			Name: "leader", At: now, Type: relock.TypeLock, Token: token, Waiting: 1, Holders: []relock.Holder{h},
			Waiters: []relock.Waiter{{Since: now.Add(-time.Hour)}},
		})
		l.lapses["f"] = lapse{since: now.Add(-seenFor), end: now.Add(30 * time.Second)}
		return newRow(&sample{at: now}, &l).Calm
	}
	assert.True(t, calm(7, time.Second))
	assert.False(t, calm(7, time.Minute), "its process has ended, or cannot reach Redis")
	assert.False(t, calm(0, time.Second), "a lock")
}

// A lease that does not grow is marked in the list, and the page of the lock says when it ends. If that of one holder
// grows, or has not been watched for long enough, the lock does not become free by itself.
func TestPageSaysWhenALockBecomesFreeByItself(t *testing.T) {
	now := time.Now()
	page := func(seenFor ...time.Duration) (*lockView, rowView) {
		i := relock.Inspection{Name: "a", At: now, Type: relock.TypeReadWrite, Mode: "read"}
		for n := range seenFor {
			i.Holders = append(i.Holders, relock.Holder{
				Contender: relock.Contender{Field: fmt.Sprint(n)}, HoldCount: 1,
				Remaining: time.Duration(15+n) * time.Second,
			})
		}
		l := newLock(i)
		for n, h := range i.Holders {
			l.lapses[h.Field] = lapse{since: now.Add(-seenFor[n]), end: now.Add(h.Remaining)}
		}
		return newLockView(&l, nil, false, nil), newRow(&sample{at: now}, &l)
	}
	lock, row := page(15 * time.Second)
	assert.Equal(t, "It becomes free by itself in 15s, unless its holder renews the lease.", lock.Ends)
	assert.True(t, row.RunsOut)
	lock, _ = page(15*time.Second, 15*time.Second)
	assert.Contains(t, lock.Ends, " in 16s,")
	lock, row = page(time.Second)
	assert.Empty(t, lock.Ends)
	assert.False(t, row.RunsOut)
	lock, _ = page(15*time.Second, time.Second)
	assert.Empty(t, lock.Ends)
}

// Nothing is said of the type of a lock that is not there: what follows tells that no owner holds it.
func TestLockThatIsNotThereHasNoType(t *testing.T) {
	none := newLock(relock.Inspection{Name: "a", Type: relock.TypeNone})
	assert.Equal(t, []factView{{"Waiting", "0"}}, newLockView(&none, nil, true, nil).Facts)
}

// "Only waiting" lists the locks that others wait for, and the summary still counts all.
func TestOnlyWaiting(t *testing.T) {
	held := func(name string, waiting int) lock {
		return newLock(relock.Inspection{
			Name: name, Type: relock.TypeLock, Waiting: waiting,
			Holders: []relock.Holder{{HoldCount: 1, Remaining: time.Minute}},
		})
	}
	s := &sample{locks: []lock{held("awaited", 1), held("held", 0), held("free", 0)}}
	names := func(c choice) (names []string) {
		for _, row := range newListView(s, c).Rows {
			names = append(names, row.Name)
		}
		return names
	}
	assert.Equal(t, []string{"awaited", "held", "free"}, names(choice{}))
	assert.Equal(t, []string{"awaited"}, names(choice{waiting: true}))
	assert.Equal(t, "3 locks held; others wait for 1 of them", newListView(s, choice{waiting: true}).Summary)
	assert.Equal(t, []string{"awaited"}, names(choice{"wait", true}))
	assert.Empty(t, names(choice{"free", true}))
	assert.Equal(t, "0 of the 3 held locks match", newListView(s, choice{q: "x"}).Summary)
	assert.Equal(t, "1 of the 3 held locks matches; nobody is known to wait", newListView(s, choice{q: "free"}).Summary)
	const switchOff = " Switch \u201cOnly waiting\u201d off to see "
	assert.Equal(t, "Nobody is known to wait for the locks that match."+switchOff+"them.",
		newListView(s, choice{"free", true}).None, "others wait for another lock")
	s.locks = s.locks[2:]
	assert.Equal(t, "Nobody is known to wait for a lock."+switchOff+"all.", newListView(s, choice{waiting: true}).None)
}
