// Package sim plays hours of several processes that share locks, and of what goes wrong meanwhile, in seconds.
//
// A run is a [Plan]: data that are drawn from a seed, and then played in a bubble of testing/synctest. Each process of
// the world has a go-redis client and a relock.Client of its own; their Redis and the network to it are in memory
// (package bubble). A witness beside them sees what every call returns and what Redis holds, and finds what may never
// happen. A plan that fails is reduced to the fewest faults and workers that still fail.
//
//	make simulate TIME=1h     # new seeds for an hour of real time
//	go test ./internal/sim -v -run '^TestSimulation$' -sim.seed=7      # the plan of seed 7, again
//	go test ./internal/sim -v -run '^TestSimulation$' -sim.seed=7 -sim.reduce
//
// -sim.locks and -sim.faults restrict what is drawn; a name that there is not is answered with a list of those that
// there are. A report has what the calls returned and what Redis ran and held at that moment.
//
// The order of goroutines is not drawn from the seed, so a seed may fail at one time and not at another: -sim.again=20
// says how often.
//
// What is not played:
//
//   - A Cluster. The Redis in memory answers CLUSTER SLOTS with itself alone, sends neither MOVED nor ASK, knows no
//     replicas and has no sharded channels. What a Cluster adds are just these: slots that move, redirections, and
//     masters that fail. cluster_test.go tries them on real servers.
//   - Replicas: a failover is a Redis that is set back by some time (the fault "rewind"). WithSyncedReplicas is not
//     used.
//   - Goroutines that stop anywhere. A paused process stops before and after its requests, where it looks at the clock
//     most, and its timers go on: a clock that stands still for one process and not for the others would need another
//     clock in relock than that of package time.
//   - Clocks of different rates. All processes and Redis have the clock of the bubble; that of Redis can be moved.
//   - Election.Lead and Observe, Term.Guard, IsHeld and TTL.
//   - Java services that die, and the watchdog of Redisson: its services here ask for explicit leases.
//
// The package needs Go 1.25; it has no code but this comment for an older one.
package sim
