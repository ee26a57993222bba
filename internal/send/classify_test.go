package send

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
)

func TestErrorsAreClassified(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	read := &net.OpError{Op: "read", Err: errors.New("connection reset")}
	for _, test := range []struct {
		err                             error
		answered, transient, mayHaveRun bool
	}{
		{io.EOF, false, true, true},
		{context.DeadlineExceeded, false, true, true},
		{ErrSilent, false, true, true},
		{read, false, true, true},
		{dial, false, true, false},
		{fmt.Errorf("wrapped: %w", dial), false, true, false},
		{redis.ErrPoolTimeout, false, true, false},
		{redis.ErrPoolExhausted, false, true, false},
		{redis.ErrClosed, false, false, false},
		{refusal("WRONGTYPE Operation against a key"), true, false, false},
		{refusal("ERR unknown command"), true, false, false},
		{refusal("LOADING Redis is loading"), true, true, false},
		{refusal("READONLY You can't write"), true, true, false},
		{refusal("MASTERDOWN Link with MASTER is down"), true, true, false},
		{refusal("CLUSTERDOWN The cluster is down"), true, true, false},
		{refusal("TRYAGAIN Multiple keys request"), true, true, false},
		{refusal("NOREPLICAS Not enough good replicas"), true, true, false},
		{refusal("BUSY Redis is busy running a script"), true, true, false},
		{refusal("MOVED 1 127.0.0.1:1"), true, true, false},
		{refusal("ASK 1 127.0.0.1:1"), true, true, false},
		{refusal("ERR max number of clients reached"), true, true, false},
		{refusal("ERR Script attempted to access a non local key in a cluster node"), true, true, false},
		{refusal("ERR Attempted to access a non local key in a cluster node"), true, true, false}, // Valkey 9
		{refusal("ERR Script attempted to access a slot not served by this node"), true, true, false},
		{refusal("ERR Script attempted to execute a write command while the cluster is down"), true, true, false},
		{refusal("ERR Unable to execute command because undeclared keys were accessed"), true, true, false},
		{refusal("ERR user_script:1: READONLY You can't write"), true, true, false}, // an embedded server
		{ErrNotSynced, true, false, true},
		{Unexpected("x"), false, false, true},
		{Invalid("x"), false, false, false},
		{NotALock("x", "holds data", refusal("NOTALOCK 1 number")), true, false, false},
		{&HookPanic{Value: 1}, false, false, true},
		{ErrHookExited, false, false, true},
	} {
		assert.Equal(t, test.answered, Answered(test.err), "answered: %v", test.err)
		assert.Equal(t, test.transient, Transient(test.err), "transient: %v", test.err)
		assert.Equal(t, test.mayHaveRun, MayHaveRun(test.err), "may have run: %v", test.err)
	}
	for err, want := range map[error]bool{
		io.EOF:                        true,
		refusal("BUSY Redis is busy"): true,
		refusal("MISCONF it cannot save to disk"): true,
		refusal("OOM command not allowed"):        true,
		error(&HookPanic{Value: 1}):               true,
		ErrHookExited:                             true,
		refusal("NOPERM x"):                       true,
		NotALock("x", "holds data", nil):          false,
		redis.ErrClosed:                           false,
	} {
		assert.Equal(t, want, MayPass(err), "may pass: %v", err)
	}
	for err, want := range map[error]bool{
		refusal("WRONGPASS invalid username-password pair or user is disabled."):     true,
		refusal("NOAUTH Authentication required."):                                   true,
		refusal("DENIED Redis is running in protected mode"):                         true,
		refusal("NOPERM this user has no permissions to run the 'evalsha' command"):  true,
		refusal("NOPERM User alice has no permissions to run the 'evalsha' command"): true,
		refusal("NOPERM No permissions to access a key"):                             true,
		fmt.Errorf("wrapped: %w", refusal("WRONGPASS x")):                            true,
		orMisled(refusal("Protocol error: unauthenticated multibulk length")):        true,

		refusal("NOPERM x script: 4ad233bc, on @user_script:1."):                                              false,
		refusal("ERR ACL failure in script: User alice has no permissions to run the 'set' command"):          false,
		refusal("ERR The user executing the script can't run this command or subcommand script: 4ad2, on @x"): false,
		refusal("LOADING Redis is loading"):                                                                   false,
		refusal("ERR unknown command"):                                                                        false,
		errors.New("WRONGPASS x"):                                                                             false,
		io.EOF:                                                                                                false,
	} {
		assert.Equal(t, want, NotAdmitted(err), "not admitted: %v", err)
		assert.Equal(t, !want, MayHaveActed(err), "may have acted: %v", err)
	}
	assert.False(t, NotAdmitted(nil))
	assert.False(t, MayHaveActed(nil))
	assert.False(t, RefusedWith(nil, "BUSY"))
	assert.False(t, RefusedWith(io.EOF, "EOF"))
}

// The end of the time for a connection is told as such, but not if the call has run and replicas were waited for.
func TestEndOfTheTimeForAConnection(t *testing.T) {
	over, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	c := &Call{Keys: []string{"a"}}
	s := &Sender{config: Config{Exhausted: func(key string) bool { return key == "a" }}}
	err := s.orNoConnection(over.Err(), c, over, time.Second)
	assert.ErrorIs(t, err, ErrNoConnection)
	assert.ErrorIs(t, err, ErrPoolExhausted)
	left := tryCtx{limited{over, over}, new(detached)}
	assert.ErrorIs(t, s.orNoConnection(over.Err(), c, left, time.Second), ErrNoConnection)
	left.of.done.Store(true)
	assert.Equal(t, over.Err(), s.orNoConnection(over.Err(), c, left, time.Second), "the caller's time")
	unsynced := fmt.Errorf("%w: %w", ErrNotSynced, over.Err())
	assert.Equal(t, unsynced, s.orNoConnection(unsynced, c, over, time.Second))
}
