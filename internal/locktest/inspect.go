package locktest

import (
	"context"
	"time"

	"github.com/relock-go/relock"
	"github.com/stretchr/testify/assert"
)

const (
	JavaThread = "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10:42"
	JavaOther  = "6b3e8c2f-5d13-4c9f-8e30-1d6b4f208b21:7"
)

func (b *Bench) Inspect(c *relock.Client) relock.Inspection {
	b.Helper()
	i, err := c.Inspect(context.Background(), b.LockName)
	b.Must(err)
	assert.Equal(b, b.LockName, i.Name, "name")
	assert.LessOrEqual(b, time.Since(i.At).Abs(), time.Minute, "age of the inspection")
	return i
}
