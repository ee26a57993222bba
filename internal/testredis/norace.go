//go:build !race

package testredis

const raced = false // the race detector is off

// testsAtOnce is how many tests run at the same time, because they mostly wait. A test that computes is not parallel,
// so that it takes no time from those that measure it.
const testsAtOnce = "32"
