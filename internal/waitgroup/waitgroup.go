// Package waitgroup has the method Go of sync.WaitGroup for Go 1.24, which the module supports. It can be removed
// when the module requires Go 1.25.
package waitgroup

import "sync"

// Go calls f in a goroutine that wg counts, as [sync.WaitGroup.Go] does since Go 1.25.
func Go(wg *sync.WaitGroup, f func()) {
	wg.Add(1)
	go func() {
		defer wg.Done()
		f()
	}()
}
