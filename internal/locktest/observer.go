//go:build go1.25

package locktest

import (
	"errors"
)

var ErrOff = errors.New("the power is off")
