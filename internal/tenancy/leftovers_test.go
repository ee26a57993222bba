package tenancy

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Each way in which attempts can end, and what has to be rolled back then.
func TestLeftoversSayWhatHasToBeRolledBack(t *testing.T) {
	busy := func(l *Leftovers) { l.Attempted(0, false, false) }
	queued := func(l *Leftovers) { l.Attempted(0, false, true) }
	silent := func(l *Leftovers) { l.Attempted(1, false, false) }
	left := func(l *Leftovers) { l.Attempted(0, true, false) }
	refused := (*Leftovers).GrantNotKept
	joins := (*Leftovers).MayEnqueue
	type events []func(*Leftovers)
	for name, c := range map[string]struct {
		events
		delays bool // whether others wait behind what is left
		failed bool // whether there may be something to roll back
		tries  int
	}{
		"nothing was asked":                  {},
		"busy":                               {events: events{busy}},
		"busy twice":                         {events: events{busy, busy}},
		"busy, with a place in the line":     {events: events{joins, busy}, delays: true, failed: true},
		"busy, with an entry":                {events: events{queued}, delays: true, failed: true},
		"an entry, and busy":                 {events: events{queued, busy}, delays: true, failed: true},
		"no answer":                          {events: events{silent}, failed: true, tries: 1},
		"no answer twice":                    {events: events{silent, silent}, failed: true, tries: 2},
		"no answer, and busy":                {events: events{silent, busy}, failed: true, tries: 1},
		"the call left":                      {events: events{left}, failed: true},
		"the call left after a busy":         {events: events{busy, left}, failed: true},
		"the call left after no answer":      {events: events{silent, left}, failed: true, tries: 1},
		"a grant that is not kept":           {events: events{busy, refused}, failed: true, tries: 1},
		"a grant refused twice is one":       {events: events{refused, refused}, failed: true, tries: 1},
		"refused after no answer":            {events: events{silent, silent, refused}, failed: true, tries: 2},
		"left, with an entry and in line":    {events: events{joins, queued, left}, delays: true, failed: true},
		"in line, and nothing was asked yet": {events: events{joins}, delays: true, failed: true},
	} {
		var l Leftovers
		for _, e := range c.events {
			e(&l)
		}
		assert.Equal(t, c.failed, l.ToRollBack(), name)
		assert.Equal(t, c.delays, l.MayBeEnqueued(), name)
		assert.Equal(t, c.tries, l.Tries(), "the tries of: %s", name)
	}
}
