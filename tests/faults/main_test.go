// Package faults tests what happens when something goes wrong: between a Client and Redis, in Redis, and in processes.
//
//	faults            which test covers which row of tests/faults/README.md
//	faults_...        faults of the network, of Redis, and of processes
//	cluster, replication, servers   Redis Cluster; replicas and failovers; how a Client knows its servers
//	detach_faults     faults while a hold passes to another process
//	security          TLS, permissions in Redis, and secrets in texts
//	storm, storm_...  many clients under faults; the history is checked
//	trace             the effects of the scripts, as steps of the specification
//	soak              many clients for a long time
package faults

import (
	"context"
	"testing"

	"github.com/relock-go/relock/internal/locktest"
)

// ctx is the context of calls that nothing cancels.
var ctx = context.Background()

func TestMain(m *testing.M) {
	locktest.InRepository()
	locktest.Main(m)
}
