package locktest

import (
	"context"
	"fmt"
	"strings"
)

// CommandRuns returns how many commands with this name the server has run.
func (b *Bench) CommandRuns(name string) (n int) {
	b.Helper()
	stats, err := b.Rdb.Info(context.Background(), "commandstats").Result()
	b.Must(err)
	for _, line := range strings.Split(stats, "\r\n") {
		if _, err := fmt.Sscanf(line, "cmdstat_"+name+":calls=%d,", &n); err == nil {
			return n
		}
	}
	return 0
}
