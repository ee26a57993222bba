package main

// What is said about keys that are not the locks that were asked for. The errors of relock have advice for those who
// write programs, and not for those who look at a Redis.

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/send"
)

// foreign returns err, with which an inspection of the lock has ended, or what kind of data its key holds instead.
func foreign(name string, err error) error {
	if !errors.Is(err, relock.ErrNotALock) {
		return err
	}
	_, found, ofName := strings.Cut(err.Error(), "the key "+send.ShortName(name)+" holds ")
	words := strings.Fields(found)
	switch {
	case ofName && len(words) > 1 && words[0] == "a":
		return fmt.Errorf("%s is a %s of another program, not a lock", quote(name), words[1])
	case ofName:
		return fmt.Errorf("%s is data of another program, not a lock", quote(name))
	}
	return errors.New(withoutAdvice(err)) // about another key of the lock
}

// withoutAdvice returns the text of err without the advice of relock to use another name.
func withoutAdvice(err error) string {
	text, _, _ := strings.Cut(plain(err), ": use a name that no other data has")
	return text
}

// otherType returns err, with which run has not acquired the lock, or what has to be used if it is of another type.
func (p *program) otherType(ctx context.Context, err error) error {
	i, failed := p.client.Inspect(ctx, p.job.name)
	name := quote(p.job.name)
	switch ofSemaphore := i.Type == relock.TypeSemaphore; {
	case failed != nil:
	case ofSemaphore && i.Ambiguous && p.job.permits == 0:
		return fmt.Errorf("%s is a semaphore without holders, or another counter: for a semaphore use --semaphore N", name)
	case ofSemaphore && p.job.permits == 0:
		return fmt.Errorf("%s is a semaphore: use --semaphore N", name)
	case i.Held() && !ofSemaphore && p.job.permits > 0:
		return fmt.Errorf("%s is a lock, and not a semaphore: leave out --semaphore", name)
	}
	return err
}
