package relock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
)

// An embedded Redis, for the examples.
func newRedis() (rdb *redis.Client, done func()) {
	m, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	m.ClockTTL(true)
	rdb = redis.NewClient(&redis.Options{Addr: m.Addr()})
	return rdb, func() { rdb.Close(); m.Close() }
}

// Several of them.
func newServers(n int) (servers []*miniredis.Miniredis, rdbs []*redis.Client, done func()) {
	for range n {
		m, err := miniredis.Run()
		if err != nil {
			panic(err)
		}
		m.ClockTTL(true)
		servers, rdbs = append(servers, m), append(rdbs, redis.NewClient(&redis.Options{Addr: m.Addr()}))
	}
	return servers, rdbs, func() {
		for i, m := range servers {
			rdbs[i].Close()
			m.Close()
		}
	}
}

// A client on a Redis of its own, for the examples.
func newClient(opts ...relock.Option) (client *relock.Client, done func()) {
	rdb, stop := newRedis()
	client, err := relock.New(rdb, opts...)
	if err != nil {
		panic(err)
	}
	return client, func() { client.Close(); stop() }
}

func charge(ctx context.Context) error { return ctx.Err() }

func Example() {
	rdb, done := newRedis()
	defer done()
	pay := func(ctx context.Context) error {
		client, err := relock.New(rdb) // rdb is your go-redis client; once for the whole process
		if err != nil {
			return err
		}
		defer client.Close()

		lock := client.NewLock("lock:orders:42")
		return lock.Do(ctx, func(ctx context.Context) error {
			// No other owner is here, in any process, as long as ctx is alive:
			// it ends at once should the lock be lost.
			return charge(ctx)
		})
	}
	fmt.Println(pay(context.Background()))
	// Output: <nil>
}

func ExampleLock_Acquire_release() {
	client, done := newClient()
	defer done()
	pay := func(ctx context.Context, lock *relock.Lock) error {
		hold, err := lock.Acquire(ctx)
		if err != nil {
			return err
		}
		defer hold.Release(ctx)

		work, err := hold.Guard(ctx) // ends with ctx, and should the lock be lost
		if err != nil {
			return err
		}
		return charge(work)
	}
	fmt.Println(pay(context.Background(), client.NewLock("lock:orders:42")))
	// Output: <nil>
}

func ExampleLock_TryLock() {
	client, done := newClient()
	defer done()
	ctx := context.Background()

	lock := client.NewLock("lock:report")
	if ok, err := lock.TryLock(ctx, time.Second, 0); err != nil || !ok { // 0: a lease that is renewed
		fmt.Println("not now:", err) // nil: another owner has it
		return
	}
	defer lock.Unlock(ctx)

	busy, err := client.NewLock("lock:report").TryLock(relock.ContextWithOwner(ctx), 10*time.Millisecond, 0)
	fmt.Println("another owner:", busy, err)
	// Output: another owner: false <nil>
}

func ExampleLock_Lock() {
	client, done := newClient()
	defer done()
	ctx := context.Background()

	lock := client.NewLock("lock:stock")
	if err := lock.Lock(ctx); err != nil {
		return // ctx is done, or Redis cannot be reached
	}
	defer lock.Unlock(ctx)

	// The same goroutine may lock again, and owes one more Unlock.
	if err := lock.Lock(ctx); err != nil {
		return
	}
	twice, _ := lock.HoldCount(ctx)
	lock.Unlock(ctx)
	once, _ := lock.HoldCount(ctx)
	fmt.Println("hold count:", twice, "then", once)
	// Output: hold count: 2 then 1
}

func ExampleLock_Do() {
	client, done := newClient()
	defer done()
	lock := client.NewLock("lock:import")

	err := lock.Do(context.Background(), func(ctx context.Context) error {
		// An operator frees the lock while we work.
		if _, err := lock.ForceUnlock(ctx); err != nil {
			return err
		}
		<-ctx.Done() // stop whatever the lock protects
		return context.Cause(ctx)
	})
	fmt.Println("lost:", errors.Is(err, relock.ErrLockLost))
	// Output: lost: true
}

func ExampleLock_LockLease() {
	client, done := newClient()
	defer done()
	ctx := context.Background()

	// At most one mail a minute: without an Unlock the lock is free when its lease is over.
	mail := func(who string) {
		ok, err := client.NewLock("lock:mail").TryLock(relock.ContextWithOwner(ctx), 0, time.Minute)
		fmt.Println(who, "sends a mail:", ok, err)
	}
	mail("red")
	mail("blue")

	// LockLease waits for its turn.
	lock := client.NewLock("lock:short")
	if err := lock.LockLease(ctx, 50*time.Millisecond); err != nil {
		return
	}
	time.Sleep(100 * time.Millisecond)
	fmt.Println("over:", errors.Is(lock.Unlock(ctx), relock.ErrLockLost))
	// Output:
	// red sends a mail: true <nil>
	// blue sends a mail: false <nil>
	// over: true
}

func ExampleLock_Unlock() {
	client, done := newClient()
	defer done()
	lock := client.NewLock("lock:upload")

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := lock.Lock(ctx); err != nil {
		return
	}
	cancel() // the customer has hung up
	fmt.Println(lock.Unlock(ctx))
	fmt.Println("once too often:", errors.Is(lock.Unlock(ctx), relock.ErrNotHeld))
	// Output:
	// <nil>
	// once too often: true
}

func ExampleContextWithOwner() {
	client, done := newClient()
	defer done()
	lock := client.NewLock("lock:upload")

	// Taken here, released in the goroutine that ends the work.
	ctx := relock.ContextWithOwner(context.Background())
	if err := lock.Lock(ctx); err != nil {
		return
	}
	released := make(chan error)
	go func() { released <- lock.Unlock(ctx) }()
	fmt.Println(<-released)
	// Output: <nil>
}

func ExampleFenced() {
	client, done := newClient()
	defer done()
	ctx := context.Background()

	// The balance under the lock keeps the greatest token that it has seen.
	var balance int
	var seen int64
	write := func(n int, token int64) {
		if token < seen {
			fmt.Println("refused: a later holder has written")
			return
		}
		balance, seen = n, token
	}

	lock := client.NewLock("lock:ledger", relock.Fenced())
	var tokens []int64
	for range 2 { // two holders, one after the other
		if err := lock.Lock(ctx); err != nil {
			return
		}
		token, _ := lock.Token(ctx)
		tokens = append(tokens, token)
		lock.Unlock(ctx)
	}
	write(150, tokens[1])
	write(110, tokens[0]) // the first was paused, and comes late
	fmt.Println("balance:", balance)
	// Output:
	// refused: a later holder has written
	// balance: 150
}

func ExampleSemaphore() {
	client, done := newClient()
	defer done()
	ctx := context.Background()

	requests := client.NewSemaphore("requests:example.com", 2) // of all processes together
	one, two, three := relock.ContextWithOwner(ctx), relock.ContextWithOwner(ctx), relock.ContextWithOwner(ctx)
	for _, owner := range []context.Context{one, two, three} {
		ok, err := requests.TryLock(owner, 0, 0)
		fmt.Println(ok, err)
	}
	_ = requests.Unlock(one)
	free, err := requests.Available(ctx)
	fmt.Println(free, "free", err)
	_ = requests.Unlock(two)
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
	// 1 free <nil>
}

func ExampleFairLock() {
	client, done := newClient()
	defer done()
	ctx := context.Background()

	lock := client.NewFairLock("lock:counter")
	if err := lock.Lock(ctx); err != nil {
		return
	}
	served := make(chan string, 3)
	var customers sync.WaitGroup
	for _, customer := range []string{"first", "second", "third"} {
		customers.Add(1)
		go func() {
			defer customers.Done()
			_ = lock.Do(ctx, func(context.Context) error {
				served <- customer
				return nil
			})
		}()
		time.Sleep(100 * time.Millisecond) // until it is in the queue
	}
	lock.Unlock(ctx)
	customers.Wait()
	fmt.Println(<-served, <-served, <-served)
	// Output: first second third
}

func ExampleRWLock() {
	client, done := newClient()
	defer done()
	rw := client.NewRWLock("lock:prices")
	red, blue := relock.ContextWithOwner(context.Background()), relock.ContextWithOwner(context.Background())

	// Many may read.
	if rw.Read().Lock(red) != nil || rw.Read().Lock(blue) != nil {
		return
	}
	ok, _ := rw.Write().TryLock(relock.ContextWithOwner(context.Background()), 0, 0)
	fmt.Println("write while others read:", ok)
	rw.Read().Unlock(red)
	rw.Read().Unlock(blue)

	// One writes, and goes on reading what it has written.
	if rw.Write().Lock(red) != nil || rw.Read().Lock(red) != nil {
		return
	}
	rw.Write().Unlock(red)
	ok, _ = rw.Read().TryLock(blue, 0, 0)
	fmt.Println("others read too:", ok)
	// Output:
	// write while others read: false
	// others read too: true
}

func ExampleMultiLock() {
	client, done := newClient()
	defer done()
	ctx := context.Background()

	// Both accounts or none, in whichever order they are given.
	ann, bob := client.NewLock("lock:account:ann"), client.NewLock("lock:account:bob")
	err := client.NewMultiLock(bob, ann).Do(ctx, func(ctx context.Context) error {
		free, err := client.NewLock("lock:account:ann").TryLock(relock.ContextWithOwner(ctx), 0, 0)
		fmt.Println("another owner gets one of them:", free)
		return err
	})
	fmt.Println(err)
	// Output:
	// another owner gets one of them: false
	// <nil>
}

func ExampleRedLock() {
	// A Client for each of three servers that know nothing of each other.
	servers, rdbs, done := newServers(3)
	defer done()
	var clients []*relock.Client
	var locks []relock.Locker
	for _, rdb := range rdbs {
		client, err := relock.New(rdb)
		if err != nil {
			return
		}
		defer client.Close()
		clients = append(clients, client)
		locks = append(locks, client.NewLock("lock:billing"))
	}
	lock := clients[0].NewRedLock(locks...)

	servers[2].Close() // one of them is gone
	err := lock.Do(context.Background(), func(context.Context) error {
		fmt.Println("held by a quorum")
		return nil
	})
	fmt.Println(err)

	servers[1].Close() // another one
	_, err = lock.TryLock(context.Background(), 0, 0)
	var quorum *relock.QuorumError
	if errors.As(err, &quorum) {
		fmt.Printf("%d of %d granted it, %d are needed\n", quorum.Granted, quorum.Asked, quorum.Needed)
	}
	_ = servers[1].Restart() // or Close would try for seconds to release what may be there
	_ = servers[2].Restart()
	// Output:
	// held by a quorum
	// <nil>
	// 1 of 3 granted it, 2 are needed
}

func ExampleNew_sentinel() {
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName:    "main",
		SentinelAddrs: []string{"10.0.0.1:26379", "10.0.0.2:26379", "10.0.0.3:26379"},
	})
	defer rdb.Close()
	// A lock counts when one replica has it too, so that a failover to that one loses none.
	client, err := relock.New(rdb, relock.WithSyncedReplicas(1, 100*time.Millisecond))
	if err != nil {
		panic(err)
	}
	defer client.Close()
}

func ExampleNew_cluster() {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"10.0.0.1:6379", "10.0.0.2:6379"}})
	defer rdb.Close()
	client, err := relock.New(rdb)
	if err != nil {
		panic(err)
	}
	defer client.Close()
}

func ExampleLock_Guard() {
	client, done := newClient()
	defer done()
	ctx := context.Background()

	lock := client.NewLock("lock:leader")
	if err := lock.LockLease(ctx, 50*time.Millisecond); err != nil {
		return
	}
	guarded, err := lock.Guard(ctx)
	if err != nil {
		return
	}
	<-guarded.Done() // the lease runs out
	fmt.Println(errors.Is(context.Cause(guarded), relock.ErrLockLost))
	// Output: true
}

// slowSections reports holds that kept other owners waiting for too long.
type slowSections struct{ relock.NopObserver }

func (slowSections) Released(_ context.Context, e relock.ReleasedEvent) {
	if e.Held > 10*time.Millisecond {
		fmt.Println(e.Lock.Name, "is slow")
	}
}

func ExampleWithObserver() {
	rdb, done := newRedis()
	defer done()
	client, _ := relock.New(rdb, relock.WithObserver(slowSections{}))
	defer client.Close()
	_ = client.NewLock("lock:report").Do(context.Background(), func(context.Context) error {
		time.Sleep(20 * time.Millisecond)
		return nil
	})
	// Output: lock:report is slow
}

// A hold as a value: one goroutine takes the lock, and another one releases it when the job is done.
func ExampleLock_Acquire() {
	client, done := newClient()
	defer done()
	ctx := context.Background()

	type job struct {
		order string
		hold  *relock.Hold
	}
	jobs := make(chan job)
	var worker sync.WaitGroup
	worker.Add(1)
	go func() {
		defer worker.Done()
		for j := range jobs {
			if err := charge(j.hold.Context()); err != nil { // this ctx is done if the lock is lost
				fmt.Println(err)
			}
			if err := j.hold.Release(ctx); err != nil {
				fmt.Println(err)
			}
			fmt.Println(j.order, "is charged")
		}
	}()
	for _, order := range []string{"41", "42"} {
		hold, err := client.NewLock("lock:orders:" + order).Acquire(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		jobs <- job{order, hold}
	}
	close(jobs)
	worker.Wait()
	// Output:
	// 41 is charged
	// 42 is charged
}

// A lease that the work extends: a worker that hangs loses the lock.
func ExampleHold_Extend() {
	client, done := newClient()
	defer done()
	ctx := context.Background()
	lock := client.NewLock("lock:report")

	hold, ok, err := lock.TryAcquire(ctx, 0, 10*time.Second)
	if err != nil || !ok {
		fmt.Println("not now", err)
		return
	}
	defer hold.Release(ctx)
	for step := range 3 {
		if err := hold.Extend(ctx, time.Minute); err != nil {
			fmt.Println("lost:", err)
			return
		}
		fmt.Println("step", step)
	}
	ttl, err := lock.TTL(ctx)
	fmt.Println(ttl > 50*time.Second, err)
	// Output:
	// step 0
	// step 1
	// step 2
	// true <nil>
}

// A worker that got a hold from another goroutine has a deadline of its own for the work.
func ExampleHold_Guard() {
	client, done := newClient()
	defer done()
	ctx := context.Background()

	hold, err := client.NewLock("lock:import").Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer hold.Release(ctx)

	request, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	work, err := hold.Guard(request)
	if err != nil {
		fmt.Println(err)
		return
	}
	<-work.Done() // at the deadline, or earlier if the lock is lost
	fmt.Println("the work:", work.Err())
	fmt.Println("the hold:", hold.Context().Err())
	// Output:
	// the work: context deadline exceeded
	// the hold: <nil>
}

// The number that a fenced lock gives a hold, for the resource to check.
func ExampleHold_Token() {
	client, done := newClient()
	defer done()
	ctx := context.Background()
	lock := client.NewLock("lock:orders:42", relock.Fenced())
	for range 2 {
		hold, err := lock.Acquire(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		token, err := hold.Token()
		fmt.Println(token > 0, err)
		if err := hold.Release(ctx); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// true <nil>
	// true <nil>
}

// One of several processes leads. The work stops when the lead is lost, and ends before the lead is given up.
func ExampleElection_Lead() {
	client, done := newClient()
	defer done()
	ctx := context.Background()
	election := client.NewElection("election:billing")

	err := election.Lead(ctx, func(ctx context.Context) error {
		number, err := election.Token(ctx) // only grows
		fmt.Println("leading:", number > 0, err)
		return charge(ctx)
	})
	fmt.Println("done:", err)
	// Output:
	// leading: true <nil>
	// done: <nil>
}

// A term as a value, for a process that resigns when it is told to.
func ExampleElection_Campaign() {
	client, done := newClient()
	defer done()
	ctx := context.Background()
	election := client.NewElection("election:billing")

	term, err := election.Campaign(ctx) // waits until this process leads
	if err != nil {
		fmt.Println(err)
		return
	}
	leader, ok, err := election.Leader(ctx)
	fmt.Println(ok, err, leader.Client == client.ID(), leader.Token == term.Token())
	work, err := term.Guard(ctx) // ends with ctx, and with the lead
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := charge(work); err != nil {
		fmt.Println(err)
	}
	fmt.Println(term.Resign(ctx))
	// Output:
	// true <nil> true true
	// <nil>
}

func ExampleElection_Observe() {
	client, done := newClient(relock.WithPollInterval(20 * time.Millisecond)) // Observe looks as often
	defer done()
	ctx := context.Background()
	election := client.NewElection("election:billing")
	for leader, err := range election.Observe(ctx) {
		if err != nil {
			fmt.Println(err)
			continue
		}
		if leader.Vacant() {
			fmt.Println("no leader")
			go election.Campaign(ctx)
			continue
		}
		fmt.Println("this process leads:", leader.Client == client.ID())
		break
	}
	// Output:
	// no leader
	// this process leads: true
}
