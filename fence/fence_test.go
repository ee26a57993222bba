package fence

// What the package does without a database: arguments, texts, and the order of statements. The module databases/ tests
// it with real servers.

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A fake is a driver with one connection, which answers as the test says and notes what it is asked.
type fake struct {
	affected int64          // by each ExecContext
	row      []driver.Value // that each QueryContext returns; nil: none
	fails    map[string]error

	mu  sync.Mutex // guards log
	log []string
}

// note adds to the log, and returns the error of the first key of fails that the text begins with.
func (f *fake) note(text string) error {
	text = strings.Join(strings.Fields(text), " ")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, text)
	for begin, err := range f.fails {
		if strings.HasPrefix(text, begin) {
			return err
		}
	}
	return nil
}

// said returns the first words of what was logged.
func (f *fake) said() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var words []string
	for _, text := range f.log {
		word, _, _ := strings.Cut(text, " ")
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func (f *fake) Connect(context.Context) (driver.Conn, error) { return f, nil }
func (f *fake) Driver() driver.Driver                        { return nil }
func (f *fake) Prepare(string) (driver.Stmt, error)          { return nil, errors.New("not prepared") }
func (f *fake) Close() error                                 { return nil }
func (f *fake) Begin() (driver.Tx, error)                    { return f, f.note("BEGIN") }
func (f *fake) Commit() error                                { return f.note("COMMIT") }
func (f *fake) Rollback() error                              { return f.note("ROLLBACK") }

func (f *fake) ExecContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	if err := f.note(query); err != nil {
		return nil, err
	}
	if f.affected < 0 {
		return driver.ResultNoRows, nil
	}
	return driver.RowsAffected(f.affected), nil
}

func (f *fake) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	if err := f.note(query); err != nil {
		return nil, err
	}
	return &rows{f.row}, nil
}

type rows struct{ row []driver.Value }

func (r *rows) Columns() []string { return make([]string, max(1, len(r.row))) }
func (r *rows) Close() error      { return nil }
func (r *rows) Next(into []driver.Value) error {
	if r.row == nil {
		return io.EOF
	}
	copy(into, r.row)
	r.row = nil
	return nil
}

func open(t *testing.T, f *fake) *sql.DB {
	db := sql.OpenDB(f)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	return db
}

func begin(t *testing.T, f *fake) *sql.Tx {
	tx, err := open(t, f).BeginTx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func TestNameOfATableCanInjectNothing(t *testing.T) {
	for _, name := range []string{"relock_fences", "locks.fences", "_f", "F2", strings.Repeat("a", 63)} {
		assert.NotPanics(t, func() { NewTable(name, Postgres) }, name)
	}
	for _, name := range []string{"", "a b", "a;b", `a"b`, "a`b", "a.b.c", ".a", "a.", "1a", "a-b", "ä", "a\n",
		strings.Repeat("a", 64)} {
		assert.Panics(t, func() { NewTable(name, Postgres) }, name)
	}
	assert.Panics(t, func() { NewTable("fences", 0) })
	assert.Panics(t, func() { NewTable("fences", SQLite+1) })
}

func TestSchemaCreatesTheTable(t *testing.T) {
	for _, d := range []Dialect{Postgres, MySQL, SQLite} {
		f := &fake{}
		table := NewTable("locks.fences", d)
		require.NoError(t, table.Create(t.Context(), open(t, f)))
		assert.Equal(t, []string{strings.Join(strings.Fields(table.Schema()), " ")}, f.log)
		assert.True(t, strings.HasPrefix(table.Schema(), "CREATE TABLE IF NOT EXISTS locks.fences ("), table.Schema())
	}
	broken := errors.New("no permission")
	f := &fake{fails: map[string]error{"CREATE": broken}}
	err := NewTable("fences", MariaDB).Create(t.Context(), open(t, f))
	require.ErrorIs(t, err, broken)
	assert.EqualError(t, err, "fence: create table fences: no permission")
	assert.Equal(t, "CREATE CREATE", f.said(), "another process may have created it")
}

func TestBadInputIsRefusedBeforeAnythingIsSent(t *testing.T) {
	const ok = "orders:42"
	for _, test := range []struct {
		resource string
		token    int64
		text     string
	}{
		{ok, 0, `the token for "orders:42" is 0, and tokens are greater than 0`},
		{ok, -1, `the token for "orders:42" is -1`},
		{"", 1, "the name of the resource is empty"},
		{strings.Repeat("ä", 128), 1, "has 256 bytes, and the maximum is 255"},
		{"a\xff", 1, "is not UTF-8 text"},
		{"a\x00", 1, "without zero bytes"},
	} {
		for _, d := range []Dialect{Postgres, MySQL, SQLite} {
			f := &fake{affected: 1}
			table := NewTable("fences", d)
			err := table.Tx(t.Context(), open(t, f), nil, test.resource, test.token, func(*sql.Tx) error {
				assert.Fail(t, "fn was called", test.text)
				return nil
			})
			assert.ErrorContains(t, err, test.text)
			assert.Empty(t, f.log)
			tx := begin(t, f)
			assert.Equal(t, err, table.Admit(t.Context(), tx, test.resource, test.token))
			assert.Equal(t, "BEGIN", f.said())
		}
	}
	f := &fake{affected: 1}
	assert.NoError(t, NewTable("fences", SQLite).Admit(t.Context(), begin(t, f), strings.Repeat("a", MaxResource), 1<<62))
}

// A beginner is what a package that is built on database/sql may have: the type of its transactions is its own.
type beginner struct{ Execer }

func (beginner) BeginTx(context.Context) (nothing struct{}, err error) { return }

// A nested is a transaction that can begin another one.
type nested struct{ beginner }

func (nested) Commit(context.Context) error { return nil }

func TestAdmitRefusesWhatIsNotATransaction(t *testing.T) {
	f := &fake{affected: 1}
	db := open(t, f)
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	tx, err := conn.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback()
	table := NewTable("fences", Postgres)
	for _, no := range []Execer{db, conn, struct{ *sql.DB }{db}, &struct{ *sql.Conn }{conn}, beginner{tx}} {
		err := table.Admit(t.Context(), no, "orders:42", 1)
		assert.ErrorContains(t, err, "is not a transaction, so the lock on the row would be released at once: call Tx", no)
	}
	assert.ErrorContains(t, table.Admit(t.Context(), db, "orders:42", 1), "a *sql.DB is not")
	assert.ErrorContains(t, table.Admit(t.Context(), nil, "orders:42", 1), "the transaction is nil")
	assert.ErrorContains(t, table.Admit(t.Context(), (*sql.Tx)(nil), "orders:42", 1), "the transaction is nil")
	assert.Equal(t, "BEGIN", f.said())
	for _, yes := range []Execer{tx, struct{ *sql.Tx }{tx}, nested{beginner{tx}}, struct{ Execer }{conn}} {
		assert.NoError(t, table.Admit(t.Context(), yes, "orders:42", 1))
	}
}

func TestStaleTokenIsExplained(t *testing.T) {
	for _, test := range []struct {
		name  string
		f     *fake
		short bool // the transaction has no QueryContext
		want  string
	}{
		{"with both tokens", &fake{row: []driver.Value{int64(35)}}, false, "after 35"},
		{"without QueryContext", &fake{row: []driver.Value{int64(35)}}, true, "after a higher one"},
		{"the row is gone", &fake{}, false, "after a higher one"},
		{"the row cannot be read", &fake{fails: map[string]error{"SELECT": io.EOF}}, false, "after a higher one"},
	} {
		for _, d := range []Dialect{Postgres, SQLite} {
			var tx Execer = begin(t, test.f)
			if test.short {
				tx = struct{ Execer }{tx}
			}
			err := NewTable("fences", d).Admit(t.Context(), tx, "orders:42", 34)
			assert.ErrorIs(t, err, ErrStale, test.name)
			assert.EqualError(t, err, `fence: stale token: 34 for "orders:42", `+test.want+
				": a later holder was admitted since; roll back and acquire the lock again", test.name)
		}
	}
}

// What a driver cannot count is not admitted.
func TestUnknownNumberOfRowsIsAnError(t *testing.T) {
	err := NewTable("fences", Postgres).Admit(t.Context(), begin(t, &fake{affected: -1}), "orders:42", 34)
	require.Error(t, err)
	assert.NotErrorIs(t, err, ErrStale)
}

func TestMySQLComparesUnderTheLockOnTheRow(t *testing.T) {
	const ask, write = "BEGIN INSERT SELECT", " UPDATE"
	for _, test := range []struct {
		name   string
		stored int64
		same   driver.Value // whether the snapshot has the row as it was committed last
		want   error
		said   string
	}{
		{"a higher token", 33, int64(1), nil, ask + write},
		{"the same token, or a row that was added", 34, int64(1), nil, ask + write},
		{"a lower token", 35, int64(1), ErrStale, ask},
		{"a lower token, and an old snapshot", 35, int64(0), ErrStale, ask},
		{"an old snapshot", 33, int64(0), ErrSnapshot, ask},
		{"an old snapshot, and the same token", 34, int64(0), ErrSnapshot, ask},
		{"an old snapshot, before the first token", 33, nil, ErrSnapshot, ask},
	} {
		f := &fake{affected: 0, row: []driver.Value{test.stored, test.same}} // whatever it affects
		err := NewTable("fences", MySQL).Admit(t.Context(), begin(t, f), "orders:42", 34)
		assert.ErrorIs(t, err, test.want, test.name)
		assert.Equal(t, test.said, f.said(), test.name)
		assert.True(t, strings.HasSuffix(f.log[2], " FOR UPDATE"), f.log[2])
	}
	for name, f := range map[string]*fake{
		"no row": {}, "no answer": {fails: map[string]error{"SELECT": io.ErrUnexpectedEOF}},
		"no lock":  {fails: map[string]error{"INSERT": io.ErrUnexpectedEOF}},
		"no write": {row: []driver.Value{int64(1), int64(1)}, fails: map[string]error{"UPDATE": io.ErrUnexpectedEOF}},
	} {
		err := NewTable("fences", MySQL).Admit(t.Context(), begin(t, f), "orders:42", 34)
		assert.ErrorContains(t, err, `fence: admit token 34 for "orders:42": `, name)
		assert.NotErrorIs(t, err, ErrStale, name)
	}
	f := &fake{}
	err := NewTable("fences", MySQL).Admit(t.Context(), struct{ Execer }{begin(t, f)}, "orders:42", 34)
	assert.ErrorContains(t, err, "has no method QueryContext, which MySQL needs")
	assert.Equal(t, "BEGIN", f.said())
}

func TestOldSnapshotIsExplained(t *testing.T) {
	f := &fake{row: []driver.Value{int64(33), int64(0)}}
	err := NewTable("fences", MySQL).Admit(t.Context(), begin(t, f), "orders:42", 34)
	assert.EqualError(t, err, "fence: the transaction reads from an old snapshot: a token was admitted for "+
		`"orders:42" after the transaction had begun to read: roll back and repeat it, and call Admit before the first `+
		"SELECT")
	assert.NotErrorIs(t, err, ErrStale)
}

// A translated is an error of a PostgreSQL that does not speak English.
type translated struct{}

func (translated) Error() string    { return "Relation »fences« existiert nicht" }
func (translated) SQLState() string { return "42P01" }

func TestMissingTableIsExplained(t *testing.T) {
	for _, test := range []struct {
		d   Dialect
		err error
	}{
		{Postgres, errors.New(`pq: relation "fences" does not exist`)},
		{Postgres, translated{}},
		{MySQL, errors.New("Error 1146 (42S02): Table 'shop.fences' doesn't exist")},
		{SQLite, errors.New("SQL logic error: no such table: fences (1)")},
	} {
		f := &fake{fails: map[string]error{"INSERT": test.err}}
		err := NewTable("fences", test.d).Admit(t.Context(), begin(t, f), "orders:42", 34)
		assert.ErrorIs(t, err, test.err)
		assert.EqualError(t, err, `fence: admit token 34 for "orders:42": the table fences is missing: run the statement of `+
			"Schema() in a migration, or call Create: "+test.err.Error())
	}
}

func TestTxCommitsOnlyWhatSucceeded(t *testing.T) {
	broken := errors.New("broken")
	stale := &fake{row: []driver.Value{int64(35)}}
	for _, test := range []struct {
		name string
		f    *fake
		fn   func(*sql.Tx) error
		want error
		text string
		said string
	}{
		{name: "all is well", f: &fake{affected: 1}, said: "BEGIN INSERT UPDATE COMMIT"},
		{name: "it cannot begin", f: &fake{fails: map[string]error{"BEGIN": broken}}, want: broken,
			text: `fence: begin a transaction for "orders:42": broken`, said: "BEGIN"},
		{name: "stale", f: stale, want: ErrStale, said: "BEGIN INSERT SELECT ROLLBACK"},
		{name: "not admitted", f: &fake{fails: map[string]error{"INSERT": broken}}, want: broken,
			text: `fence: admit token 34 for "orders:42": broken`, said: "BEGIN INSERT ROLLBACK"},
		{name: "fn fails", f: &fake{affected: 1}, fn: func(*sql.Tx) error { return broken }, want: broken,
			text: "broken", said: "BEGIN INSERT ROLLBACK"},
		{name: "the commit fails", f: &fake{affected: 1, fails: map[string]error{"COMMIT": broken}}, want: broken,
			text: `fence: commit the transaction for "orders:42": broken`, said: "BEGIN INSERT UPDATE COMMIT"},
	} {
		fn := test.fn
		if fn == nil {
			fn = func(tx *sql.Tx) error {
				_, err := tx.ExecContext(t.Context(), "UPDATE orders")
				return err
			}
		}
		err := NewTable("fences", Postgres).Tx(t.Context(), open(t, test.f), nil, "orders:42", 34, fn)
		assert.ErrorIs(t, err, test.want, test.name)
		if test.text != "" {
			assert.EqualError(t, err, test.text, test.name)
		}
		assert.Equal(t, test.said, test.f.said(), test.name)
	}
}

func TestTxRollsBackAfterAPanic(t *testing.T) {
	f := &fake{affected: 1}
	assert.PanicsWithValue(t, "oh", func() {
		_ = NewTable("fences", Postgres).Tx(t.Context(), open(t, f), nil, "orders:42", 34, func(*sql.Tx) error {
			panic("oh")
		})
	})
	assert.Equal(t, "BEGIN INSERT ROLLBACK", f.said())
}

func TestTxThatIsCanceledCommitsNothing(t *testing.T) {
	f := &fake{affected: 1}
	ctx, cancel := context.WithCancel(t.Context())
	err := NewTable("fences", Postgres).Tx(ctx, open(t, f), nil, "orders:42", 34, func(*sql.Tx) error {
		cancel()
		return nil
	})
	assert.ErrorIs(t, err, context.Canceled)
	assert.EqualError(t, err, `fence: the transaction for "orders:42" was rolled back before its commit, because its `+
		"context is done: context canceled")
	assert.NotContains(t, f.said(), "COMMIT")

	lost := errors.New("the lock was lost")
	because, lose := context.WithCancelCause(t.Context())
	err = NewTable("fences", Postgres).Tx(because, open(t, f), nil, "orders:42", 34, func(*sql.Tx) error {
		lose(lost)
		return nil
	})
	assert.ErrorIs(t, err, lost)
	assert.NotErrorIs(t, err, context.Canceled, "a loss does not look like a cancellation")
}

// The function must not end the transaction: whether what it has done was written cannot be known then.
func TestTransactionThatTheFunctionHasEndedIsAnError(t *testing.T) {
	for _, end := range []func(*sql.Tx) error{(*sql.Tx).Commit, (*sql.Tx).Rollback} {
		f := &fake{affected: 1}
		err := NewTable("fences", Postgres).Tx(t.Context(), open(t, f), nil, "orders:42", 34, end)
		assert.ErrorIs(t, err, sql.ErrTxDone)
		assert.ErrorContains(t, err, "the function must not call Commit or Rollback")
	}
}

func TestWaitForTheRowIsExplained(t *testing.T) {
	for d, text := range map[Dialect]string{
		Postgres: "ERROR: canceling statement due to lock timeout (SQLSTATE 55P03)",
		MySQL:    "Error 1205 (HY000): Lock wait timeout exceeded; try restarting transaction",
		SQLite:   "database is locked (5) (SQLITE_BUSY)",
	} {
		broken := errors.New(text)
		f := &fake{fails: map[string]error{"INSERT": broken}}
		err := NewTable("fences", d).Tx(t.Context(), open(t, f), nil, "orders:42", 34, func(*sql.Tx) error { return nil })
		assert.ErrorIs(t, err, broken)
		assert.EqualError(t, err, `fence: admit token 34 for "orders:42": another transaction has the row of the resource, `+
			"perhaps one whose process is paused: "+text)
	}
}
