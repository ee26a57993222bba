//go:build race

package testredis

const raced = true // the race detector is on

// testsAtOnce is how many tests run together: with the race detector they need more of the processors.
const testsAtOnce = "6"
