package databases

// The recipes of docs/fencing.md that need a database.

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/fence"
)

// A pgxTx is a transaction of pgx for Admit.
type pgxTx struct{ pgx.Tx }

func (t pgxTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tag, err := t.Exec(ctx, query, args...)
	return driver.RowsAffected(tag.RowsAffected()), err
}

func TestTransactionOfPgxIsAdmitted(t *testing.T) {
	s := databases[0].store(t, sql.LevelDefault)
	conn, err := pgx.Connect(t.Context(), postgres.at(t))
	require.NoError(t, err)
	defer conn.Close(t.Context())
	begin := func() pgx.Tx {
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		return tx
	}
	tx := begin()
	require.NoError(t, s.fences.Admit(t.Context(), pgxTx{tx}, "r", 35))
	require.NoError(t, tx.Commit(t.Context()))
	tx = begin()
	err = s.fences.Admit(t.Context(), pgxTx{tx}, "r", 34)
	assert.ErrorIs(t, err, fence.ErrStale)
	assert.ErrorContains(t, err, "after a higher one")
	require.NoError(t, tx.Rollback(t.Context()))

	s.exec(t, "DROP TABLE fences")
	tx = begin()
	defer tx.Rollback(t.Context())
	assert.ErrorContains(t, s.fences.Admit(t.Context(), pgxTx{tx}, "r", 36), "call Create")
}

// The row of a resource is deleted in the transaction that deletes what it protects. A holder that wakes up later, by a
// year say, is admitted, and finds nothing that it could change.
func TestRowsAreDeletedWithWhatTheyProtect(t *testing.T) {
	everywhere(t, func(t *testing.T, s *store) {
		s.exec(t, "INSERT INTO numbers VALUES (1, 0), (2, 0)")
		require.NoError(t, s.add(t.Context(), 1, 1))
		require.NoError(t, s.fences.Tx(t.Context(), s.db, s.options(), resource(1), 2, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(t.Context(), s.sql("DELETE FROM numbers WHERE id = ?"), 1); err != nil {
				return err
			}
			_, err := tx.ExecContext(t.Context(), s.sql("DELETE FROM fences WHERE resource = ?"), resource(1))
			return err
		}))
		s.isEmpty(t)
		assert.ErrorIs(t, s.add(t.Context(), 1, 1), sql.ErrNoRows)
		s.isEmpty(t)
		err := s.fences.Tx(t.Context(), s.db, s.options(), resource(1), 1, func(tx *sql.Tx) error {
			result, err := tx.ExecContext(t.Context(), s.sql("UPDATE numbers SET value = 100 WHERE id = ?"), 1)
			require.NoError(t, err)
			changed, err := result.RowsAffected()
			assert.Zero(t, changed)
			return err
		})
		assert.NoError(t, err)
	})
}

// An operator does this when tokens have become lower, and no holder of an earlier token runs any more.
func TestOperatorCanResetAToken(t *testing.T) {
	each(t, func(t *testing.T, s *store) {
		s.exec(t, "INSERT INTO numbers VALUES (1, 0)")
		require.NoError(t, s.add(t.Context(), 1, 1<<50))
		require.ErrorIs(t, s.add(t.Context(), 1, 35), fence.ErrStale)
		s.exec(t, "UPDATE fences SET token = 0 WHERE resource = ?", resource(1))
		assert.NoError(t, s.add(t.Context(), 1, 35))
		assert.ErrorIs(t, s.add(t.Context(), 1, 34), fence.ErrStale)
	})
}
