package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/fence"
)

var fences = fence.NewTable("relock_fences", fence.Postgres)

func Example() {
	var lock *relock.Lock // client.NewLock("lock:orders:42", relock.Fenced())
	var db *sql.DB        // of the database that the lock protects

	sell := func(ctx context.Context) error {
		token, err := lock.Token(ctx)
		if err != nil {
			return err
		}
		return fences.Tx(ctx, db, nil, "orders:42", token, func(tx *sql.Tx) error {
			var stock int
			err := tx.QueryRowContext(ctx, `SELECT stock FROM orders WHERE id = 42`).Scan(&stock)
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, `UPDATE orders SET stock = $1 WHERE id = 42`, stock-1)
			return err
		})
	}
	_ = func(ctx context.Context) error {
		err := lock.Do(ctx, sell)
		if errors.Is(err, fence.ErrStale) {
			fmt.Println("the lock was lost, and its next holder was faster: nothing was written")
		}
		return err
	}
}

// Admit is for a transaction that the program begins itself. It comes before everything that is read.
func ExampleTable_Admit() {
	_ = func(ctx context.Context, db *sql.DB, token int64) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := fences.Admit(ctx, tx, "orders:42", token); err != nil {
			return err
		}
		// Read and write through tx.
		return tx.Commit()
	}
}
