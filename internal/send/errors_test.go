package send

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestNamesInTextsAreQuotedAndCut(t *testing.T) {
	for name, want := range map[string]string{
		"x":                           `"x"`,
		"new\nline":                   `"new\nline"`,
		strings.Repeat("x", 64):       `"` + strings.Repeat("x", 64) + `"`,
		strings.Repeat("x", 65):       `"` + strings.Repeat("x", 64) + `"… (65 bytes)`,
		strings.Repeat("x", 63) + "é": `"` + strings.Repeat("x", 63) + `"… (65 bytes)`,
	} {
		assert.Equal(t, want, ShortName(name))
	}
	assert.Equal(t, "new\nline", CutName("new\nline"), "a handler quotes the attribute")
	assert.Equal(t, strings.Repeat("x", 64)+"… (65 bytes)", CutName(strings.Repeat("x", 65)))
}

func TestReasonsKeepWhatTheyWrap(t *testing.T) {
	assert.Equal(t, ErrTimeUp, WithLast(ErrTimeUp, nil), "ErrTimeUp itself is no failure")
	both := WithLast(ErrTimeUp, io.EOF)
	assert.ErrorIs(t, both, ErrTimeUp)
	assert.ErrorIs(t, both, io.EOF)

	silence := Silence(4321*time.Millisecond, 4, io.EOF)
	assert.ErrorIs(t, silence, ErrSilent)
	assert.ErrorIs(t, silence, io.EOF)
	assert.ErrorContains(t, silence, "within 4.3s (requests that were sent, or still waited for a connection: 4)")

	assert.ErrorIs(t, Invalid("the name is %s", "empty"), ErrInvalid)
	assert.EqualError(t, Invalid("the name is %s", "empty"), "invalid: the name is empty")
}

func TestCtxErrorHasTheCause(t *testing.T) {
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(enough)
	assert.ErrorIs(t, CtxError(ctx), context.Canceled)
	assert.ErrorIs(t, CtxError(ctx), enough)

	plain, cancelPlain := context.WithCancel(context.Background())
	cancelPlain()
	assert.Equal(t, context.Canceled, CtxError(plain))
}
