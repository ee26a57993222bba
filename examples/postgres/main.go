// Postgres shows what a fencing token is for: a writer that was paused for longer than its lease continues and writes
// to PostgreSQL, while another writer holds the lock. No lock can stop it; the database can.
//
//	cd examples/postgres && go run .
//
// Every hold of a lock that was created with Fenced() has a token that is greater than the token of every hold before
// it. The writer sends the token along, and the table stores the greatest token that it has received. A write is one
// statement:
//
//	UPDATE ledger SET balance = $1, token = $2 WHERE id = 1 AND token <= $2
//
// It changes no row if a later holder has already written, and so the stale writer notices. The program runs twice:
// without checking tokens, where the stale writer overwrites the change of the other one, and with the check.
//
// The lock is on an embedded miniredis, or at REDIS_URL. The database is a real PostgreSQL: at DATABASE_URL, or one
// that the program starts in a temporary directory if PostgreSQL is installed (apt-get install postgresql). If it is
// not, the program says so and ends.
//
// Rules: the exit status is 1 unless the stale writer is rejected. The table is a temporary one, and nothing is left in
// Redis or on the disk.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/examples/internal/demo"
)

const (
	lease = 300 * time.Millisecond
	pause = 3 * lease
)

func main() {
	err := run()
	if errors.Is(err, errNoPostgres) {
		fmt.Println("postgres: skipped:", err)
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
	db, closeDB, err := connectPostgres(ctx)
	if err != nil {
		return err
	}
	defer closeDB()
	if _, err := db.Exec(ctx,
		`CREATE TEMPORARY TABLE ledger (id int PRIMARY KEY, balance int NOT NULL, token bigint NOT NULL)`); err != nil {
		return err
	}
	rdb, closeRedis, err := demo.Connect(ctx)
	if err != nil {
		return err
	}
	defer closeRedis()

	fmt.Println("without checking the token:")
	balance, err := race(ctx, db, rdb, `UPDATE ledger SET balance = $1, token = $2 WHERE id = 1`)
	if err != nil {
		return err
	}
	fmt.Printf("   the balance is %d: the deposit of blue is gone\n\n", balance)

	fmt.Println("with the check:")
	balance, err = race(ctx, db, rdb, `UPDATE ledger SET balance = $1, token = $2 WHERE id = 1 AND token <= $2`)
	if err != nil {
		return err
	}
	fmt.Printf("   the balance is %d: red knows that it has to start again\n", balance)
	if balance != 150 {
		return fmt.Errorf("with the token the balance should be 150, not %d", balance)
	}
	return nil
}

// race makes two writers add to a balance of 100: red adds 10, but is paused between reading and writing; blue adds 50
// meanwhile.
func race(ctx context.Context, db *pgx.Conn, rdb *redis.Client, update string) (balance int, err error) {
	if _, err := db.Exec(ctx,
		`INSERT INTO ledger VALUES (1, 100, 0) ON CONFLICT (id) DO UPDATE SET balance = 100, token = 0`); err != nil {
		return 0, err
	}
	name := "relock:postgres:" + rand.Text()
	// The counter of tokens is normally kept forever. This program deletes its own.
	defer rdb.Del(context.WithoutCancel(ctx), "redisson_lock_token:{"+name+"}")

	red, closeRed, err := newWriter("red", db, rdb, name, update)
	if err != nil {
		return 0, err
	}
	defer closeRed()
	blue, closeBlue, err := newWriter("blue", db, rdb, name, update)
	if err != nil {
		return 0, err
	}
	defer closeBlue()

	// Red's lease is not renewed, like that of a paused process.
	if err := red.lock.LockLease(ctx, lease); err != nil {
		return 0, err
	}
	redToken, redSaw, err := red.read(ctx)
	if err != nil {
		return 0, err
	}
	fmt.Printf("   red  has the lock, reads %d, and is paused for longer than its lease\n", redSaw)
	time.Sleep(pause)

	if err := blue.lock.Lock(ctx); err != nil {
		return 0, err
	}
	blueToken, blueSaw, err := blue.read(ctx)
	if err != nil {
		return 0, err
	}
	if blueToken <= redToken {
		return 0, fmt.Errorf("the token of the later hold should be greater: %d, then %d", redToken, blueToken)
	}
	fmt.Printf("   blue has the lock, reads %d\n", blueSaw)
	if err := blue.write(ctx, blueSaw+50, blueToken); err != nil {
		return 0, err
	}
	if err := blue.lock.Unlock(ctx); err != nil {
		return 0, err
	}
	fmt.Println("   red  wakes up")
	if err := red.write(ctx, redSaw+10, redToken); err != nil && !errors.Is(err, errStale) {
		return 0, err
	}
	err = db.QueryRow(ctx, `SELECT balance FROM ledger WHERE id = 1`).Scan(&balance)
	return balance, err
}

var errStale = errors.New("a later holder has written")

// A writer is one process.
type writer struct {
	name   string
	db     *pgx.Conn
	lock   *relock.Lock
	update string
}

func newWriter(name string, db *pgx.Conn, rdb *redis.Client, lock, update string) (*writer, func(), error) {
	client, err := relock.New(rdb, relock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, nil, err
	}
	return &writer{name, db, client.NewLock(lock, relock.Fenced()), update}, func() { client.Close() }, nil
}

// read returns the token of the hold, and the current balance.
func (w *writer) read(ctx context.Context) (token int64, balance int, err error) {
	if token, err = w.lock.Token(ctx); err != nil {
		return 0, 0, err
	}
	err = w.db.QueryRow(ctx, `SELECT balance FROM ledger WHERE id = 1`).Scan(&balance)
	return token, balance, err
}

func (w *writer) write(ctx context.Context, balance int, token int64) error {
	changed, err := w.db.Exec(ctx, w.update, balance, token)
	if err != nil {
		return err
	}
	if changed.RowsAffected() == 0 {
		fmt.Printf("   %-4s writes %d, and is refused: its token is lower than the one in the table\n", w.name, balance)
		return errStale
	}
	fmt.Printf("   %-4s writes %d\n", w.name, balance)
	return nil
}
