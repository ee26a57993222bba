package faults

// The nemesis of a storm: it causes faults, one after the other, and records what each may have done: see storm_test.go.

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/relock-go/relock/internal/history"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
)

// A nemesis causes faults, one after the other, until its time is up.
type nemesis struct {
	*storm
	rng *rand.Rand
	end time.Time
}

func (n *nemesis) run() {
	if n.recorder != nil {
		n.hurry()
		return
	}
	faults := []func(){
		n.shake,
		n.shake,
		n.shake,
		n.shake,
		n.killConnections,
		n.flushScripts,
		n.blackHole,
		n.slowLine,
		n.restartProcess,
	}
	switch {
	case n.kind.on == sentinel:
		faults = append(faults, n.delete, n.failOver, n.failOver)
	case n.kind.on == cluster:
		faults = append(faults, n.delete, n.failOver, n.failOver, n.moveSlot, n.moveSlot)
	case n.kind.nodes == 1:
		faults = append(faults, n.freeze, n.pause, n.delete, n.delete, n.restartEmpty)
	default:
		faults = append(faults, n.freeze, n.pause, n.killMinority, n.killMinority)
	}
	n.sleep(0, min(time.Until(n.end)/2, 5*stormTimeout)) // a time without faults
	for n.sleep(0, stormTimeout/2) {
		if n.rng.IntN(6) == 0 {
			n.sleep(0, 2*stormTimeout) // a time without faults
			continue
		}
		faults[n.rng.IntN(len(faults))]()
	}
}

// sleep sleeps for a while, and reports whether there is time left.
func (n *nemesis) sleep(least, most time.Duration) bool {
	d := locktest.Between(n.rng, least, most)
	if left := time.Until(n.end); left < d {
		time.Sleep(max(0, left))
		return false
	}
	time.Sleep(d)
	return true
}

// await waits until the losses that it caused have been reported to the holders.
func (n *nemesis) await(most time.Duration) {
	deadline := time.Now().Add(most)
	for time.Now().Before(deadline) && n.sleep(stormTimeout/50, stormTimeout/20) && n.waiting.Load() > 0 {
	}
}

// last lets a fault last, sometimes for long enough that the holders notice their loss.
func (n *nemesis) last(who ...*stormProcess) {
	if n.rng.IntN(2) == 0 {
		n.sleep(stormTimeout/5, stormFault)
		return
	}
	for _, p := range who {
		p.holes.Add(1)
	}
	n.sleep(stormTimeout+stormTimeout/5, stormFault)
}

// hurt records the fault that f causes, and for how long it may have effects.
func (n *nemesis) hurt(what string, client int, f func()) {
	n.count(what)
	from := n.rec.Now()
	f()
	n.rec.Fault(
		history.Fault{Kind: history.Disturbs, What: what, Client: client, From: from, To: n.rec.Now() + stormTimeout/2},
	)
}

func (n *nemesis) hush(what string, client int, from time.Duration) {
	n.rec.Fault(history.Fault{Kind: history.Silences, What: what, Client: client, From: from, To: n.rec.Now()})
}

func (n *nemesis) forget(what, name string, f func()) {
	n.count(what)
	from := n.rec.Now()
	f()
	n.rec.Fault(
		history.Fault{Kind: history.Forgets, What: what, Name: name, Client: history.AllClients, From: from, To: n.rec.Now()},
	)
}

// onProxies is hurt for the processes that use proxies.
func (n *nemesis) onProxies(what string, f func()) {
	from := n.rec.Now()
	n.hurt(what, 1, f)
	for i := 3; i < stormClients; i += 2 {
		n.rec.Fault(
			history.Fault{Kind: history.Disturbs, What: what, Client: i, From: from, To: n.rec.Now() + stormTimeout/2},
		)
	}
}

// shake makes the proxies lose, stall, drop, delay and hold a few requests.
func (n *nemesis) shake() {
	kinds := []struct {
		what  string
		fault testredis.Fault
	}{
		{"answers lost", testredis.LoseReply},
		{"answers stalled", testredis.StallReply},
		{"requests dropped", testredis.DropRequest},
		{"requests held", testredis.HoldRequest},
		{"requests delayed", testredis.DelayRequest(locktest.Between(n.rng, 0, stormTimeout))},
		{"answers delayed", testredis.DelayReply(locktest.Between(n.rng, 0, stormTimeout))},
	}
	k := kinds[n.rng.IntN(len(kinds))]
	match := func(cmd []string) bool { return strings.HasPrefix(strings.ToLower(cmd[0]), "eval") }
	switch n.rng.IntN(3) {
	case 0:
		match = n.anyOf(record.Script("renew"), record.Script("read_renew"))
	case 1:
		match = n.anyOf(record.Script("lock_release"), record.Script("fair_release"), record.Script("read_release"), record.Script("write_release"))
	}
	times := 1 + n.rng.IntN(4)
	n.onProxies(k.what, func() {
		var rules []*testredis.Rule
		for _, p := range n.proxies {
			rules = append(rules, p.On(match, k.fault).Times(times))
		}
		n.sleep(0, stormTimeout)
		for _, r := range rules {
			r.Release()
		}
	})
}

// hurry causes short faults that bring the scripts of the line into all of their cases. A record ends with a script, or
// with its lease.
func (n *nemesis) hurry() {
	rare := []func(){n.freeze, n.blackHole, n.restartProcess, n.flushScripts, n.pause}
	often := []func(){n.shake, n.killConnections, n.delayAsks, n.delayAsks, n.delayAll, n.delayAll}
	for n.sleep(0, stormTimeout/10) {
		faults := often
		if n.rng.IntN(10) == 0 {
			faults = rare
		}
		faults[n.rng.IntN(len(faults))]()
	}
}

// delayAsks makes requests run late, some of them after their callers have given up.
func (n *nemesis) delayAsks() {
	n.onProxies("asks delayed", func() {
		for _, p := range n.proxies {
			p.On(n.anyOf(record.Script("lock_acquire")), testredis.DelayRequest(locktest.Between(n.rng, 0, stormTimeout/2))).Times(20)
		}
		n.sleep(0, stormTimeout/4)
	})
}

// delayAll makes all requests take longer than short leases, which expire before their grants are received.
func (n *nemesis) delayAll() {
	n.onProxies("late grants", func() {
		for _, p := range n.proxies {
			p.Latency(locktest.Between(n.rng, 0, stormTimeout/5))
		}
		n.sleep(stormTimeout/5, stormTimeout/2)
		for _, p := range n.proxies {
			p.Latency(0)
		}
	})
}

// anyOf matches the runs of these scripts, even if they are recorded.
func (n *nemesis) anyOf(scripts ...*send.Script) testredis.Match {
	if n.recorder != nil {
		for i, script := range scripts {
			scripts[i] = n.recorder.Sent(script)
		}
	}
	return locktest.AnyOf(scripts...)
}

func (n *nemesis) killConnections() {
	kind := []string{"normal", "pubsub"}[n.rng.IntN(2)]
	n.hurt("connections killed", history.AllClients, func() {
		for _, rdb := range n.rdbs {
			_ = rdb.Do(ctx, "client", "kill", "type", kind, "skipme", "yes").Err()
		}
	})
}

// freeze pauses a server, or, of several servers, a minority or more.
func (n *nemesis) freeze() {
	some := 1 + n.rng.IntN(len(n.servers))
	n.hurt("frozen", history.AllClients, func() {
		of := n.rng.Perm(len(n.servers))[:some]
		for _, i := range of {
			n.servers[i].Freeze()
		}
		from := n.rec.Now()
		if some > len(n.servers)/2 {
			n.last(n.procs[:stormClients]...)
			n.hush("a frozen Redis", history.AllClients, from)
		} else {
			n.last()
		}
		for _, i := range of {
			n.servers[i].Thaw()
		}
	})
}

func (n *nemesis) pause() {
	mode := []string{"all", "write"}[n.rng.IntN(2)]
	n.hurt("paused", history.AllClients, func() {
		d := locktest.Between(n.rng, 0, stormTimeout)
		for _, rdb := range n.rdbs {
			_ = rdb.Do(ctx, "client", "pause", d.Milliseconds(), mode).Err()
		}
		time.Sleep(d)
	})
}

func (n *nemesis) flushScripts() {
	n.hurt("scripts flushed", history.AllClients, func() {
		for _, rdb := range n.rdbs {
			_ = rdb.ScriptFlush(ctx).Err()
		}
	})
}

func (n *nemesis) blackHole() {
	n.onProxies("black hole", func() {
		if n.rng.IntN(2) == 0 { // at the end of a connection that becomes slow
			d := locktest.Between(n.rng, 0, stormTimeout/8)
			for _, p := range n.proxies {
				p.Latency(d)
			}
			n.sleep(0, stormTimeout)
		}
		for _, p := range n.proxies {
			p.BlackHole(true)
		}
		from := n.rec.Now()
		n.last(n.procs[1], n.procs[3])
		for i := 1; i < stormClients; i += 2 {
			n.hush("a black hole", i, from)
		}
		for _, p := range n.proxies {
			p.Latency(0)
			p.BlackHole(false)
			if n.rng.IntN(2) == 0 {
				p.CutAll()
			}
		}
	})
}

// restartProcess closes the Clients of one process while they are used.
func (n *nemesis) restartProcess() {
	i := n.rng.IntN(stormClients)
	n.hurt("clients closed", i, func() { n.procs[i].restart(n.storm) })
}

// slowLine makes all requests over the proxies take longer.
func (n *nemesis) slowLine() {
	n.onProxies("slow line", func() {
		d := locktest.Between(n.rng, 0, stormTimeout/8)
		for _, p := range n.proxies {
			p.Latency(d)
		}
		n.sleep(0, stormFault)
		for _, p := range n.proxies {
			p.Latency(0)
		}
	})
}

// delete deletes records, as an operator may do.
func (n *nemesis) delete() {
	name := n.names[n.rng.IntN(len(n.names))]
	alone := n.rng.IntN(4) > 0 // no other fault, so that every holder has to notice
	if alone {
		n.sleep(stormTimeout/2, stormTimeout)
	}
	n.forget("deleted", name, func() {
		keys := []string{name}
		for _, k := range locktest.RecordLocks {
			if k.Holds != nil {
				keys = append(keys, k.Holds(name))
			}
		}
		testredis.Await(n, "the records are deleted", locktest.Soon, func() bool { // just after a failover it may be refused
			return n.admin.Del(ctx, keys...).Err() == nil
		})
	})
	n.locked[name].deletions.Add(1)
	if alone {
		n.await(stormTimeout/2 + stormSlack)
	}
}

func (n *nemesis) restartEmpty() {
	n.hurt("restarted empty", history.AllClients, func() {
		n.forget("data lost", "", n.servers[0].Restart)
	})
}

// killMinority kills some servers, which stay offline for as long as records that they have lost may be valid for a
// client.
func (n *nemesis) killMinority() {
	n.hurt("a minority killed", history.AllClients, func() {
		some := n.rng.Perm(len(n.servers))[:1+n.rng.IntN((len(n.servers)-1)/2)]
		for _, i := range some {
			n.servers[i].Kill()
		}
		time.Sleep(stormTimeout + stormTimeout/5)
		for _, i := range some {
			n.servers[i].Restart()
		}
	})
}

// failOver promotes the replica of a master. The master works, is killed or is paused, and returns some time later.
// Clients that require no replica may lose its records.
func (n *nemesis) failOver() {
	name := n.names[n.rng.IntN(len(n.names))]
	old, of := n.masterOf(name)
	end, back, behind := old.Kill, old.Restart, n.rng.IntN(2) == 0
	switch n.rng.IntN(4) {
	case 0:
		end, back = old.Freeze, old.Thaw
	case 1, 2: // before any lease has expired
		end, back, behind = func() { n.takeOver(old) }, func() {}, true
	}
	n.hurt("failover", history.AllClients, func() {
		from := n.rec.Now()
		if behind { // the replica has not received the last writes
			n.count("replica behind")
			old.RefuseReplicas()
			n.sleep(stormTimeout/5, stormTimeout/2)
		}
		if n.sentinel != nil {
			n.sentinel.FailoverAfter(end)
		} else {
			n.cluster.FailoverAfter(old, end)
		}
		for _, name := range of {
			n.locked[name].deletions.Add(1)
		}
		n.sleep(0, stormTimeout)
		back()
		old.AcceptReplicas()
		n.settle()
		if n.kind.sync {
			master, _ := n.masterOf(name)
			master.AwaitReplicas("{"+name+"}", 1) // the master counts a replica that is back only when the replica reports it
			return
		}
		for _, name := range of {
			n.rec.Fault(
				history.Fault{
					Kind:   history.Forgets,
					What:   "not replicated",
					Name:   name,
					Client: history.AllClients,
					From:   from,
					To:     n.rec.Now(),
				},
			)
		}
	})
}

// takeOver promotes the replica of a working master.
func (n *nemesis) takeOver(old *testredis.Server) {
	var to *testredis.Server
	var cmd []any
	if n.sentinel != nil {
		to, cmd = n.sentinel.Sentinels()[0], []any{"sentinel", "failover", n.sentinel.MasterName()}
	} else {
		to, cmd = n.cluster.ReplicasOf(old)[0], []any{"cluster", "failover", "takeover"}
	}
	testredis.Await(n, "a replica may take over", locktest.Soon, func() bool {
		return to.Client().Do(ctx, cmd...).Err() == nil
	})
}

// masterOf returns the master of a name, and the other names for which it is the master.
func (n *nemesis) masterOf(name string) (*testredis.Server, []string) {
	if n.sentinel != nil {
		return n.sentinel.Master(), n.names
	}
	master := n.cluster.MasterOf(name)
	return master, slices.DeleteFunc(
		slices.Clone(n.names),
		func(other string) bool { return n.cluster.MasterOf(other) != master },
	)
}

func (n *nemesis) settle() {
	if n.sentinel != nil {
		n.sentinel.Settle()
	} else {
		n.cluster.Settle()
	}
}

// moveSlot moves the slot of a lock to another master, sometimes slowly.
func (n *nemesis) moveSlot() {
	name := n.names[n.rng.IntN(len(n.names))]
	from := n.cluster.MasterOf(name)
	to := from
	for to == from {
		to = n.cluster.MasterOf(fmt.Sprint(n.rng.Int()))
	}
	n.hurt("slot moved", history.AllClients, func() {
		finish := n.cluster.BeginMigration(name, to)
		if n.rng.IntN(2) == 0 {
			n.sleep(0, stormFault)
		}
		finish()
		if n.kind.sync {
			to.AwaitReplicas("{"+name+"}", 1)
		}
	})
}
