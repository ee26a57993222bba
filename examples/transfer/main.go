// Transfer shows a MultiLock: money is transferred from one account to another, and both have to be locked, by workers
// that transfer in all directions at once.
//
//	go run ./examples/transfer
//
// With two separate locks, one after the other, such programs deadlock: one worker has the account of Ann and waits for
// that of Bob, another has Bob's and waits for Ann's. A MultiLock has the same order for its locks everywhere,
// whatever the order of its arguments, and waits only for one that comes behind those that it holds.
//
// The accounts are numbers in Redis. Every transfer reads two numbers, processes them, and writes both. Without a lock
// transfers overwrite one another, and the sum changes. With the lock the sum stays the same. A lock does not undo half
// a transfer of a process that has crashed, so both numbers are written at once.
//
// It needs only Go: without REDIS_URL (redis://user:password@host:port/db) it runs on an embedded miniredis.
//
// Rules: the exit status is 1 unless the sum under the lock is unchanged, no account is overdrawn and all transfers
// finish. Nothing is left in Redis.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/examples/internal/demo"
)

const (
	banks     = 3 // number of processes
	workers   = 4 // number of workers of each bank
	transfers = 30
	most      = 40               // the highest amount of a transfer
	opening   = 100              // the initial balance of every account
	think     = time.Millisecond // the time between reading and writing
)

var names = []string{"ann", "bob", "cid", "dot", "eve"}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "transfer:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	options, stop, err := demo.Start()
	if err != nil {
		return err
	}
	defer stop()

	fmt.Printf("%d banks with %d workers each make %d transfers between %d accounts of %d\n\n",
		banks, workers, banks*workers*transfers, len(names), opening)
	_, err = compete(ctx, options, "without a lock  ", false)
	if err != nil {
		return err
	}
	sum, err := compete(ctx, options, "with a MultiLock", true)
	if err != nil {
		return err
	}
	if sum != opening*len(names) {
		return fmt.Errorf("under the lock the sum should be %d, and is %d", opening*len(names), sum)
	}
	fmt.Println("\nUnder the lock no money was lost or made, and no transfer waited forever.")
	return nil
}

// compete opens the accounts, makes all transfers, and returns the sum at the end.
func compete(ctx context.Context, options *redis.Options, how string, locked bool) (sum int, err error) {
	prefix := "relock:transfer:" + rand.Text() + ":"
	rdb := redis.NewClient(options)
	defer rdb.Close()
	for _, name := range names {
		defer rdb.Del(context.WithoutCancel(ctx), prefix+name)
		if err := rdb.Set(ctx, prefix+name, opening, 0).Err(); err != nil {
			return 0, err
		}
	}

	start := time.Now()
	var all sync.WaitGroup
	failed := make(chan error, banks*workers)
	for range banks {
		b, closeAll, err := openBank(options, prefix, locked)
		if err != nil {
			return 0, err
		}
		defer closeAll()
		for range workers {
			all.Add(1)
			go func() {
				defer all.Done()
				for range transfers {
					if err := b.transfer(ctx, pick()); err != nil {
						failed <- err
						return
					}
				}
			}()
		}
	}
	all.Wait()
	took := time.Since(start)
	close(failed)
	for err := range failed {
		return 0, err
	}

	fmt.Printf("%s ", how)
	for _, name := range names {
		balance, err := rdb.Get(ctx, prefix+name).Int()
		if err != nil {
			return 0, err
		}
		if locked && balance < 0 {
			return 0, fmt.Errorf("the account of %s is overdrawn: %d", name, balance)
		}
		fmt.Printf(" %s %4d ", name, balance)
		sum += balance
	}
	fmt.Printf("  sum %4d  in %v\n", sum, took.Round(time.Millisecond))
	return sum, nil
}

// An order is one transfer.
type order struct {
	from, to string
	amount   int
}

func pick() order {
	from := mathrand.N(len(names))
	to := (from + 1 + mathrand.N(len(names)-1)) % len(names)
	return order{names[from], names[to], 1 + mathrand.N(most)}
}

// A bank is one process.
type bank struct {
	rdb    *redis.Client
	client *relock.Client
	prefix string
	locked bool
}

func openBank(options *redis.Options, prefix string, locked bool) (*bank, func(), error) {
	rdb := redis.NewClient(options)
	client, err := relock.New(rdb)
	if err != nil {
		return nil, nil, errors.Join(err, rdb.Close())
	}
	return &bank{rdb, client, prefix, locked}, func() { client.Close(); rdb.Close() }, nil
}

// transfer sends money, if there is enough.
func (b *bank) transfer(ctx context.Context, o order) error {
	if !b.locked {
		return b.move(ctx, o)
	}
	both := b.client.NewMultiLock(b.lock(o.from), b.lock(o.to))
	return both.Do(ctx, func(ctx context.Context) error { return b.move(ctx, o) })
}

func (b *bank) lock(account string) *relock.Lock {
	return b.client.NewLock(b.prefix + account + ":lock")
}

func (b *bank) move(ctx context.Context, o order) error {
	from, err := b.rdb.Get(ctx, b.prefix+o.from).Int()
	if err != nil {
		return err
	}
	to, err := b.rdb.Get(ctx, b.prefix+o.to).Int()
	if err != nil {
		return err
	}
	time.Sleep(think)
	if from < o.amount {
		return nil // there is not enough money
	}
	// One command writes both: a bank that crashed between two of them would lose the money.
	return b.rdb.MSet(ctx, b.prefix+o.from, from-o.amount, b.prefix+o.to, to+o.amount).Err()
}
