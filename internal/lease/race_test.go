//go:build race

package lease

// mostEvents is how many events an order has: with the race detector each takes ten times as long.
const mostEvents = 5
