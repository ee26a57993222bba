package databases

// One rule of the package at a time.

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/fence"
)

// waits is how long a statement is given to show that it does not wait. A longer time finds more, and a shorter one
// never fails a test.
const waits = 30 * time.Millisecond

// add adds 1 to the number, as a holder does.
func (s *store) add(ctx context.Context, id int, token int64) error {
	return s.fences.Tx(ctx, s.db, s.options(), resource(id), token, func(tx *sql.Tx) error {
		value, err := s.look(ctx, tx, id)
		if err != nil {
			return err
		}
		return s.write(ctx, tx, id, value+1, token)
	})
}

func TestLowerTokenIsStaleAndTheSameOneIsNot(t *testing.T) {
	everywhere(t, func(t *testing.T, s *store) {
		s.exec(t, "INSERT INTO numbers VALUES (1, 0)")
		for _, token := range []int64{34, 34, 1 << 53, 1 << 53} {
			require.NoError(t, s.add(t.Context(), 1, token))
		}
		for _, token := range []int64{34, 1<<53 - 1} {
			err := s.add(t.Context(), 1, token)
			assert.ErrorIs(t, err, fence.ErrStale)
			assert.ErrorContains(t, err, `for "numbers:1", after 9007199254740992: a later holder`)
		}
		assert.Equal(t, 4, s.value(t, 1), "only what was admitted")

		tx := s.begin(t)
		for range 3 {
			assert.NoError(t, s.fences.Admit(t.Context(), tx, resource(1), 1<<53), "again in one transaction")
		}
		assert.ErrorIs(t, s.fences.Admit(t.Context(), tx, resource(1), 1), fence.ErrStale)
		require.NoError(t, tx.Rollback())

		tx = s.begin(t)
		assert.NoError(t, s.fences.Admit(t.Context(), tx, resource(2), 35))
		assert.ErrorIs(t, s.fences.Admit(t.Context(), tx, resource(2), 34), fence.ErrStale, "after itself")
	})
}

func TestTokenThatWasRolledBackWasNotAdmitted(t *testing.T) {
	everywhere(t, func(t *testing.T, s *store) {
		for _, first := range []bool{true, false} { // with and without a row before
			tx := s.begin(t)
			require.NoError(t, s.fences.Admit(t.Context(), tx, "r", 35))
			require.NoError(t, tx.Rollback())
			tx = s.begin(t)
			require.NoError(t, s.fences.Admit(t.Context(), tx, "r", 34), first)
			require.NoError(t, tx.Commit())
		}
	})
}

// A transaction waits for the one that has admitted a token before, also if that is refused, and then sees what it
// wrote.
func TestAdmitLocksTheRowUntilTheTransactionEnds(t *testing.T) {
	for name, test := range map[string]struct {
		before, first, second int64 // tokens
		commit                bool
	}{
		"the first token ever": {0, 34, 35, true},
		"a later token":        {33, 34, 35, true},
		"the same token":       {34, 34, 34, true},
		"a stale token":        {35, 34, 35, false},
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, s *store) {
				s.exec(t, "INSERT INTO numbers VALUES (1, 0)")
				want := 1
				if test.before > 0 {
					require.NoError(t, s.add(t.Context(), 1, test.before))
					want++
				}
				tx := s.begin(t)
				err := s.fences.Admit(t.Context(), tx, resource(1), test.first)
				if test.commit {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, fence.ErrStale)
				}
				var over atomic.Bool
				var second sync.WaitGroup
				second.Go(func() {
					err := s.fences.Tx(t.Context(), s.db, s.options(), resource(1), test.second, func(*sql.Tx) error {
						assert.True(t, over.Load(), "admitted before the other transaction has ended")
						return nil
					})
					if !asksForRepetition(err) {
						assert.NoError(t, err)
					}
					for err = s.add(t.Context(), 1, test.second); asksForRepetition(err); {
						err = s.add(t.Context(), 1, test.second)
					}
					assert.NoError(t, err)
				})
				time.Sleep(waits)
				if test.commit {
					value, err := s.look(t.Context(), tx, 1)
					require.NoError(t, err)
					require.NoError(t, s.write(t.Context(), tx, 1, value+1, test.first))
					want++
				}
				over.Store(true)
				if test.commit {
					require.NoError(t, tx.Commit())
				} else {
					require.NoError(t, tx.Rollback())
				}
				second.Wait()
				assert.Equal(t, want, s.value(t, 1))
			})
		})
	}
}

// A transaction that has read before Admit, and would read from an old snapshot after it, is refused where the snapshot
// stays the same. With READ COMMITTED, and with locks on what was read, the look after Admit finds the last value.
func TestOldSnapshotIsRefused(t *testing.T) {
	everywhere(t, func(t *testing.T, s *store) {
		if s.dialect == fence.MySQL && s.level == sql.LevelSerializable {
			t.Skip("what was read is locked: the other holder waits")
		}
		if s.name == "SQLite with a rollback journal" {
			t.Skip("what was read is locked: the other holder waits")
		}
		s.exec(t, "INSERT INTO numbers VALUES (1, 0), (2, 0)")
		for id, before := range map[int]bool{1: false, 2: true} { // whether there is a row in the table of tokens
			want := 1
			if before {
				require.NoError(t, s.add(t.Context(), id, 1))
				want++
			}
			tx := s.begin(t)
			_, err := s.look(t.Context(), tx, id)
			require.NoError(t, err)
			require.NoError(t, s.add(t.Context(), id, 2), "another holder")
			started := time.Now()
			err = s.fences.Admit(t.Context(), tx, resource(id), 3)
			fixed := s.dialect == fence.SQLite || s.level > sql.LevelReadCommitted
			if fixed {
				assert.Error(t, err)
				assert.NotErrorIs(t, err, fence.ErrStale)
				assert.True(t, asksForRepetition(err), "%v", err)
				assert.Less(t, time.Since(started), 10*time.Second, "it does not wait for the snapshot to become newer")
				assert.Equal(t, s.name == "MariaDB" || s.name == "MariaDB with other options", errors.Is(err, fence.ErrSnapshot))
			} else if assert.NoError(t, err) {
				value, err := s.look(t.Context(), tx, id)
				assert.NoError(t, err)
				assert.Equal(t, want, value, "what the other holder wrote")
			}
			require.NoError(t, tx.Rollback())
		}
	})
}

// With MySQL at REPEATABLE READ the first Admit fixes the snapshot, and a second one may have to wait: for another
// holder, or for another transaction of the same one.
func TestSecondAdmitThatWaitsIsRepeatedOrSeesTheLastWrite(t *testing.T) {
	for name, test := range map[string]struct{ before, first, second int64 }{ // tokens
		"the first token ever": {0, 1, 2},
		"a later token":        {1, 1, 2},
		"the same token":       {2, 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, s *store) {
				if s.dialect == fence.SQLite {
					t.Skip("the first Admit locks everything")
				}
				s.exec(t, "INSERT INTO numbers VALUES (1, 0), (2, 0)")
				want := 2
				if test.before > 0 {
					require.NoError(t, s.add(t.Context(), 2, test.before))
					want++
				}
				other := s.begin(t)
				require.NoError(t, s.fences.Admit(t.Context(), other, resource(2), test.first))
				value, err := s.look(t.Context(), other, 2)
				require.NoError(t, err)
				require.NoError(t, s.write(t.Context(), other, 2, value+1, test.first))

				both := func() error {
					tx, err := s.db.BeginTx(t.Context(), s.options())
					if err != nil {
						return err
					}
					defer tx.Rollback()
					for id := 1; id <= 2; id++ {
						if err := s.fences.Admit(t.Context(), tx, resource(id), test.second); err != nil {
							return err
						}
					}
					value, err := s.look(t.Context(), tx, 2)
					if err != nil {
						return err
					}
					if err := s.write(t.Context(), tx, 2, value+1, test.second); err != nil {
						return err
					}
					return tx.Commit()
				}
				var second sync.WaitGroup
				second.Go(func() {
					err := both()
					for asksForRepetition(err) {
						err = both()
					}
					assert.NoError(t, err)
				})
				time.Sleep(waits)
				require.NoError(t, other.Commit())
				second.Wait()
				assert.Equal(t, want, s.value(t, 2))
			})
		})
	}
}

// Two transactions that admit tokens of the same resources in different orders may deadlock. One of them is ended then,
// with an error that is not ErrStale.
func TestDeadlockIsNotStale(t *testing.T) {
	everywhere(t, func(t *testing.T, s *store) {
		if s.dialect == fence.SQLite {
			t.Skip("the first Admit locks everything")
		}
		var first, second sync.WaitGroup // both have admitted their first token; both have ended
		first.Add(2)
		var failed atomic.Int64
		for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
			second.Go(func() {
				tx, err := s.db.BeginTx(t.Context(), s.options())
				require.NoError(t, err)
				defer tx.Rollback()
				require.NoError(t, s.fences.Admit(t.Context(), tx, order[0], 1))
				first.Done()
				first.Wait()
				if err := s.fences.Admit(t.Context(), tx, order[1], 1); err != nil {
					failed.Add(1)
					assert.NotErrorIs(t, err, fence.ErrStale)
					assert.True(t, asksForRepetition(err), "%v", err)
					return
				}
				if err := tx.Commit(); err != nil {
					assert.True(t, asksForRepetition(err), "%v", err)
				}
			})
		}
		second.Wait()
		assert.Positive(t, failed.Load())
	})
}

// A lock wait that times out leaves MySQL's transaction alive, so it has to be rolled back.
func TestTimeoutOfALockWaitIsNotStale(t *testing.T) {
	s := databases[1].store(t, sql.LevelRepeatableRead)
	other := s.begin(t)
	require.NoError(t, s.fences.Admit(t.Context(), other, "r", 1))
	tx := s.begin(t)
	_, err := tx.ExecContext(t.Context(), "SET innodb_lock_wait_timeout = 1")
	require.NoError(t, err)
	err = s.fences.Admit(t.Context(), tx, "r", 2)
	require.Error(t, err)
	assert.NotErrorIs(t, err, fence.ErrStale)
	var my *mysql.MySQLError
	require.ErrorAs(t, err, &my)
	assert.Equal(t, uint16(1205), my.Number)
	assert.ErrorContains(t, err, "another transaction has the row of the resource")
}

// Each text is a resource of its own.
func TestResourcesAreComparedByteByByte(t *testing.T) {
	everywhere(t, func(t *testing.T, s *store) {
		for i, r := range []string{"a", "A", "a ", " a", "ä", "a\u0308", "Ä", "'", `"`, "`", `\`, "%", "😀", "a\n",
			strings.Repeat("r", fence.MaxResource), strings.Repeat("ä", fence.MaxResource/2)} {
			require.NoError(t, s.fences.Tx(t.Context(), s.db, nil, r, int64(100-i), func(*sql.Tx) error { return nil }), "%q", r)
			assert.ErrorIs(t, s.fences.Tx(t.Context(), s.db, nil, r, int64(99-i), func(*sql.Tx) error { return nil }),
				fence.ErrStale, "%q", r)
		}
	})
}
