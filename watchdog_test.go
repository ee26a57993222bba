package relock

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeRecords is what a watchdog renews: by a fake Redis that grants, refuses, or does not answer.
type fakeRecords struct {
	mu     sync.Mutex // guards below
	asked  map[*lease][]time.Duration
	calls  []int // leases in each pipeline
	answer func(l *lease) renewal
	slow   time.Duration

	dog *watchdog
}

func newFakeRecords(t *testing.T) *fakeRecords {
	f := &fakeRecords{asked: make(map[*lease][]time.Duration)}
	f.dog = newWatchdog(f.renew, func(*lease) string { return "" }, func() {})
	t.Cleanup(f.dog.close)
	return f
}

func (f *fakeRecords) renew(_ context.Context, leases []*lease) []renewal {
	now := f.dog.now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, len(leases))
	answers := make([]renewal, len(leases))
	for i, l := range leases {
		f.asked[l] = append(f.asked[l], now)
		answers[i] = renewal{held: true}
		if f.answer != nil {
			answers[i] = f.answer(l)
		}
	}
	if f.slow > 0 {
		f.mu.Unlock()
		time.Sleep(f.slow)
		f.mu.Lock()
	}
	return answers
}

func (f *fakeRecords) timesAsked(l *lease) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[l]
}

// endRecorder notes when and why a lease ended.
type endRecorder struct {
	dog   *watchdog
	ended chan struct{}
	at    time.Duration
	cause error
	times int
}

func newLease(dog *watchdog) (*lease, *endRecorder) {
	r := &endRecorder{dog: dog, ended: make(chan struct{})}
	return &lease{holder: r}, r
}

func (r *endRecorder) leaseEnded(cause error) {
	r.times++
	r.at, r.cause = r.dog.now(), cause
	if r.times == 1 {
		close(r.ended)
	}
}

const testLease = 30 * time.Second

func TestWatchdogRenewsEveryThirdOfTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		l, ends := newLease(f.dog)
		f.dog.watch(l, time.Now(), testLease, true)
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if ends.times != 0 {
			t.Fatalf("the lease ended: %v", ends.cause)
		}
		last := time.Duration(0)
		for _, at := range f.timesAsked(l) {
			if gap := at - last; gap > testLease/3 || gap < testLease/3-testLease/30 {
				t.Fatalf("renewed %v after the last time, want about %v", gap, testLease/3)
			}
			last = at
		}
		if 24*time.Hour-last > testLease/3 {
			t.Fatalf("last renewed at %v", last)
		}
		f.dog.remove(l)
		before := len(f.timesAsked(l))
		time.Sleep(time.Hour)
		if n := len(f.timesAsked(l)); n != before {
			t.Errorf("renewed %d times after it was removed", n-before)
		}
	})
}

// S2: trust counts from before the request, and a timer ends it without Redis.
func TestWatchdogEndsTrustWhenNoRenewalIsConfirmed(t *testing.T) {
	for name, answer := range map[string]func(*fakeRecords){
		"errors":       func(f *fakeRecords) { f.answer = func(*lease) renewal { return renewal{err: errors.New("refused")} } },
		"never answer": func(f *fakeRecords) { f.slow = time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeRecords(t)
				answer(f)
				l, ends := newLease(f.dog)
				sent := time.Now()
				time.Sleep(3 * time.Second) // the acquire took that long to be answered
				f.dog.watch(l, sent, testLease, true)
				<-ends.ended
				want := testLease - testLease/100 - 2*time.Millisecond
				if got := time.Since(sent); got != want {
					t.Errorf("trusted for %v after the request, want %v", got, want)
				}
				if f.dog.trusted(l) {
					t.Error("still trusted by the clock")
				}
				if !errors.Is(ends.cause, errLapsed) {
					t.Errorf("cause %v", ends.cause)
				}
				time.Sleep(2 * time.Hour)
				if ends.times != 1 {
					t.Errorf("ended %d times", ends.times)
				}
			})
		})
	}
}

// L4: sooner and sooner, until it works or the trust is over.
func TestWatchdogRepeatsAFailedRenewalSoonerAndSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		f.answer = func(*lease) renewal { return renewal{err: errors.New("refused")} }
		l, ends := newLease(f.dog)
		f.dog.watch(l, time.Now(), testLease, true)
		<-ends.ended
		asked := f.timesAsked(l)
		if len(asked) < 8 {
			t.Fatalf("tried %d times: %v", len(asked), asked)
		}
		least := testLease / 200
		for i := 2; i < len(asked); i++ {
			gap, before := asked[i]-asked[i-1], asked[i-1]-asked[i-2]
			if gap > before || gap < before && gap < least {
				t.Errorf("try %d came %v after the last, which came after %v", i, gap, before)
			}
		}
		if left := ends.at - asked[len(asked)-1]; left > testLease/100 {
			t.Errorf("the last try came %v before the end of the trust", left)
		}
	})
}

func TestWatchdogGoesOnAfterARenewalThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		down := true
		f.answer = func(*lease) renewal {
			if down {
				return renewal{err: errors.New("refused")}
			}
			return renewal{held: true}
		}
		l, ends := newLease(f.dog)
		f.dog.watch(l, time.Now(), testLease, true)
		time.Sleep(25 * time.Second)
		f.mu.Lock()
		down = false
		f.mu.Unlock()
		time.Sleep(time.Hour)
		if ends.times != 0 {
			t.Errorf("the lease ended: %v", ends.cause)
		}
	})
}

// A renewal that hangs must not keep the next one from being tried: it may go
// out on another connection.
func TestWatchdogDoesNotWaitForAHangingRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		f.slow = 15 * time.Second // as a read timeout of go-redis that is set high
		f.answer = func(*lease) renewal { return renewal{held: true} }
		l, ends := newLease(f.dog)
		f.dog.watch(l, time.Now(), testLease, true)
		time.Sleep(10 * testLease)
		if ends.times != 0 {
			t.Errorf("the lease ended at %v: %v", ends.at, ends.cause)
		}
		if n := len(f.timesAsked(l)); n < 20 {
			t.Errorf("%d renewals were sent", n)
		}
	})
}

// A server that was away finds no more than two renewals of each lease when it is back.
func TestWatchdogSendsNoMoreThanTwoRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		f.slow = 18 * time.Second
		const many = 1000
		leases := make([]*lease, many)
		for i := range leases {
			l, _ := newLease(f.dog)
			leases[i] = l
			f.dog.watch(l, time.Now(), testLease, true)
		}
		time.Sleep(testLease - 3*time.Second)
		for _, l := range leases {
			asked := f.timesAsked(l)
			require.Len(t, asked, mostRenewals)
			require.LessOrEqual(t, asked[1]-asked[0], renewTime+testLease/30)
		}
	})
}

// Leases that come behind one whose connection hangs are renewed all the same.
func TestWatchdogLeavesAPipelineThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		hang := make(chan struct{})
		first := true
		renew := f.dog.renew
		f.dog.renew = func(ctx context.Context, leases []*lease) []renewal {
			f.mu.Lock()
			hangs := first
			first = false
			f.mu.Unlock()
			if hangs {
				<-hang
			}
			return renew(ctx, leases)
		}
		const many = 20 * renewBatch
		var lost atomic.Int64
		for range many {
			l, _ := newLease(f.dog)
			l.holder = countingHolder{&lost}
			f.dog.watch(l, time.Now(), testLease, true)
		}
		time.Sleep(10 * testLease)
		require.Zero(t, lost.Load())
		close(hang)
	})
}

type countingHolder struct{ ended *atomic.Int64 }

func (h countingHolder) leaseEnded(error) { h.ended.Add(1) }

// A renewal has a second for a connection, and asks for the routes of a Cluster when it is not answered by then.
func TestWatchdogRenewalHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		var silences atomic.Int64
		f.dog.silent = func() { silences.Add(1) }
		f.dog.renew = func(ctx context.Context, leases []*lease) []renewal {
			start := time.Now()
			if _, has := ctx.Deadline(); has {
				t.Error("go-redis could take the deadline for one of the answer")
			}
			<-ctx.Done()
			if took := time.Since(start); took != renewTime && f.dog.ctx.Err() == nil {
				t.Errorf("ended after %v", took)
			}
			return []renewal{{err: ctx.Err()}}
		}
		l, ends := newLease(f.dog)
		f.dog.watch(l, time.Now(), testLease, true)
		<-ends.ended
		require.Positive(t, silences.Load())
	})
}

func TestWatchdogEndsALeaseThatIsGoneAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		f.answer = func(*lease) renewal { return renewal{held: false} }
		l, ends := newLease(f.dog)
		f.dog.watch(l, time.Now(), testLease, true)
		<-ends.ended
		if ends.at > testLease/3 || !errors.Is(ends.cause, errGone) {
			t.Errorf("ended at %v: %v", ends.at, ends.cause)
		}
		if n := len(f.timesAsked(l)); n != 1 {
			t.Errorf("asked %d times", n)
		}
	})
}

func TestWatchdogLetsAnExplicitLeaseRunOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		l, ends := newLease(f.dog)
		f.dog.watch(l, time.Now(), testLease, false)
		<-ends.ended
		if want := testLease - drift(testLease); ends.at != want || !errors.Is(ends.cause, errLapsed) {
			t.Errorf("ended at %v, want %v: %v", ends.at, want, ends.cause)
		}
		if n := len(f.timesAsked(l)); n != 0 {
			t.Errorf("renewed %d times", n)
		}
	})
}

func TestWatchdogExtendNeverShortensAndStaysRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		l, ends := newLease(f.dog)
		f.dog.watch(l, time.Now(), time.Hour, false)
		f.dog.extend(l, time.Now(), time.Second, false)
		time.Sleep(time.Hour / 2)
		if ends.times != 0 {
			t.Fatal("a shorter lease cut the longer one")
		}
		f.dog.extend(l, time.Now(), testLease, true)
		f.dog.extend(l, time.Now(), time.Second, false)
		time.Sleep(24 * time.Hour)
		if ends.times != 0 {
			t.Fatal("a lease that was renewed no longer is")
		}
	})
}

// A hold that was taken for long, and then given to the watchdog.
func TestWatchdogRenewsEveryThirdAfterALongLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		l, _ := newLease(f.dog)
		f.dog.watch(l, time.Now(), 24*time.Hour, false)
		f.dog.extend(l, time.Now(), testLease, true)
		time.Sleep(time.Hour)
		last := time.Duration(0)
		for _, at := range f.timesAsked(l) {
			if gap := at - last; gap > testLease/3 {
				t.Fatalf("renewed %v after the last time, want %v", gap, testLease/3)
			}
			last = at
		}
		if time.Hour-last > testLease/3 {
			t.Errorf("last renewed at %v", last)
		}
	})
}

func TestWatchdogHugeLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		l, ends := newLease(f.dog)
		f.dog.watch(l, time.Now(), 1<<63-1, false)
		time.Sleep(365 * 24 * time.Hour)
		if ends.times != 0 || !f.dog.trusted(l) {
			t.Error("a lease of 292 years was over after one")
		}
	})
}

// Many leases are renewed in time, in pipelines, by one goroutine.
func TestWatchdogManyLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		const many = 20_000
		leases := make([]*lease, many)
		for i := range leases {
			l, ends := newLease(f.dog)
			leases[i] = l
			f.dog.watch(l, time.Now(), testLease, true)
			if i%100 == 0 {
				time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
			}
			_ = ends
		}
		time.Sleep(2 * testLease)
		for _, l := range leases {
			last := time.Duration(-1)
			for _, at := range f.timesAsked(l) {
				if last >= 0 && at-last > testLease/3 {
					t.Fatalf("renewed %v after the last time", at-last)
				}
				last = at
			}
			if f.dog.now()-last > testLease/3 {
				t.Fatalf("not renewed for %v", f.dog.now()-last)
			}
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		sum := 0
		for _, n := range f.calls {
			sum += n
			if n > renewBatch {
				t.Errorf("%d leases in one pipeline", n)
			}
		}
		if mean := sum / len(f.calls); mean < 50 {
			t.Errorf("%d renewals went out in %d pipelines: %d in each", sum, len(f.calls), mean)
		}
	})
}
