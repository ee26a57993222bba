package databases

// What is wrong is an error of the database with a text of this package, and changes nothing.

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/fence"
)

// each runs a test with each database at its first level.
func each(t *testing.T, test func(t *testing.T, s *store)) {
	for _, d := range databases {
		t.Run(d.name, func(t *testing.T) { test(t, d.store(t, d.levels[0])) })
	}
}

func TestMissingTableNamesTheWaysToCreateIt(t *testing.T) {
	each(t, func(t *testing.T, s *store) {
		s.exec(t, "INSERT INTO numbers VALUES (1, 0)")
		s.exec(t, "DROP TABLE fences")
		err := s.add(t.Context(), 1, 1)
		assert.ErrorContains(t, err, "is missing: run the statement of Schema() in a migration, or call Create: ")
		assert.Equal(t, 0, s.value(t, 1))
		_, err = s.db.ExecContext(t.Context(), s.fences.Schema())
		require.NoError(t, err)
		assert.NoError(t, s.add(t.Context(), 1, 1))
	})
}

// Replicas of a service start at the same time, and each calls Create.
func TestTableIsCreatedOnce(t *testing.T) {
	each(t, func(t *testing.T, s *store) {
		for i := range 5 {
			table := fence.NewTable(fmt.Sprint("created", s.suffix, "_", i), s.dialect)
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() { assert.NoError(t, table.Create(t.Context(), s.db)) })
			}
			all.Wait()
			require.NoError(t, table.Tx(t.Context(), s.db, nil, "r", 1, func(*sql.Tx) error { return nil }))
			require.NoError(t, table.Create(t.Context(), s.db))
			assert.ErrorIs(t, table.Tx(t.Context(), s.db, nil, "r", 0+1, func(*sql.Tx) error { return sql.ErrNoRows }),
				sql.ErrNoRows, "it was kept")
		}
	})
}

func TestReadOnlyTransactionAdmitsNothing(t *testing.T) {
	for _, d := range databases[:2] {
		s := d.store(t, sql.LevelDefault)
		err := s.fences.Tx(t.Context(), s.db, &sql.TxOptions{ReadOnly: true}, "r", 1, func(*sql.Tx) error {
			assert.Fail(t, "it was admitted")
			return nil
		})
		assert.ErrorContains(t, err, "25006")
		assert.NotErrorIs(t, err, fence.ErrStale)
		s.isEmpty(t)
	}
}

// The context of a hold is canceled when the lock is lost.
func TestCanceledContextCommitsNothing(t *testing.T) {
	each(t, func(t *testing.T, s *store) {
		s.exec(t, "INSERT INTO numbers VALUES (1, 0)")
		ctx, cancel := context.WithCancel(t.Context())
		err := s.fences.Tx(ctx, s.db, nil, resource(1), 1, func(tx *sql.Tx) error {
			require.NoError(t, s.write(ctx, tx, 1, 1, 1))
			cancel()
			return s.fences.Admit(ctx, tx, resource(1), 1)
		})
		assert.Error(t, err)
		assert.ErrorIs(t, s.add(ctx, 1, 1), context.Canceled)
		assert.Equal(t, 0, s.value(t, 1))
		s.isEmpty(t)
		assert.NoError(t, s.add(t.Context(), 1, 1), "nothing is left locked")
	})
}

// isEmpty checks that no token was admitted.
func (s *store) isEmpty(t *testing.T) {
	t.Helper()
	var n int
	require.NoError(t, s.db.QueryRowContext(t.Context(), s.sql("SELECT COUNT(*) FROM fences")).Scan(&n))
	assert.Zero(t, n, "tokens")
}
