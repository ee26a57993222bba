//go:build go1.25

package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

func TestMain(m *testing.M) { testredis.Main(m, "internal/lease").Run() }

// fakeRecords plays Redis for a watchdog: it grants renewals, refuses them, or does not answer.
type fakeRecords struct {
	mu     sync.Mutex // guards below
	asked  map[*Lease][]time.Duration
	calls  []int // the number of leases in each pipeline
	answer func(l *Lease) Renewal
	slow   time.Duration

	watchdog *Watchdog
}

func newFakeRecords(t *testing.T) *fakeRecords {
	f := &fakeRecords{asked: make(map[*Lease][]time.Duration)}
	f.watchdog = NewWatchdog(Config{
		Renew: f.renew, Group: func(*Lease) string { return "" }, Silent: func() {}, LimitReached: errLimit,
	})
	t.Cleanup(func() {
		f.watchdog.Close()
		assert.False(t, f.watchdog.timer != nil && f.watchdog.timer.Stop(), "a timer keeps the watchdog in memory")
	})
	return f
}

func (f *fakeRecords) renew(_ context.Context, leases []*Lease) []Renewal {
	now := f.watchdog.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, len(leases))
	answers := make([]Renewal, len(leases))
	for i, l := range leases {
		f.asked[l] = append(f.asked[l], now)
		answers[i] = Renewal{Held: true}
		if f.answer != nil {
			answers[i] = f.answer(l)
		}
	}
	if slow := f.slow; slow > 0 {
		f.mu.Unlock()
		time.Sleep(slow)
		f.mu.Lock()
	}
	return answers
}

func (f *fakeRecords) timesAsked(l *Lease) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[l]
}

// An endRecorder records when and why a lease ended.
type endRecorder struct {
	watchdog *Watchdog
	ended    chan struct{}
	at       time.Duration
	cause    error
	times    int
}

func newLease(wd *Watchdog) (*Lease, *endRecorder) {
	r := &endRecorder{watchdog: wd, ended: make(chan struct{})}
	return &Lease{Holder: r}, r
}

func (r *endRecorder) LeaseEnded(cause error) {
	r.times++
	r.at, r.cause = r.watchdog.Now(), cause
	if r.times == 1 {
		close(r.ended)
	}
}

// watch has the watchdog watch a new lease, which was granted just now.
func (f *fakeRecords) watch(length time.Duration, renewed bool) (*Lease, *endRecorder) {
	l, ends := newLease(f.watchdog)
	f.watchdog.Watch(l, time.Now(), length, renewed, 0)
	return l, ends
}

var errLimit = errors.New("the limit")

const testLease = 30 * time.Second

// A first lease that is shorter than those that renewals ask for is renewed after a third of its own length, and at
// once if that has passed when the watchdog learns of it.
func TestWatchdogRenewsAShortFirstLeaseAfterAThirdOfIt(t *testing.T) {
	const first = testLease / 6
	for _, late := range []time.Duration{0, first / 4, first * 2 / 7, first / 2} { // how long after the request
		synctest.Test(t, func(t *testing.T) {
			f := newFakeRecords(t)
			l, _ := newLease(f.watchdog)
			sent := f.watchdog.Now()
			time.Sleep(late)
			f.watchdog.Watch(l, time.Now().Add(-late), testLease, true, first)
			time.Sleep(first / 2)
			synctest.Wait()
			asked := f.timesAsked(l)
			require.Len(t, asked, 1, "renewals")
			due := max(first/3, late)
			require.LessOrEqual(t, asked[0]-sent, due, "when the lease was renewed, %v after the request", late)
			require.GreaterOrEqual(t, asked[0]-sent, due-first/30, "when the lease was renewed, %v after the request", late)
			time.Sleep(first) // and not again before a third of the next one
			require.Len(t, f.timesAsked(l), 1, "renewals")
			f.watchdog.Remove(l)
		})
	}
}

// S2: the validity starts before the request, and a local timer ends it without any answer from Redis.
func TestWatchdogEndsValidityWhenNoRenewalIsConfirmed(t *testing.T) {
	for name, answer := range map[string]func(*fakeRecords){
		"errors": func(f *fakeRecords) {
			f.answer = func(*Lease) Renewal { return Renewal{Err: errors.New("refused")} }
		},
		"never answer": func(f *fakeRecords) { f.slow = time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeRecords(t)
				answer(f)
				l, ends := newLease(f.watchdog)
				sent := time.Now()
				time.Sleep(3 * time.Second) // it took that long until the acquire was answered
				f.watchdog.Watch(l, sent, testLease, true, 0)
				<-ends.ended
				want := testLease - testLease/100 - 2*time.Millisecond
				assert.Equal(t, want, time.Since(sent), "time trusted after the request")
				assert.False(t, f.watchdog.IsValid(l), "still trusted by the clock")
				assert.ErrorIs(t, ends.cause, ErrExpired)
				time.Sleep(2 * time.Hour)
				assert.Equal(t, 1, ends.times, "ends that were reported")
			})
		})
	}
}

// L4: failed renewals are repeated at shorter and shorter intervals, until one succeeds or the validity has ended.
func TestWatchdogRepeatsAFailedRenewalSoonerAndSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		f.answer = func(*Lease) Renewal { return Renewal{Err: errors.New("refused")} }
		l, ends := f.watch(testLease, true)
		<-ends.ended
		asked := f.timesAsked(l)
		require.GreaterOrEqual(t, len(asked), 8, "tried at %v", asked)
		least := testLease / 200
		for i := 2; i < len(asked); i++ {
			gap, before := asked[i]-asked[i-1], asked[i-1]-asked[i-2]
			assert.LessOrEqual(t, gap, before, "renewal %d comes later after the one before than that one did", i)
			assert.True(
				t,
				gap >= before || gap >= least,
				"renewal %d came %v after the one before, which came after %v",
				i,
				gap,
				before,
			)
		}
		assert.LessOrEqual(
			t,
			ends.at-asked[len(asked)-1],
			testLease/100,
			"time from the last renewal to the end of the trust",
		)
	})
}

// A lease with that many does not keep the watchdog busy, also if the watchdog looks at it just before it ends, because
// another lease is due then. Such a look had no end, with the mutex held.
func TestWatchdogSleepsWhileALeaseHasMostRenewals(t *testing.T) {
	t.Parallel()
	fill := map[string]func(f *fakeRecords, l *Lease) (length time.Duration){
		"renewals that fail late, and a re-entry": func(f *fakeRecords, l *Lease) time.Duration {
			const length = 500 * time.Millisecond
			f.slow = time.Second
			f.answer = func(*Lease) Renewal { return Renewal{Err: errDown} }
			f.watchdog.Watch(l, time.Now(), length, true, 0)
			time.Sleep(3 * length / 5)
			f.watchdog.Extend(l, time.Now(), length, true)
			return length
		},
		"hints in the last lease before the limit": func(f *fakeRecords, l *Lease) time.Duration {
			f.slow = 5 * checkPause / 2
			f.answer = func(l *Lease) Renewal { return Renewal{Held: true, Looked: !l.IsRenewable()} }
			l.SetLimit(testLease)
			f.watchdog.Watch(l, time.Now(), testLease, true, 0)
			for range MostRenewals + 1 {
				time.Sleep(checkPause)
				f.watchdog.Check(l)
			}
			return testLease
		},
	}
	for name, fill := range fill {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeRecords(t)
				l, ends := newLease(f.watchdog)
				length := fill(f, l)
				require.Len(t, f.timesAsked(l), MostRenewals)
				other, _ := newLease(f.watchdog)
				time.Sleep(f.watchdog.Left(l) - length/3 - l.slack()/2)
				f.watchdog.Watch(other, time.Now(), length, true, 0) // due just before l ends
				time.Sleep(time.Minute)
				synctest.Wait()
				assert.Equal(t, 1, ends.times)
				f.watchdog.Remove(other)
			})
		})
	}
}

// slowly makes the renewals of f be answered after these times, one after the other, and all others at once. The first
// of them get the answers.
func (f *fakeRecords) slowly(slow []time.Duration, answers ...Renewal) {
	f.answer = func(*Lease) Renewal {
		a := Renewal{Held: true}
		f.slow = 0
		if len(slow) > 0 {
			f.slow, slow = slow[0], slow[1:]
		}
		if len(answers) > 0 {
			a, answers = answers[0], answers[1:]
		}
		return a
	}
}

// A lease that lasts until its limit is not renewed any more, also if an earlier renewal fails after that. It ends at
// the limit.
func TestWatchdogDoesNotRenewALeaseThatLastsUntilItsLimit(t *testing.T) {
	const limit = testLease + 5*time.Second
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		f.slowly([]time.Duration{15 * time.Second}, Renewal{Err: errors.New("refused")})
		l, ends := newLease(f.watchdog)
		l.SetLimit(limit)
		f.watchdog.Watch(l, time.Now(), testLease, true, 0)
		<-ends.ended
		assert.Len(t, f.timesAsked(l), 2, "renewals: one fails late, one reaches the limit")
		assert.Equal(t, limit, ends.at)
		assert.ErrorIs(t, ends.cause, errLimit)
	})
}

// A pipeline that hangs does not delay the renewal of other leases.
func TestWatchdogRenewsOtherLeasesWhileAPipelineHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		hang := make(chan struct{})
		first := true
		renew := f.watchdog.config.Renew
		f.watchdog.config.Renew = func(ctx context.Context, leases []*Lease) []Renewal {
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
			l, _ := newLease(f.watchdog)
			l.Holder = countingHolder{&lost}
			f.watchdog.Watch(l, time.Now(), testLease, true, 0)
		}
		time.Sleep(10 * testLease)
		require.Zero(t, lost.Load())
		close(hang)
	})
}

type countingHolder struct{ ended *atomic.Int64 }

func (h countingHolder) LeaseEnded(error) { h.ended.Add(1) }

// The context of a renewal is canceled after renewTime although it has no deadline. The silence is reported, so that
// a Redis Cluster client loads its routes again.
func TestWatchdogRenewalHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		var silences atomic.Int64
		f.watchdog.config.Silent = func() { silences.Add(1) }
		f.watchdog.config.Renew = func(ctx context.Context, leases []*Lease) []Renewal {
			start := time.Now()
			_, has := ctx.Deadline()
			assert.False(t, has, "go-redis would apply a deadline to the answer")
			<-ctx.Done()
			took := time.Since(start)
			assert.True(t, took == renewTime || f.watchdog.ctx.Err() != nil, "ended after %v", took)
			return []Renewal{{Err: ctx.Err()}}
		}
		_, ends := f.watch(testLease, true)
		<-ends.ended
		require.Positive(t, silences.Load())
	})
}

// A renewal whose goroutine a hook of the Redis client has ended counts as one that has failed.
func TestWatchdogRenewsAgainAfterAHookHasEndedTheGoroutine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		asked := 0
		f.answer = func(*Lease) Renewal {
			if asked++; asked <= 2*MostRenewals {
				f.mu.Unlock()
				defer f.mu.Lock()
				runtime.Goexit()
			}
			return Renewal{Held: true}
		}
		l, ends := f.watch(testLease, true)
		time.Sleep(10 * testLease)
		synctest.Wait()
		assert.Zero(t, ends.times, "the lease ended: %v", ends.cause)
		assert.False(t, f.watchdog.IsRenewing(l))
		f.watchdog.Remove(l)
	})
}

// An explicit lease that is renewed from now on is renewed until its limit, however long a renewal would last.
func TestWatchdogRenewsAnExplicitLeaseUntilItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		l, ends := newLease(f.watchdog)
		l.SetLimit(f.watchdog.Now() + 20*time.Second)
		f.watchdog.Watch(l, time.Now(), 3*time.Second, false, 0)
		f.watchdog.Renew(l, testLease)
		<-ends.ended
		assert.Equal(t, 20*time.Second, ends.at)
	})
}

// The validity of an extremely long lease does not overflow.
func TestWatchdogKeepsALeaseOfCenturies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		l, ends := f.watch(1<<63-1, false)
		time.Sleep(365 * 24 * time.Hour)
		assert.Zero(t, ends.times, "a lease of 292 years was over after one")
		assert.True(t, f.watchdog.IsValid(l), "a lease of 292 years was over after one")
	})
}

// Many leases are renewed on time, in pipelines, by one goroutine.
func TestWatchdogManyLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		const many = 20_000
		rng := rand.New(rand.NewPCG(1, 1))
		leases := make([]*Lease, many)
		for i := range leases {
			l, ends := newLease(f.watchdog)
			leases[i] = l
			f.watchdog.Watch(l, time.Now(), testLease, true, 0)
			if i%100 == 0 {
				time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
			}
			_ = ends
		}
		time.Sleep(2 * testLease)
		for _, l := range leases {
			last := time.Duration(-1)
			for _, at := range f.timesAsked(l) {
				require.True(t, last < 0 || at-last <= testLease/3, "renewed %v after the last time", at-last)
				last = at
			}
			require.LessOrEqual(t, f.watchdog.Now()-last, testLease/3, "not renewed for %v", f.watchdog.Now()-last)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		sum := 0
		for _, n := range f.calls {
			sum += n
			assert.LessOrEqual(t, n, renewBatch, "leases in one pipeline")
		}
		mean := sum / len(f.calls)
		assert.GreaterOrEqual(t, mean, 50, "%d renewals went out in %d pipelines: %d in each", sum, len(f.calls), mean)
	})
}
