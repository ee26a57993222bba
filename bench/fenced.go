package main

// The number of the clients of lost.go, in an SQL database with a fence.Table.
//
// Rules: a look admits its token in a transaction of its own, and so does a write. The row has the token of its last
// write, too: one that is lower than that would be an error of the measurement.

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	_ "modernc.org/sqlite"             // the driver sqlite

	"github.com/relock-go/relock/fence"
	"github.com/relock-go/relock/internal/testsql"
)

// A fencedRow is a row of a table, and the table of tokens beside it.
type fencedRow struct {
	db     *sql.DB
	fences *fence.Table
}

func onPostgres(ctx context.Context) (storage, func(), error) {
	dsn, stop, err := testsql.StartPostgres(ctx)
	if err != nil {
		return nil, nil, err
	}
	return openRow(ctx, "pgx", dsn, fence.Postgres, stop)
}

func onSQLite(ctx context.Context) (storage, func(), error) {
	dir, err := os.MkdirTemp("", "relock-bench")
	if err != nil {
		return nil, nil, err
	}
	dsn := "file:" + filepath.Join(dir, "db") + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)"
	return openRow(ctx, "sqlite", dsn, fence.SQLite, func() { _ = os.RemoveAll(dir) })
}

func openRow(ctx context.Context, driver, dsn string, d fence.Dialect, stop func()) (storage, func(), error) {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		stop()
		return nil, nil, err
	}
	end := func() { _ = db.Close(); stop() }
	s := fencedRow{db, fence.NewTable("fences", d)}
	err = s.fences.Create(ctx, db)
	for _, statement := range []string{
		`CREATE TABLE number (value BIGINT NOT NULL, token BIGINT NOT NULL)`, `INSERT INTO number VALUES (0, 0)`,
	} {
		if err == nil {
			_, err = db.ExecContext(ctx, statement)
		}
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return s, end, nil
}

// tx runs fn in a transaction that has admitted the token.
func (s fencedRow) tx(ctx context.Context, token int64, fn func(*sql.Tx) error) error {
	err := s.fences.Tx(ctx, s.db, nil, "number", token, fn)
	if errors.Is(err, fence.ErrStale) {
		return errRefused
	}
	return err
}

func (s fencedRow) look(ctx context.Context, token int64) (value int, err error) {
	err = s.tx(ctx, token, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, `SELECT value FROM number`).Scan(&value)
	})
	return value, err
}

func (s fencedRow) write(ctx context.Context, value int, token int64) error {
	return s.tx(ctx, token, func(tx *sql.Tx) error {
		// Both databases understand $1.
		result, err := tx.ExecContext(ctx, `UPDATE number SET value = $1, token = $2 WHERE token <= $2`, value, token)
		if err != nil {
			return err
		}
		if changed, err := result.RowsAffected(); err != nil || changed != 1 {
			return fmt.Errorf("token %d was admitted after a higher one had written: %v", token, err)
		}
		return nil
	})
}

func (s fencedRow) value(ctx context.Context) (value int, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT value FROM number`).Scan(&value)
	return value, err
}
