// Package fence has an SQL database refuse the late writes of a lock holder.
//
// A process can be paused for longer than its lease, and continue to write while another process holds the lock. No
// lock can prevent that, but the database can refuse the write. Every hold of a lock that was created with
// relock.Fenced() has a token that is greater than those of all earlier holds. A [Table] stores the highest token that
// was admitted for each resource, in the database that the lock protects:
//
//	var fences = fence.NewTable("relock_fences", fence.Postgres)
//
//	err := lock.Do(ctx, func(ctx context.Context) error {
//		token, err := lock.Token(ctx)
//		if err != nil {
//			return err
//		}
//		return fences.Tx(ctx, db, nil, "orders:42", token, func(tx *sql.Tx) error {
//			// read and write through tx
//		})
//	})
//
// [Table.Tx] begins a transaction, admits the token, calls the function and commits. A token that is lower than the
// highest one that was admitted is refused with [ErrStale]. The same token may be admitted any number of times, because
// a holder may have several transactions. [Table.Admit] is for programs that begin their transactions themselves.
//
// # Admit before you read
//
// Refusing late tokens is not enough. If holder 2 reads a value, and then holder 1, which is late, is admitted, writes
// and commits, holder 2 is admitted and overwrites that write. So a holder admits its token before it reads anything
// that it will base a write on:
//
//   - either the reads and the writes are in one transaction, whose first statement is Admit, as in the function that
//     Tx calls;
//   - or the hold begins with a short transaction that admits its token, the reads follow, and each transaction that
//     writes admits the token again.
//
// # What the database does
//
// Admitting a token locks the row of the resource until the transaction ends, so transactions of one resource take
// turns. Everything is written in the caller's transaction: if it is rolled back, the token was not admitted.
//
// That is correct at every isolation level of PostgreSQL, of MySQL and MariaDB with InnoDB, and of SQLite. A database
// may end a transaction because of another one that runs at the same time: with a serialization failure (PostgreSQL
// from REPEATABLE READ on), a deadlock, a timeout of a lock wait, or [ErrSnapshot]. None of these is ErrStale. The
// caller rolls back and repeats the whole transaction, as without this package; Tx calls its function once and repeats
// nothing.
//
// The page docs/fencing.md of the repository describes what this protects and what it does not, what it costs, and how
// other storage can refuse late writes.
package fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ErrStale is returned for a token that is lower than one that was admitted before: a later holder has been admitted
// since. It is final: the holder has lost its lock, and has to acquire it again, which gives it a new token. Nothing
// that was read or written in the transaction may be committed.
var ErrStale = errors.New("fence: stale token")

// ErrSnapshot is returned if the transaction reads from a snapshot of the database that is older than the last
// transaction that admitted a token for the resource. Its reads would miss what that one wrote, which may be one of the
// same holder. It is returned with MySQL and MariaDB at REPEATABLE READ, their default, where the first SELECT of a
// transaction fixes the snapshot for all later ones: something was read before Admit, or Admit has waited after another
// call of Admit in the same transaction. Roll back and repeat the transaction, with Admit as its first statement. The
// other databases return an error of their own.
var ErrSnapshot = errors.New("fence: the transaction reads from an old snapshot")

// MaxResource is the maximum length of the name of a resource, in bytes.
const MaxResource = 255

// A Table is a table of a database that has the highest admitted token of each resource. It has no state in the
// process, and any number of goroutines may use it.
type Table struct {
	name    string
	dialect dialect
}

// A Dialect is a kind of database.
type Dialect int

// The databases.
const (
	Postgres Dialect = iota + 1
	MySQL
	SQLite

	MariaDB = MySQL
)

// A name is inserted into statements as it is, so it can have nothing that would have to be quoted.
var validName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?$`)

// NewTable returns the table of this name, which may have a schema before a dot. It sends nothing to a database: the
// table is created by a migration with the statement that [Table.Schema] returns, or by [Table.Create]. One table is
// enough for all locks of a database.
//
// The name is a constant in most programs, so NewTable panics if it is not valid, as [regexp.MustCompile] does: each
// part has at most 63 letters, digits and underscores, and does not begin with a digit. NewTable also panics if there
// is no such dialect.
func NewTable(name string, d Dialect) *Table {
	if !validName.MatchString(name) {
		panic(fmt.Sprintf("fence: %q is not a valid name of a table: use letters, digits and underscores, and a dot only "+
			"after a schema", name))
	}
	of, ok := dialects[d]
	if !ok {
		panic(fmt.Sprintf("fence: there is no Dialect %d: use Postgres, MySQL or SQLite", d))
	}
	return &Table{name, of}
}

// Schema returns the statement that creates the table if it does not exist, for a migration.
func (t *Table) Schema() string { return t.query(t.dialect.schema) }

// Create creates the table if it does not exist. The user of the database needs the permission to do that.
func (t *Table) Create(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, t.Schema())
	if err != nil {
		// With PostgreSQL it fails if another process creates the table at the same time, and then the table exists.
		_, err = db.ExecContext(ctx, t.Schema())
	}
	if err != nil {
		return fmt.Errorf("fence: create table %s: %w", t.name, err)
	}
	return nil
}

// An Execer is a transaction: [sql.Tx], and the transactions of packages that are built on database/sql. With MySQL it
// must also have the method QueryContext of sql.Tx, as all of these do. With PostgreSQL and SQLite QueryContext is used
// if it exists, for the text of ErrStale.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Admit admits the token in a transaction, or returns an error that matches [ErrStale] if a higher token was admitted
// for the resource before. It has to be the first statement of the transaction, or at least come before everything that
// is read: see the package comment. The row of the resource stays locked until the transaction ends, or is rolled back
// to a savepoint from before Admit.
//
// After any error roll the transaction back: what it would write is not protected.
//
// The resource names what the lock protects; every holder has to use the same name. It has at most [MaxResource] bytes
// of UTF-8. The token is that of the hold: lock.Token(ctx), hold.Token() or term.Token(). All tokens of a resource have
// to come from one lock, because each lock has a counter of its own.
//
// A transaction that writes to several resources admits a token for each of them, in an order that all programs share
// (sorted, for example), because otherwise two such transactions may deadlock.
//
// Admit refuses an [sql.DB] and an [sql.Conn], and everything else that has a method BeginTx and no method Commit:
// outside of a transaction the lock on the row would be released at once. A connection on which the program itself has
// executed BEGIN has to be wrapped in a type that has only ExecContext and QueryContext.
func (t *Table) Admit(ctx context.Context, tx Execer, resource string, token int64) error {
	if err := check(resource, token); err != nil {
		return err
	}
	if err := inTransaction(tx); err != nil {
		return fmt.Errorf("fence: admit token %d for %q: %w", token, resource, err)
	}
	higher, err := t.dialect.admit(ctx, t, tx, resource, token)
	switch {
	case errors.Is(err, ErrStale):
		return fmt.Errorf("%w: %d for %q, after %s: a later holder was admitted since; roll back and acquire the lock again",
			ErrStale, token, resource, number(higher))
	case errors.Is(err, ErrSnapshot):
		return fmt.Errorf("%w: a token was admitted for %q after the transaction had begun to read: roll back and "+
			"repeat it, and call Admit before the first SELECT", ErrSnapshot, resource)
	case err != nil && t.dialect.missing.MatchString(text(err)):
		return fmt.Errorf("fence: admit token %d for %q: the table %s is missing: run the statement of Schema() in a "+
			"migration, or call Create: %w", token, resource, t.name, err)
	case err != nil && t.dialect.waited.MatchString(text(err)):
		return fmt.Errorf("fence: admit token %d for %q: another transaction has the row of the resource, perhaps one whose "+
			"process is paused: %w", token, resource, err)
	case err != nil:
		return fmt.Errorf("fence: admit token %d for %q: %w", token, resource, err)
	}
	return nil
}

// Tx begins a transaction, admits the token, calls fn, and commits. If the token is stale, or anything else fails, it
// rolls back and returns the error; that of fn is returned as it is. If fn panics it rolls back, too.
//
// Inside fn read and write through tx only, and leave Commit and Rollback to Tx. Return every error of a statement: at a deadlock MySQL ends the transaction
// itself, and what is executed after that is not part of any transaction, and not protected.
//
// fn is called once. After an error that asks for the transaction to be repeated (see the package comment) the caller
// may call Tx again, as long as it holds the lock; fn runs again then.
//
// opts are those of [sql.DB.BeginTx], and may be nil. The transaction is rolled back if ctx is canceled, so pass the
// context that is canceled when the lock is lost: the error then matches the cause of the context. After any other error
// of the commit it is unknown, as always, whether the transaction was committed. If Tx returns nil, it was, also if the
// Do around it returns relock.ErrLockLost.
func (t *Table) Tx(
	ctx context.Context, db *sql.DB, opts *sql.TxOptions, resource string, token int64, fn func(tx *sql.Tx) error,
) error {
	if err := check(resource, token); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, opts)
	if err != nil {
		return fmt.Errorf("fence: begin a transaction for %q: %w", resource, err)
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := t.Admit(ctx, tx, resource, token); err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return err
	}
	return ended(ctx, resource, tx.Commit())
}

// ended explains err, the error of a commit.
func ended(ctx context.Context, resource string, err error) error {
	over := err == sql.ErrTxDone || err == ctx.Err() // the commit was not sent
	switch {
	case err == nil:
		return nil
	case over && ctx.Err() != nil:
		return fmt.Errorf("fence: the transaction for %q was rolled back before its commit, because its context is done: %w",
			resource, context.Cause(ctx))
	case over:
		return fmt.Errorf("fence: the transaction for %q had ended before its commit: the function must not call Commit or "+
			"Rollback: %w", resource, err)
	}
	return fmt.Errorf("fence: commit the transaction for %q: %w", resource, err)
}

// check reports whether all databases can store the resource, and whether a lock can have issued the token.
func check(resource string, token int64) error {
	switch {
	case resource == "":
		return errors.New("fence: the name of the resource is empty")
	case len(resource) > MaxResource:
		return fmt.Errorf("fence: the name of the resource has %d bytes, and the maximum is %d: use a hash of it: %q…",
			len(resource), MaxResource, strings.ToValidUTF8(resource[:32], ""))
	case !utf8.ValidString(resource) || strings.ContainsRune(resource, 0):
		return fmt.Errorf("fence: the name of the resource is not UTF-8 text without zero bytes: %q", resource)
	case token <= 0:
		return fmt.Errorf("fence: the token for %q is %d, and tokens are greater than 0: create the lock with "+
			"relock.Fenced(), and use the token of lock.Token(ctx)", resource, token)
	}
	return nil
}

// inTransaction refuses what can begin transactions and is none.
func inTransaction(tx Execer) error {
	if v := reflect.ValueOf(tx); tx == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return errors.New("the transaction is nil")
	}
	// Packages that are built on database/sql have these methods with types of their own.
	of := reflect.TypeOf(tx)
	_, begins := of.MethodByName("BeginTx")
	_, commits := of.MethodByName("Commit")
	if begins && !commits {
		return fmt.Errorf("a %v is not a transaction, so the lock on the row would be released at once: call Tx, or pass "+
			"the transaction that BeginTx returns", of)
	}
	return nil
}

// number returns the text of a token that may be unknown.
func number(token int64) string {
	if token == 0 {
		return "a higher one"
	}
	return strconv.FormatInt(token, 10)
}

// text returns the text of an error of a database, with its SQLSTATE if it has one: PostgreSQL translates its texts.
func text(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return err.Error() + " (" + state.SQLState() + ")"
	}
	return err.Error()
}
