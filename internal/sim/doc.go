// Package sim plays hours of several processes that share locks, and of what goes wrong meanwhile, in seconds.
//
// A run is a [Plan]: data that are drawn from a seed, and then played in a bubble of testing/synctest. Each process of the
// world has a go-redis client and a relock.Client of its own; their Redis and the network to it are in memory (package bubble). A
// witness beside them sees what every call returns and what Redis holds, and finds what may never happen. A plan that fails is
// reduced to the fewest faults and workers that still fail.
//
//	make simulate TIME=1h                                   # new seeds for an hour of real time
//	go test ./internal/sim -run Simulation -sim.seed=7      # the plan of seed 7, again
//	go test ./internal/sim -run Simulation -sim.seed=7 -sim.reduce
//
// The order of goroutines is not drawn from the seed, so a seed may fail at one time and not at another: -sim.again=20
// says how often.
//
// The package needs Go 1.25; it has no code but this comment for an older one.
package sim
