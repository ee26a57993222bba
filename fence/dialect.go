package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// A dialect is what differs between the databases. {table} in its statements is the name of the table.
type dialect struct {
	schema  string
	missing *regexp.Regexp // the text of the error of a table that does not exist
	waited  *regexp.Regexp // the text of the error of a wait for the row that has taken too long

	// admit locks the row, and stores the token unless a higher one is stored. Then it returns ErrStale, and the higher
	// token if it knows that.
	admit func(ctx context.Context, t *Table, tx Execer, resource string, token int64) (higher int64, err error)
}

var dialects = map[Dialect]dialect{
	// COLLATE "C" compares bytes. An update of the operating system can change its collations, and corrupt an index
	// that uses one, which may then not find a row.
	Postgres: {
		schema: `CREATE TABLE IF NOT EXISTS {table} (
	resource text COLLATE "C" PRIMARY KEY,
	token    bigint NOT NULL
)`,
		missing: regexp.MustCompile(`42P01|relation .* does not exist`),
		waited:  regexp.MustCompile(`55P03|canceling statement due to lock timeout`),
		admit: upsert{
			`INSERT INTO {table} AS f (resource, token) VALUES ($1, $2)
ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token WHERE f.token <= EXCLUDED.token`,
			`SELECT token FROM {table} WHERE resource = $1`,
		}.admit,
	},
	// A text column would ignore trailing spaces, even with a binary collation. Every Admit increments admissions.
	MySQL: {
		schema: `CREATE TABLE IF NOT EXISTS {table} (
	resource   VARBINARY(255) NOT NULL PRIMARY KEY,
	token      BIGINT NOT NULL,
	admissions BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB`,
		missing: regexp.MustCompile(`Error 1146|42S02`),
		waited:  regexp.MustCompile(`Error 1205`),
		admit:   lockAndCompare,
	},
	SQLite: {
		schema: `CREATE TABLE IF NOT EXISTS {table} (
	resource TEXT    NOT NULL PRIMARY KEY,
	token    INTEGER NOT NULL
) WITHOUT ROWID`,
		missing: regexp.MustCompile(`no such table`),
		waited:  regexp.MustCompile(`database is locked|database table is locked`),
		admit: upsert{
			`INSERT INTO {table} AS f (resource, token) VALUES (?, ?)
ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE f.token <= excluded.token`,
			`SELECT token FROM {table} WHERE resource = ?`,
		}.admit,
	},
}

func (t *Table) query(text string) string {
	return strings.ReplaceAll(text, "{table}", t.name)
}

// An upsert compares and writes in one statement, which affects no row if the token is stale. PostgreSQL locks the row
// even then, and SQLite has locked the database.
type upsert struct{ write, read string }

func (u upsert) admit(ctx context.Context, t *Table, tx Execer, resource string, token int64) (int64, error) {
	result, err := tx.ExecContext(ctx, t.query(u.write), resource, token)
	if err != nil {
		return 0, err
	}
	affected, err := result.RowsAffected()
	if err != nil {
		return 0, err
	}
	if affected > 0 {
		return 0, nil
	}
	var stored sql.NullInt64
	if q, ok := tx.(queryer); ok {
		_ = queryRow(ctx, q, t.query(u.read), []any{resource}, &stored) // only for the text: it is stale in any case
	}
	return stored.Int64, ErrStale
}

// lockAndCompare is for MySQL and MariaDB, where the number of affected rows depends on the options of the connection.
// So the first statement only locks the row, and adds it if there is none.
//
// The second one reads the row twice: FOR UPDATE reads what was committed last, and the subquery reads the snapshot, as
// every SELECT of this transaction will. If the transaction that admitted a token last is not in the snapshot, they
// differ in the number of admissions, also if the token is the same. If the row was deleted since, and the number began
// again, they differ in the token. If there is no snapshot yet, the subquery takes one, which cannot be too old. After the UPDATE
// they would not differ: a transaction sees its own changes.
func lockAndCompare(ctx context.Context, t *Table, tx Execer, resource string, token int64) (int64, error) {
	q, ok := tx.(queryer)
	if !ok {
		return 0, fmt.Errorf("a %T has no method QueryContext, which MySQL needs", tx)
	}
	_, err := tx.ExecContext(ctx, t.query(
		`INSERT INTO {table} (resource, token) VALUES (?, ?) ON DUPLICATE KEY UPDATE token = token`), resource, token)
	if err != nil {
		return 0, err
	}
	var stored int64
	var same sql.NullBool // NULL if the row is not in the snapshot
	err = queryRow(ctx, q, t.query(`SELECT f.token,
(SELECT s.admissions = f.admissions AND s.token = f.token FROM {table} s WHERE s.resource = ?)
FROM {table} f WHERE f.resource = ? FOR UPDATE`), []any{resource, resource}, &stored, &same)
	switch {
	case err != nil:
		return 0, err
	case stored > token:
		return stored, ErrStale
	case !same.Bool:
		return 0, ErrSnapshot
	}
	_, err = tx.ExecContext(ctx, t.query(
		`UPDATE {table} SET token = ?, admissions = admissions + 1 WHERE resource = ?`), token, resource)
	return 0, err
}

// queryRow reads the only row.
func queryRow(ctx context.Context, q queryer, query string, args []any, into ...any) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	if !rows.Next() {
		if err := rows.Err(); err != nil {
			return err
		}
		return errors.New("the row of the resource was not found")
	}
	if err := rows.Scan(into...); err != nil {
		return err
	}
	if err := rows.Close(); err != nil {
		return err
	}
	return rows.Err()
}
