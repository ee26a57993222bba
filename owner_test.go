package relock

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOwnerIsTheGoroutineOrOfTheContext(t *testing.T) {
	ctx := context.Background()
	here, there := ownerOf(ctx), elsewhere(func() owner { return ownerOf(ctx) })
	assert.NotEqual(t, there, here, "two goroutines are two owners")
	assert.Positive(t, here, "a goroutine's owner is its id")
	assert.Positive(t, there, "a goroutine's owner is its id")
	assert.Equal(t, ownerOf(ctx), here, "a goroutine stays the same owner")
	one, two := WithOwner(ctx), WithOwner(ctx)
	a, b := ownerOf(one), ownerOf(two)
	assert.NotEqual(t, b, a, "each WithOwner makes a new owner")
	assert.Negative(t, a, "an owner of a ctx is no goroutine id")
	assert.Equal(t, elsewhere(func() owner { return ownerOf(one) }), a, "the owner of a ctx on another goroutine")
	assert.NotEqual(t, ownerOf(one), ownerOf(WithOwner(one)), "an owner inside an owner is a new one")
}
