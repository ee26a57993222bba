package databases

// The databases: servers that run as long as the tests, and files of SQLite. Each test has tables of its own.

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

	"github.com/relock-go/relock/fence"
	"github.com/relock-go/relock/internal/testsql"
)

func TestMain(m *testing.M) {
	code := m.Run()
	for _, s := range []*server{postgres, mariadb} {
		if s.stop != nil {
			s.stop()
		}
	}
	os.Exit(code)
}

// A server is started when a test needs it.
type server struct {
	start func(context.Context, ...string) (string, func(), error)
	with  []string

	once sync.Once
	dsn  string
	stop func()
	err  error
}

var (
	postgres = &server{start: testsql.StartPostgres, with: []string{"max_connections=200", "deadlock_timeout=100ms"}}
	mariadb  = &server{start: testsql.StartMariaDB}
)

// at returns where to connect.
func (s *server) at(t testing.TB) string {
	s.once.Do(func() { s.dsn, s.stop, s.err = s.start(context.Background(), s.with...) })
	if errors.Is(s.err, testsql.ErrNotInstalled) && os.Getenv("CI") == "" {
		t.Skip(s.err)
	}
	require.NoError(t, s.err)
	return s.dsn
}

// A database is one way to use one of the servers.
type database struct {
	name    string
	dialect fence.Dialect
	open    func(t testing.TB) (driver, dsn string)
	levels  []sql.IsolationLevel
}

var allLevels = []sql.IsolationLevel{
	sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable,
}

var databases = []database{
	{"PostgreSQL", fence.Postgres, func(t testing.TB) (string, string) { return "pgx", postgres.at(t) }, allLevels},
	{"MariaDB", fence.MySQL, openMariaDB(""), allLevels},
	// The default of MariaDB from 11.6 on.
	{"MariaDB with snapshot isolation", fence.MariaDB, openMariaDB("&innodb_snapshot_isolation=ON"),
		[]sql.IsolationLevel{sql.LevelRepeatableRead}},
	// Both change what the driver sends, and what it reports.
	{"MariaDB with other options", fence.MySQL, openMariaDB("&clientFoundRows=true&interpolateParams=true"),
		[]sql.IsolationLevel{sql.LevelRepeatableRead}},
	{"SQLite", fence.SQLite, openSQLite("&_pragma=journal_mode(WAL)"), []sql.IsolationLevel{sql.LevelDefault}},
	{"SQLite with a rollback journal", fence.SQLite, openSQLite(""), []sql.IsolationLevel{sql.LevelDefault}},
}

func openMariaDB(options string) func(t testing.TB) (string, string) {
	return func(t testing.TB) (string, string) {
		return "mysql", mariadb.at(t) + "?innodb_lock_wait_timeout=20" + options
	}
}

func openSQLite(options string) func(t testing.TB) (string, string) {
	return func(t testing.TB) (string, string) {
		const settings = "?_pragma=busy_timeout(20000)&_pragma=synchronous(OFF)"
		return "sqlite", "file:" + filepath.Join(t.TempDir(), "db") + settings + options
	}
}

// everywhere runs a test with each database, at each of its levels.
func everywhere(t *testing.T, test func(t *testing.T, s *store)) {
	for _, d := range databases {
		for _, level := range d.levels {
			t.Run(d.name+" "+level.String(), func(t *testing.T) { test(t, d.store(t, level)) })
		}
	}
}

// A store has tables of its own: fences, and numbers that holders add 1 to, with a record of each write.
type store struct {
	database
	db     *sql.DB
	level  sql.IsolationLevel
	fences *fence.Table
	suffix string // of the names of the tables
}

var stores atomic.Int64

func (d database) store(t testing.TB, level sql.IsolationLevel) *store {
	driver, dsn := d.open(t)
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	s := &store{database: d, db: db, level: level, suffix: fmt.Sprint("_", stores.Add(1))}
	s.fences = fence.NewTable("fences"+s.suffix, d.dialect)
	require.NoError(t, s.fences.Create(t.Context(), db))
	engine := ""
	if d.dialect == fence.MySQL {
		engine = " ENGINE = InnoDB"
	}
	s.exec(t, "CREATE TABLE numbers (id INTEGER PRIMARY KEY, value BIGINT NOT NULL)"+engine)
	s.exec(t, "CREATE TABLE writes (id INTEGER NOT NULL, value BIGINT NOT NULL, token BIGINT NOT NULL)"+engine)
	return s
}

// sql returns a statement with the names of the tables of this store, and with the placeholders of its database.
func (s *store) sql(query string) string {
	for _, table := range []string{"fences", "numbers", "writes"} {
		query = strings.ReplaceAll(query, table, table+s.suffix)
	}
	if s.dialect == fence.Postgres {
		for i := 1; strings.Contains(query, "?"); i++ {
			query = strings.Replace(query, "?", fmt.Sprint("$", i), 1)
		}
	}
	return query
}

func (s *store) exec(t testing.TB, query string, args ...any) {
	t.Helper()
	_, err := s.db.ExecContext(t.Context(), s.sql(query), args...)
	require.NoError(t, err)
}

func (s *store) options() *sql.TxOptions { return &sql.TxOptions{Isolation: s.level} }

// begin begins a transaction, which the end of the test rolls back.
func (s *store) begin(t *testing.T) *sql.Tx {
	tx, err := s.db.BeginTx(t.Context(), s.options())
	require.NoError(t, err)
	t.Cleanup(func() { tx.Rollback() })
	return tx
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// look returns the number of this ID.
func (s *store) look(ctx context.Context, q querier, id int) (value int, err error) {
	err = q.QueryRowContext(ctx, s.sql("SELECT value FROM numbers WHERE id = ?"), id).Scan(&value)
	return value, err
}

// write writes the number, as a holder does that has looked before.
func (s *store) write(ctx context.Context, tx *sql.Tx, id, value int, token int64) error {
	if _, err := tx.ExecContext(ctx, s.sql("UPDATE numbers SET value = ? WHERE id = ?"), value, id); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, s.sql("INSERT INTO writes VALUES (?, ?, ?)"), id, value, token)
	return err
}

// value returns the number as it was committed.
func (s *store) value(t *testing.T, id int) int {
	t.Helper()
	value, err := s.look(t.Context(), s.db, id)
	require.NoError(t, err)
	return value
}

// asksForRepetition reports whether the database expects the transaction to be repeated after this error.
func asksForRepetition(err error) bool {
	var pg *pgconn.PgError
	var my *mysql.MySQLError
	var lite *sqlite.Error
	switch {
	case errors.As(err, &pg):
		return pg.Code == "40001" || pg.Code == "40P01" // a serialization failure, a deadlock
	case errors.As(err, &my):
		return my.Number == 1213 || my.Number == 1205 || my.Number == 1020 // a deadlock, a timeout, an old snapshot
	case errors.As(err, &lite):
		return lite.Code()&0xff == 5 // busy
	}
	return errors.Is(err, fence.ErrSnapshot)
}

func resource(id int) string { return fmt.Sprint("numbers:", id) }
