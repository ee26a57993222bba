package relock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
)

// newRedis starts an embedded Redis, for the examples.
func newRedis() (rdb *redis.Client, done func()) {
	m, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	m.ClockTTL(true)
	rdb = redis.NewClient(&redis.Options{Addr: m.Addr()})
	return rdb, func() { rdb.Close(); m.Close() }
}

// newServers starts several embedded Redis servers.
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

// newClient returns a Client on a Redis of its own, for the examples.
func newClient(opts ...relock.Option) (client *relock.Client, done func()) {
	rdb, stop := newRedis()
	client, err := relock.New(rdb, opts...)
	if err != nil {
		panic(err)
	}
	return client, func() { client.Close(); stop() }
}

// charge stands for the work that a lock protects.
func charge(context.Context) error { return nil }

// askTwice asks handler for order 42 while the lock is free, and while another request has it, and prints what it
// answers.
func askTwice(client *relock.Client, handler http.HandlerFunc) {
	ask := func() string {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/orders/42/charge", nil)
		r.SetPathValue("id", "42")
		handler(w, r)
		return fmt.Sprint(w.Code, " ", http.StatusText(w.Code))
	}
	fmt.Println("free:", ask())
	hold, err := client.NewLock("lock:orders:42").Acquire(context.Background())
	if err != nil {
		fmt.Println(err)
	}
	defer hold.Release(context.Background())
	fmt.Println("busy:", ask())
}

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
			return charge(ctx) // in one goroutine across all processes; ctx is canceled if the lock is lost
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
		return charge(hold.Context()) // canceled if the lock is lost, and not with ctx
	}
	fmt.Println(pay(context.Background(), client.NewLock("lock:orders:42")))
	// Output: <nil>
}

func ExampleLock_TryLock() {
	client, done := newClient()
	defer done()

	askTwice(client, func(w http.ResponseWriter, r *http.Request) {
		ctx := context.WithoutCancel(r.Context()) // if the client leaves, the charge goes on
		lock := client.NewLock("lock:orders:" + r.PathValue("id"))
		ok, err := lock.TryLock(ctx, 500*time.Millisecond, 0) // a lease of 0 is renewed automatically
		switch {
		case err != nil: // Redis cannot be asked
			http.Error(w, "try again later", http.StatusServiceUnavailable)
			return
		case !ok:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "another request has the order", http.StatusConflict)
			return
		}
		defer lock.Unlock(ctx)
		guarded, err := lock.Guard(ctx) // canceled if the lock is lost
		if err == nil {
			err = charge(guarded)
		}
		if err != nil {
			http.Error(w, "the charge has failed", http.StatusInternalServerError)
		}
	})
	// Output:
	// free: 200 OK
	// busy: 409 Conflict
}

func ExampleLock_Lock() {
	client, done := newClient()
	defer done()

	askTwice(client, func(w http.ResponseWriter, r *http.Request) {
		wait, cancel := context.WithTimeout(r.Context(), 500*time.Millisecond)
		defer cancel()
		lock := client.NewLock("lock:orders:" + r.PathValue("id"))
		switch err := lock.Lock(wait); { // blocks until wait is done
		case errors.Is(err, relock.ErrBusy):
			w.Header().Set("Retry-After", "1")
			http.Error(w, "another request has the order", http.StatusConflict)
			return
		case err != nil:
			http.Error(w, "try again later", http.StatusServiceUnavailable)
			return
		}
		defer lock.Unlock(wait)                             // releases the lock even if wait is done
		ctx, err := lock.Guard(context.WithoutCancel(wait)) // canceled if the lock is lost, and not if the client leaves
		if err == nil {
			err = charge(ctx)
		}
		if err != nil {
			http.Error(w, "the charge has failed", http.StatusInternalServerError)
		}
	})
	// Output:
	// free: 200 OK
	// busy: 409 Conflict
}

func ExampleLock_TryLock_plain() {
	client, done := newClient()
	defer done()
	ctx := context.Background()
	pay := func(ctx context.Context, lock *relock.Lock) error {
		ok, err := lock.TryLock(ctx, time.Second, 0) // a lease of 0 is renewed automatically
		if err != nil {
			return err
		}
		if !ok {
			return relock.ErrBusy // another owner has the lock
		}
		defer lock.Unlock(ctx)                      // releases the lock even if ctx is done
		if ctx, err = lock.Guard(ctx); err != nil { // ctx is canceled if the lock is lost
			return err
		}
		return charge(ctx)
	}
	lock := client.NewLock("lock:orders:42")
	fmt.Println("free:", pay(ctx, lock))
	hold, err := lock.Acquire(ctx)
	if err != nil {
		fmt.Println(err)
	}
	defer hold.Release(ctx)
	fmt.Println("busy:", pay(ctx, lock))
	// Output:
	// free: <nil>
	// busy: the lock is busy
}

func ExampleLock_Lock_again() {
	client, done := newClient()
	defer done()
	ctx := context.Background()

	sell := func(ctx context.Context, lock *relock.Lock) error {
		if err := lock.Lock(ctx); err != nil { // waits until ctx is done
			return err
		}
		defer lock.Unlock(ctx) // releases the lock even if ctx is done

		// The same goroutine may acquire the lock again; each Lock needs a matching Unlock.
		if err := lock.Lock(ctx); err != nil {
			return err
		}
		twice, _ := lock.HoldCount(ctx)
		err := lock.Unlock(ctx)
		once, _ := lock.HoldCount(ctx)
		fmt.Println("hold count:", twice, "then", once)
		return err
	}
	fmt.Println(sell(ctx, client.NewLock("lock:stock")))
	// Output:
	// hold count: 2 then 1
	// <nil>
}

func ExampleLock_Do() {
	client, done := newClient()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // for the wait and the work
	defer cancel()

	err := client.NewLock("lock:orders:42").Do(ctx, func(ctx context.Context) error {
		fmt.Println("in one goroutine across all processes")
		return charge(ctx) // ctx is canceled at the deadline, and if the lock is lost
	})
	fmt.Println(err)
	// Output:
	// in one goroutine across all processes
	// <nil>
}

func ExampleLock_TryDo() {
	client, done := newClient()
	defer done()

	askTwice(client, func(w http.ResponseWriter, r *http.Request) {
		ctx, lock := r.Context(), client.NewLock("lock:orders:"+r.PathValue("id"))
		var charged error // the error of charge, which goes on if the client leaves
		ran, err := lock.TryDo(context.WithoutCancel(ctx), 500*time.Millisecond, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			charged = charge(ctx)
			return charged
		})
		switch {
		case ran && charged == nil: // whatever became of the lock
			w.WriteHeader(http.StatusOK)
		case !ran && err == nil:
			http.Error(w, "another request has the order", http.StatusConflict)
		default: // charge has failed, or Redis cannot be asked
			http.Error(w, "try again later", http.StatusServiceUnavailable)
		}
	})
	// Output:
	// free: 200 OK
	// busy: 409 Conflict
}

func Example_errBusy() {
	client, done := newClient()
	defer done()

	askTwice(client, func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 500*time.Millisecond)
		defer cancel()
		hold, err := client.NewLock("lock:orders:" + r.PathValue("id")).Acquire(ctx)
		switch {
		case err == nil:
			defer hold.Release(ctx)
		case errors.Is(err, relock.ErrBusy): // also matches context.DeadlineExceeded
			w.Header().Set("Retry-After", "1")
			http.Error(w, "another request has the order", http.StatusConflict)
		default: // Redis cannot be asked, or the client has left
			http.Error(w, "try again later", http.StatusServiceUnavailable)
		}
	})
	// Output:
	// free: 200 OK
	// busy: 409 Conflict
}

func ExampleLock_Do_lost() {
	client, done := newClient()
	defer done()
	lock := client.NewLock("lock:import")

	err := lock.Do(context.Background(), func(ctx context.Context) error {
		// An operator releases the lock by force while the function runs.
		if _, err := lock.ForceUnlock(ctx); err != nil {
			return err
		}
		<-ctx.Done() // stop the work that the lock protects
		return context.Cause(ctx)
	})
	fmt.Println("lost:", errors.Is(err, relock.ErrLockLost))
	// Output: lost: true
}

func ExampleLock_LockLease() {
	client, done := newClient()
	defer done()
	ctx := context.Background()

	// At most one mail per minute: without an Unlock the lock is free when its lease has expired.
	mail := func(who string) {
		ok, err := client.NewLock("lock:mail").TryLock(relock.ContextWithOwner(ctx), 0, time.Minute)
		fmt.Println(who, "sends a mail:", ok, err)
	}
	mail("red")
	mail("blue")

	// LockLease blocks until the lock is available.
	lock := client.NewLock("lock:short")
	if err := lock.LockLease(ctx, 200*time.Millisecond); err != nil {
		return
	}
	time.Sleep(400 * time.Millisecond)
	fmt.Println("expired:", errors.Is(lock.Unlock(ctx), relock.ErrLockLost))
	// Output:
	// red sends a mail: true <nil>
	// blue sends a mail: false <nil>
	// expired: true
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
	cancel() // the request is canceled
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

	// The lock is acquired here, and released in the goroutine that finishes the work.
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

	// The resource that the lock protects remembers the greatest token that it has received.
	var balance int
	var seen int64
	write := func(n int, token int64) {
		if token < seen {
			fmt.Println("rejected: a later holder has already written")
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
	write(110, tokens[0]) // the first holder was paused, and its write is late
	fmt.Println("balance:", balance)
	// Output:
	// rejected: a later holder has already written
	// balance: 150
}

func ExampleSemaphore() {
	client, done := newClient()
	defer done()
	ctx := context.Background()

	requests := client.NewSemaphore("requests:example.com", 2) // the limit applies to all processes together
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

func ExampleSemaphore_AcquireN() {
	client, done := newClient()
	defer done()
	ctx := context.Background()

	memory := client.NewSemaphore("memory:worker-7", 16) // one permit for each GiB
	large, err := memory.AcquireN(ctx, 12)
	if err != nil {
		return
	}
	_, ok, err := memory.TryAcquireN(ctx, 8, 0, 0)
	fmt.Println(ok, err)
	_ = large.Release(ctx) // all 12 permits
	small, ok, err := memory.TryAcquireN(ctx, 8, 0, 0)
	fmt.Println(ok, err)
	_ = small.Release(ctx)
	// Output:
	// false <nil>
	// true <nil>
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

	// Many owners may read at the same time.
	if rw.Read().Lock(red) != nil || rw.Read().Lock(blue) != nil {
		return
	}
	ok, _ := rw.Write().TryLock(relock.ContextWithOwner(context.Background()), 0, 0)
	fmt.Println("write while others read:", ok)
	rw.Read().Unlock(red)
	rw.Read().Unlock(blue)

	// One owner writes, and continues to read what it has written.
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

	// The locks of both accounts are acquired, or none, whatever the order of the arguments.
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
	// There is a Client for each of three independent servers.
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

	servers[2].Close() // one server is down
	err := lock.Do(context.Background(), func(context.Context) error {
		fmt.Println("held by a quorum")
		return nil
	})
	fmt.Println(err)

	servers[1].Close() // a second server is down
	_, err = lock.TryLock(context.Background(), 0, 0)
	var quorum *relock.QuorumError
	if errors.As(err, &quorum) {
		fmt.Printf("%d of %d granted it, %d are needed\n", quorum.Granted, quorum.Asked, quorum.Needed)
	}
	_ = servers[1].Restart() // otherwise Close would try for seconds to roll back requests
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
	// A lock is acquired only if one replica has confirmed it, so that a failover to that replica loses no lock.
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
	if err := lock.LockLease(ctx, 200*time.Millisecond); err != nil {
		return
	}
	guarded, err := lock.Guard(ctx)
	if err != nil {
		return
	}
	<-guarded.Done() // the lease expires
	fmt.Println(errors.Is(context.Cause(guarded), relock.ErrLockLost))
	// Output: true
}

// slowSections is an Observer that reports locks that were held for too long.
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

// A hold as a value: one goroutine acquires the lock, and another one releases it when the job is done.
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
			if err := charge(j.hold.Context()); err != nil { // this context is canceled if the lock is lost
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

// The work extends an explicit lease, so that a worker that hangs loses the lock.
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

// A worker that has received a hold from another goroutine sets a deadline of its own for the work.
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

// One process acquires the lock, for example the handler of a request, and another one does the work and releases it.
func ExampleHold_Detach() {
	client, done := newClient()
	defer done()
	ctx := context.Background()
	jobs := make(chan string, 1) // a queue between two processes

	hold, err := client.NewLock("lock:import").Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	ticket, err := hold.Detach(ctx, 10*time.Minute)
	if err != nil {
		fmt.Println(err)
		return
	}
	jobs <- ticket

	work, err := client.Attach(ctx, <-jobs) // in the other process, with a Client of its own
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("working on", work.Name(), work.Context().Err())
	fmt.Println(work.Release(ctx))
	_, err = client.Attach(ctx, ticket)
	fmt.Println("again:", errors.Is(err, relock.ErrNotHeld))
	// Output:
	// working on lock:import <nil>
	// <nil>
	// again: true
}

// The fencing token of a hold, which the protected resource checks.
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

// One of several processes is the leader. Its work is canceled when the leadership is lost, and ends before it resigns.
func ExampleElection_Lead() {
	client, done := newClient()
	defer done()
	ctx := context.Background()
	election := client.NewElection("election:billing")

	err := election.Lead(ctx, func(ctx context.Context) error {
		token, err := election.Token(ctx) // greater in each new term
		fmt.Println("leading:", token > 0, err)
		return charge(ctx)
	})
	fmt.Println("done:", err)
	// Output:
	// leading: true <nil>
	// done: <nil>
}

// A term as a value, for a process that resigns on request.
func ExampleElection_Campaign() {
	client, done := newClient()
	defer done()
	ctx := context.Background()
	election := client.NewElection("election:billing")

	term, err := election.Campaign(ctx) // blocks until this process is the leader
	if err != nil {
		fmt.Println(err)
		return
	}
	leader, ok, err := election.Leader(ctx)
	fmt.Println(ok, err, leader.Client == client.ID(), leader.Token == term.Token())
	work, err := term.Guard(ctx) // canceled with ctx, and when the leadership is lost
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
	client, done := newClient(relock.WithPollInterval(20 * time.Millisecond)) // Observe asks as often
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

// Inspect returns who holds a lock, here with the label of its process.
func ExampleClient_Inspect() {
	client, done := newClient(relock.WithLabel("orders-7"))
	defer done()
	ctx := context.Background()

	lock := client.NewLock("lock:orders:42")
	if err := lock.Lock(ctx); err != nil {
		return
	}
	defer lock.Unlock(ctx)

	i, err := client.Inspect(ctx, "lock:orders:42")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, h := range i.Holders {
		fmt.Println(i.Type, "is held by this process:", h.Client == client.ID())
		fmt.Println("hold count:", h.HoldCount)
		fmt.Println("expires within 30s:", h.Remaining > 0 && h.Remaining <= 30*time.Second)
	}
	// Output:
	// lock is held by this process: true
	// hold count: 1
	// expires within 30s: true
}

// Shutdown lets the holders finish, for as long as a context allows.
func ExampleClient_Shutdown() {
	client, done := newClient()
	defer done()
	ctx := context.Background()

	lock := client.NewLock("lock:report")
	hold, err := lock.Acquire(ctx)
	if err != nil {
		return
	}
	work := hold.Context()
	go func() {
		<-work.Done() // Shutdown cancels it, so that the work can be finished
		fmt.Println("finishing:", context.Cause(work))
		_ = hold.Release(ctx)
	}()

	limit, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	fmt.Println("shutdown:", client.Shutdown(limit))
	fmt.Println("closed:", errors.Is(lock.Lock(ctx), relock.ErrClosed))
	// Output:
	// finishing: the client is closed
	// shutdown: <nil>
	// closed: true
}

// A goroutine that hangs loses the lock after the limit, and other owners can acquire it.
func ExampleMaxHold() {
	client, done := newClient()
	defer done()
	lock := client.NewLock("lock:import", relock.MaxHold(200*time.Millisecond))

	err := lock.Do(context.Background(), func(ctx context.Context) error {
		<-ctx.Done() // hangs until the lock is lost
		return context.Cause(ctx)
	})
	fmt.Println("held for too long:", errors.Is(err, relock.ErrMaxHold))
	fmt.Println("lost:", errors.Is(err, relock.ErrLockLost))
	// Output:
	// held for too long: true
	// lost: true
}

// Two machines start the same job at about the same time. The clock of the second one is a little late.
func ExampleMinHold() {
	client, done := newClient()
	defer done()
	run := func(machine string) {
		lock := client.NewLock("job:nightly", relock.MinHold(time.Minute))
		hold, ok, err := lock.TryAcquire(context.Background(), 0, 0)
		if err != nil || !ok {
			fmt.Println(machine, "skips the job:", err)
			return
		}
		defer hold.Release(context.Background()) // the key stays in Redis for the rest of the minute
		fmt.Println(machine, "runs the job")
	}
	run("red")
	run("blue")
	// Output:
	// red runs the job
	// blue skips the job: <nil>
}

// Two systems use one Redis, and have locks of the same name.
func ExampleWithKeyPrefix() {
	rdb, done := newRedis()
	defer done()
	shop, _ := relock.New(rdb, relock.WithKeyPrefix("shop:"))
	defer shop.Close()
	bank, _ := relock.New(rdb, relock.WithKeyPrefix("bank:"))
	defer bank.Close()
	ctx := context.Background()

	for _, client := range []*relock.Client{shop, bank} {
		lock := client.NewLock("orders")
		hold, ok, err := lock.TryAcquire(ctx, 0, 0)
		fmt.Println(lock.Name(), ok, err)
		if ok {
			defer hold.Release(ctx)
		}
	}
	keys, err := rdb.Exists(ctx, "shop:orders", "bank:orders").Result()
	fmt.Println("keys:", keys, err)
	// Output:
	// orders true <nil>
	// orders true <nil>
	// keys: 2 <nil>
}
