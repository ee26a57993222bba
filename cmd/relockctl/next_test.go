package main

// What show says about what to do.

import (
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

func TestShowSaysWhatToDo(t *testing.T) {
	s, ctx, c := started(t)
	must(t, c.NewLock("l*ck").Lock(ctx))
	must(t, s.Client().HSet(ctx, "java", "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10:42", 1).Err())
	hold, err := c.NewLock("lack").Acquire(ctx)
	must(t, err)
	_, err = hold.Detach(ctx, time.Hour)
	must(t, err)
	for name, want := range map[string]string{
		"l*ck": "see whether LEASE rises within 11s. If so, its process is alive, ",
		"java": "find out who has acquired it without an end of its lease, which relock never does.\n  relockctl unlock java ",
		"lack": "find out why no process has attached it. It is free when its lease ends.\n  relockctl unlock lack ",
	} {
		assert.Contains(t, prints(t, s.Addr(), "show", name), "\n\nNext: "+want)
	}
	pattern := regexp.MustCompile(`(?m)^  relockctl watch '(.*)'   #`).FindStringSubmatch(prints(t, s.Addr(), "show", "l*ck"))
	require.Len(t, pattern, 2)
	locks := printed[[]jsonLock](t, s.Addr(), "list", "--json", pattern[1])
	require.Len(t, locks, 1, "the command shows this lock alone")
	assert.Equal(t, "l*ck", locks[0].Name)
}

// A lock that is not held may be held elsewhere, so the text has the Redis and the database.
func TestShowAndUnlockSayWhereALockIsNotHeld(t *testing.T) {
	s := testredis.Start(t)
	url := "redis://" + s.Addr() + "/1"
	out, _, status := ctl(t, "", "", "--url", url, "show", "nobody")
	assert.Contains(t, out, "\nredis      "+s.Addr()+", db 1\n")
	assert.Equal(t, statusFree, status)
	_, errs, status := ctl(t, "", "", "--url", url, "unlock", "nobody")
	assert.Equal(t, "relockctl: nobody is not held at "+s.Addr()+", db 1\n", errs)
	assert.Equal(t, statusFree, status)
	_, errs, _ = ctl(t, "", "", "--url", url, "show", "a*")
	assert.Contains(t, errs, "a* is not held at "+s.Addr()+", db 1; show takes the name of one lock")
}
