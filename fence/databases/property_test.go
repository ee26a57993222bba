package databases

// Random interleavings: holders with random tokens add 1 to numbers, with several transactions at a time, and are paused
// anywhere. Afterwards, each number has to be the number of writes to it, and the tokens of the writes, in their order,
// must never fall.

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/fence"
	"github.com/relock-go/relock/internal/tests/seeds"
)

var interleavings = seeds.New("fence")

var rounds = flag.Int("rounds", 300, "random interleavings for each database and isolation level")

const (
	holders  = 3
	threads  = 2 // of each holder
	sections = 2 // of each thread, at most
	atOnce   = 6 // rounds
)

// A writer is how a holder uses the database.
type writer struct {
	*store
	ids  int // of the numbers that there are
	seed uint64

	committed, stale, repeated atomic.Int64
}

func newWriter(s *store, seed uint64) *writer {
	return &writer{store: s, seed: seed}
}

// run plays rounds, and returns what is wrong.
func (w *writer) run(t *testing.T, rounds int) (wrong []string) {
	first := w.ids
	for range rounds {
		w.exec(t, "INSERT INTO numbers VALUES (?, 0)", w.ids)
		w.ids++
	}
	var all sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for id := first; id < w.ids; id++ {
		slots <- struct{}{}
		var round sync.WaitGroup
		tokens := w.rand(id, -1).Perm(holders * 2)
		for i := range holders {
			var alone sync.RWMutex
			for n := range threads {
				all.Add(1)
				round.Add(1)
				go func() {
					defer all.Done()
					defer round.Done()
					h := &thread{w, w.rand(id, i*threads+n), fmt.Sprintf("own:%d:%d:%d", id, i, n), &alone}
					h.hold(t, id, int64(tokens[i]+1))
				}()
			}
		}
		go func() { round.Wait(); <-slots }()
	}
	all.Wait()
	wrong = w.judge(t)
	t.Logf("%d interleavings: %d transactions were committed, %d refused as stale, %d repeated; %d are wrong",
		w.ids, w.committed.Load(), w.stale.Load(), w.repeated.Load(), len(wrong))
	return wrong
}

// rand returns what a thread draws from.
func (w *writer) rand(id, thread int) *rand.Rand {
	return rand.New(rand.NewPCG(w.seed, uint64(id*(holders*threads+1)+thread+1)))
}

// A thread of a holder adds 1 to a number.
type thread struct {
	*writer
	rng   *rand.Rand
	own   string        // a resource that no other thread uses
	alone *sync.RWMutex // of the holder: between two transactions of a thread no other one may write
}

// hold adds 1 a few times, until the token of the holder is stale.
func (w *thread) hold(t *testing.T, id int, token int64) {
	w.dawdle()
	for range 1 + w.rng.IntN(sections) {
		section := w.inOne
		if w.rng.IntN(2) == 0 {
			section = w.inTwo
		}
		err := section(t.Context(), id, token)
		for try := 0; try < 50 && asksForRepetition(err); try++ {
			w.repeated.Add(1)
			w.dawdle()
			err = section(t.Context(), id, token)
		}
		switch {
		case err == nil:
			w.committed.Add(1)
		case errors.Is(err, fence.ErrStale):
			w.stale.Add(1)
			return
		case !errors.Is(err, errUndecided):
			assert.NoError(t, err, "number %d, token %d", id, token)
			return
		}
	}
}

var errUndecided = errors.New("rolled back")

// tx runs fn in a transaction that admits the token for the resources first.
func (w *thread) tx(ctx context.Context, token int64, fn func(*sql.Tx) error, resources ...string) error {
	tx, err := w.db.BeginTx(ctx, w.options())
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, r := range resources {
		if err := w.fences.Admit(ctx, tx, r, token); err != nil {
			return err
		}
		w.dawdle()
	}
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// inOne looks and writes in one transaction, which may admit its token for another resource, too.
func (w *thread) inOne(ctx context.Context, id int, token int64) error {
	w.alone.RLock()
	defer w.alone.RUnlock()
	resources := []string{w.own, resource(id)}
	return w.tx(ctx, token, func(tx *sql.Tx) error {
		value, err := w.look(ctx, tx, id)
		if err != nil {
			return err
		}
		w.dawdle()
		if err := w.write(ctx, tx, id, value+1, token); err != nil {
			return err
		}
		if w.rng.IntN(8) == 0 {
			return errUndecided
		}
		return nil
	}, resources[w.rng.IntN(2):]...)
}

// inTwo admits its token, looks, and writes in another transaction.
func (w *thread) inTwo(ctx context.Context, id int, token int64) error {
	w.alone.Lock()
	defer w.alone.Unlock()
	if err := w.tx(ctx, token, func(*sql.Tx) error { return nil }, resource(id)); err != nil {
		return err
	}
	value, err := w.look(ctx, w.db, id)
	if err != nil {
		return err
	}
	w.dawdle()
	return w.tx(ctx, token, func(tx *sql.Tx) error { return w.write(ctx, tx, id, value+1, token) }, resource(id))
}

// dawdle pauses for a random time, which often is none.
func (w *thread) dawdle() {
	if w.rng.IntN(2) == 0 {
		time.Sleep(time.Duration(w.rng.Int64N(int64(2 * time.Millisecond))))
	}
}

// judge compares the numbers with the writes, which have the number that each wrote: 1, 2, 3 and so on.
func (w *writer) judge(t *testing.T) (wrong []string) {
	type write struct{ id, value, token int }
	var writes []write
	rows, err := w.db.QueryContext(t.Context(), w.sql("SELECT id, value, token FROM writes"))
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var r write
		require.NoError(t, rows.Scan(&r.id, &r.value, &r.token))
		writes = append(writes, r)
	}
	require.NoError(t, rows.Err())
	slices.SortFunc(writes, func(a, b write) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.value, b.value), cmp.Compare(a.token, b.token))
	})
	last := write{id: -1}
	for _, r := range writes {
		if r.id != last.id {
			last = write{id: r.id}
		}
		if r.value != last.value+1 {
			wrong = append(wrong, fmt.Sprintf("number %d: token %d writes %d after %d: an update is lost", r.id, r.token,
				r.value, last.value))
		}
		if r.token < last.token {
			wrong = append(wrong, fmt.Sprintf("number %d: token %d writes after %d", r.id, r.token, last.token))
		}
		last = r
	}
	var sum int
	require.NoError(t, w.db.QueryRowContext(t.Context(), w.sql("SELECT SUM(value) FROM numbers")).Scan(&sum))
	if sum != len(writes) {
		wrong = append(wrong, fmt.Sprintf("the numbers are %d in all, after %d writes", sum, len(writes)))
	}
	if int64(len(writes)) != w.committed.Load() {
		wrong = append(wrong, fmt.Sprintf("%d writes, and %d committed transactions", len(writes), w.committed.Load()))
	}
	return wrong
}

// The tokens of committed writes never fall, and no update is lost, however holders are interleaved.
func TestCommittedTokensNeverFall(t *testing.T) {
	everywhere(t, func(t *testing.T, s *store) {
		w := newWriter(s, 0)
		interleavings.Play(t, 1, func(q *seeds.Sequence) {
			w.seed = q.Seed
			assert.Empty(q, w.run(q.T, *rounds))
		})
		assert.Greater(t, w.committed.Load(), int64(*rounds), "committed")
		assert.Greater(t, w.stale.Load(), int64(*rounds/10), "refused")
	})
}
