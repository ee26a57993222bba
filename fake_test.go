package relock

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// send sends a call of a lock by itself.
func (c *Client) send(what call) (reply, error) {
	answer := c.engine.sender.Do(&send.Wait{Ctx: context.Background()}, send.Request{Call: what}, time.Time{})
	return answer.Reply()
}

// sendAttempt makes one attempt on a lock.
func sendAttempt(l *fairLock, a attempt) (grant, error) {
	r, err := l.client.send(l.acquire(a))
	if err != nil {
		return grant{}, err
	}
	return l.granted(a, r)
}
