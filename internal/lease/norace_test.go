//go:build !race

package lease

// mostEvents is how many events an order has.
const mostEvents = 6
