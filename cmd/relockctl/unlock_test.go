package main

import (
	"bytes"
	"context"
	"log/slog"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

// A logFile is written to by several goroutines.
type logFile struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logFile) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// The log of the holder has the cause of the loss of the lock, also if its lease is not renewed, and within moments.
func TestHolderLogsThatTheLockWasReleasedByForce(t *testing.T) {
	s := testredis.Start(t)
	ctx := context.Background()
	var log logFile
	c, err := relock.New(s.Client(), relock.WithLabel(""), relock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	must(t, err)
	defer c.Close()
	must(t, c.NewLock("lock:renewed").Lock(ctx))
	must(t, c.NewLock("lock:leased").LockLease(ctx, time.Hour))
	testredis.Await(t, "the holder listens", soon, func() bool {
		return len(s.Client().PubSubChannels(ctx, "relock_client:*").Val()) == 1
	})
	for _, name := range []string{"lock:renewed", "lock:leased"} {
		_, errs, status := ctl(t, s.Addr(), "y\n", "unlock", name)
		assert.Zero(t, status, errs)
		line := regexp.MustCompile(`(?m)^.* lock=` + name + ` .*it was released by force"$`)
		testredis.Await(t, "the log names the cause", soon/3, func() bool { return line.MatchString(log.String()) })
	}
}

// A user who may look at a lock, and not release it, is told which permissions that needs, although Redis refuses only a
// command inside of the script.
func TestUnlockWithoutPermissionNamesThePage(t *testing.T) {
	s := testredis.Start(t)
	ctx, rdb := context.Background(), s.Client()
	must(t, newClient(t, rdb).NewLock("orders").Lock(ctx))
	must(t, rdb.Do(ctx, "acl", "setuser", "looker", "reset", "on", ">x", "~*", "&*", "+evalsha", "+eval", "+hget",
		"+hgetall", "+hrandfield", "+pttl", "+lrange", "+zrangebyscore", "+get", "+time", "+info", "+ping").Err())
	_, errs, status := ctl(t, "", "", "--url", "redis://looker:x@"+s.Addr(), "unlock", "--yes", "orders")
	assert.Equal(t, statusFailed, status)
	assert.Contains(t, errs, `force unlock "orders": `)
	assert.Contains(t, errs, "\nThe permissions that the user needs: "+permissions)
	assert.Equal(t, int64(1), rdb.Exists(ctx, "orders").Val())
}
