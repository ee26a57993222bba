// Package sim simulates several processes that share locks, with faults. It plays hours in seconds.
//
// A run is a [Plan]: data that is drawn from a seed, and then played in a bubble of testing/synctest. Each process of
// the simulated world has a go-redis client and a relock.Client of its own. The Redis server and the network to it
// are in memory (package bubble). A witness sees the result of every call and the data in Redis, and reports
// violations of the rules. A plan that fails can be reduced to the fewest faults and workers with which it still
// fails.
//
//	make simulate             # known seeds
//	make explore TIME=1h      # new seeds for an hour of real time
//	go test ./internal/sim -v -run '^TestSimulation$' -sim.seed=7      # the plan of seed 7 once more
//	go test ./internal/sim -v -run '^TestSimulation$' -sim.seed=7 -sim.reduce
//
// The flags -sim.locks and -sim.faults restrict what is drawn; an unknown name is answered with a list of the known
// ones. A report contains the results of the calls, and the last commands and the data of Redis at that time.
//
// The order in which goroutines run does not depend on the seed, so a seed may fail in one run and not in another.
// The flag -sim.again=20 plays it 20 times, and the test logs how often it failed.
// The digest of this suite is one of the plans, as the seed determines nothing else.
//
// The following is not simulated:
//
//   - A Redis Cluster. The server in memory answers CLUSTER SLOTS with itself only, sends neither MOVED nor ASK, and
//     has neither replicas nor sharded channels. What a Cluster adds is exactly this: slots that move, redirections,
//     and masters that fail. tests/faults tests these with real servers.
//   - Replicas. A failover is simulated by setting the data of the server back to an earlier time (the fault
//     "rewind"). WithSyncedReplicas is not used.
//   - Goroutines that are paused at arbitrary points. A paused process is stopped before and after its requests,
//     where it most often reads the clock, and its timers continue. A clock that stands still for one process only
//     would require relock to use a clock other than that of package time.
//   - Clocks with different rates. All processes and Redis use the clock of the bubble. That of Redis can be moved.
//   - Election.Lead and Observe, Term.Guard, IsHeld and TTL.
//   - Java services that die, and the watchdog of Redisson. The simulated services ask for explicit leases.
//
// The package needs Go 1.25. For older versions it consists of this comment only.
package sim
