// Postgres shows what package fence is for: a writer that was paused for longer than its lease continues and writes to
// PostgreSQL, while another writer holds the lock. No lock can stop it; the database can.
//
//	cd examples/postgres && go run .
//
// The program runs twice: with plain transactions, where the late writer overwrites the change of the other one, and
// with those of a fence.Table, which are refused if a later holder of the lock was admitted.
//
// The lock is on an embedded miniredis, or at REDIS_URL. The database is a real PostgreSQL: at DATABASE_URL, or one
// that the program starts in a temporary directory if PostgreSQL is installed (apt-get install postgresql). If it is
// not, the program says so and ends.
//
// Rules: the exit status is 1 unless the late writer is refused. The tables are temporary ones, and nothing is left in
// Redis or on the disk.
package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/examples/internal/demo"
	"github.com/relock-go/relock/fence"
	"github.com/relock-go/relock/internal/testsql"
)

const (
	lease = 300 * time.Millisecond
	pause = 3 * lease
)

var fences = fence.NewTable("pg_temp.relock_fences", fence.Postgres)

// A beginner runs fn in a transaction of the holder of a token.
type beginner func(ctx context.Context, db *sql.DB, token int64, fn func(*sql.Tx) error) error

func plain(ctx context.Context, db *sql.DB, _ int64, fn func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func fenced(ctx context.Context, db *sql.DB, token int64, fn func(*sql.Tx) error) error {
	return fences.Tx(ctx, db, nil, "ledger:1", token, fn)
}

func main() {
	err := run()
	if errors.Is(err, testsql.ErrNotInstalled) {
		fmt.Println("postgres: skipped, and DATABASE_URL names no database:", err)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "postgres:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	url := os.Getenv("DATABASE_URL")
	if url == "" {
		var stopServer func()
		var err error
		if url, stopServer, err = testsql.StartPostgres(ctx); err != nil {
			return err
		}
		defer stopServer()
	}
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // which has the temporary tables
	_, err = db.ExecContext(ctx, `CREATE TEMPORARY TABLE ledger (id int PRIMARY KEY, balance int NOT NULL)`)
	if err != nil {
		return err
	}
	if err := fences.Create(ctx, db); err != nil {
		return err
	}
	rdb, closeRedis, err := demo.Connect(ctx)
	if err != nil {
		return err
	}
	defer closeRedis()

	fmt.Println("with plain transactions:")
	balance, err := race(ctx, db, rdb, plain)
	if err != nil {
		return err
	}
	fmt.Printf("   the balance is %d: the deposit of blue is gone\n\n", balance)

	fmt.Println("with those of package fence:")
	balance, err = race(ctx, db, rdb, fenced)
	if err != nil {
		return err
	}
	fmt.Printf("   the balance is %d: red knows that it has to start again\n", balance)
	if balance != 150 {
		return fmt.Errorf("with a fence the balance should be 150, not %d", balance)
	}
	return nil
}

// race makes two writers add to a balance of 100: red adds 10, but is paused between reading and writing; blue adds 50
// meanwhile.
func race(ctx context.Context, db *sql.DB, rdb *redis.Client, begin beginner) (balance int, err error) {
	if _, err := db.ExecContext(ctx,
		`INSERT INTO ledger VALUES (1, 100) ON CONFLICT (id) DO UPDATE SET balance = 100`); err != nil {
		return 0, err
	}
	name := "relock:postgres:" + rand.Text()
	// The counter of tokens is normally kept forever. This program deletes its own.
	defer rdb.Del(context.WithoutCancel(ctx), "redisson_lock_token:{"+name+"}")

	red, closeRed, err := newWriter("red", db, rdb, name, begin)
	if err != nil {
		return 0, err
	}
	defer closeRed()
	blue, closeBlue, err := newWriter("blue", db, rdb, name, begin)
	if err != nil {
		return 0, err
	}
	defer closeBlue()

	// Red's lease is not renewed, like that of a paused process.
	if err := red.lock.LockLease(ctx, lease); err != nil {
		return 0, err
	}
	if err := red.read(ctx); err != nil {
		return 0, err
	}
	fmt.Println("   red  is paused for longer than its lease")
	time.Sleep(pause)

	err = blue.lock.Do(ctx, func(ctx context.Context) error {
		return errors.Join(blue.read(ctx), blue.deposit(ctx, 50))
	})
	if err != nil {
		return 0, err
	}
	fmt.Println("   red  wakes up")
	if err := red.deposit(ctx, 10); errors.Is(err, fence.ErrStale) {
		fmt.Println("   red ", err)
	} else if err != nil {
		return 0, err
	}
	err = db.QueryRowContext(ctx, `SELECT balance FROM ledger WHERE id = 1`).Scan(&balance)
	return balance, err
}

// A writer is one process. It admits its token before it reads, and again in the transaction that writes.
type writer struct {
	name  string
	db    *sql.DB
	lock  *relock.Lock
	begin beginner

	token int64
	saw   int
}

func newWriter(name string, db *sql.DB, rdb *redis.Client, lock string, begin beginner) (*writer, func(), error) {
	client, err := relock.New(rdb, relock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, nil, err
	}
	w := &writer{name: name, db: db, lock: client.NewLock(lock, relock.Fenced()), begin: begin}
	return w, func() { client.Close() }, nil
}

func (w *writer) read(ctx context.Context) (err error) {
	if w.token, err = w.lock.Token(ctx); err != nil {
		return err
	}
	return w.begin(ctx, w.db, w.token, func(tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, `SELECT balance FROM ledger WHERE id = 1`).Scan(&w.saw)
		fmt.Printf("   %-4s has the lock, and reads %d\n", w.name, w.saw)
		return err
	})
}

func (w *writer) deposit(ctx context.Context, amount int) error {
	return w.begin(ctx, w.db, w.token, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE ledger SET balance = $1 WHERE id = 1`, w.saw+amount)
		fmt.Printf("   %-4s writes %d\n", w.name, w.saw+amount)
		return err
	})
}
