package send

import (
	"context"
	"testing"
	"time"
)

// constant is a Transport that answers immediately.
type constant struct{ answer any }

func (c constant) Run(context.Context, Call, bool) (any, error)       { return c.answer, nil }
func (c constant) RunAll(context.Context, []Call, bool) (_ []Outcome) { return nil }

// uncontended returns a function that does what Lock does with a Sender: one call on the caller's goroutine.
func uncontended(tb testing.TB) func() {
	s := newBench(tb, func(c *Config) { c.Batch, c.Transport = true, constant{reply(1, 0, 0)} }, inline)
	s.isFast()
	late := new(orphans)
	keys, args := []string{"x"}, []any{"field", 30000}
	return func() {
		w := Wait{Ctx: context.Background(), Closed: s.closed, OnCaller: true}
		a := s.Do(&w, Request{Call: Call{Keys: keys, Args: args}, Acquiring: true, OnOrphan: late}, time.Time{})
		if r, err := a.Reply(); err != nil || r[0] != 1 {
			tb.Fatal(r, err)
		}
	}
}

func TestInlineCallAllocatesNothing(t *testing.T) {
	if n := testing.AllocsPerRun(1000, uncontended(t)); n >= 1 { // now and then a limit starts a new timer
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkInline(b *testing.B) {
	b.ReportAllocs()
	do := uncontended(b)
	for b.Loop() {
		do()
	}
}

// BenchmarkOwnGoroutine makes the same call on a goroutine of its own.
func BenchmarkOwnGoroutine(b *testing.B) {
	b.ReportAllocs()
	s := newBench(b, func(c *Config) { c.Transport = constant{reply(1, 0, 0)} })
	r := request("x")
	for b.Loop() {
		if a := s.do(r); a.Err != nil {
			b.Fatal(a.Err)
		}
	}
}
