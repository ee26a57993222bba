//go:build !race

package relock

// testsAtOnce is how many tests run together: they mostly wait.
const testsAtOnce = "8"
