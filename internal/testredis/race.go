//go:build race

package testredis

// testsAtOnce is how many tests run together: with the race detector they need more of the processors.
const testsAtOnce = "6"
