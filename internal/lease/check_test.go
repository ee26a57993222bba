//go:build go1.25

package lease

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A check brings one renewal forward. If it finds no record, the lease ends; if it finds one, the lease is as long as
// after any other renewal, and the next one is due after a third of it.
func TestCheckBringsOneRenewalForward(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		l, ends := f.watch(testLease, true)
		time.Sleep(3 * time.Second)
		f.watchdog.Check(l)
		synctest.Wait()
		require.Equal(t, []time.Duration{3 * time.Second}, f.timesAsked(l))
		assert.Equal(t, testLease-Drift(testLease), f.watchdog.Left(l), "validity after the check")
		time.Sleep(testLease / 3)
		synctest.Wait()
		require.Len(t, f.timesAsked(l), 2, "the next renewal is due after a third of the lease")

		f.answer = func(*Lease) Renewal { return Renewal{} }
		f.watchdog.Check(l)
		synctest.Wait()
		require.Equal(t, 1, ends.times)
		assert.ErrorIs(t, ends.cause, ErrGone)
		f.watchdog.Check(l) // a lease that has ended is not checked
		time.Sleep(time.Hour)
		assert.Len(t, f.timesAsked(l), 3)
	})
}

// A check that was asked for while a renewal is under way is sent too: the renewal may have run before the record was
// deleted.
func TestCheckIsSentAlthoughARenewalIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		f.slow = 200 * time.Millisecond
		l, _ := f.watch(testLease, true)
		time.Sleep(testLease/3 + time.Millisecond)
		n := len(f.timesAsked(l))
		f.watchdog.Check(l)
		synctest.Wait()
		assert.Len(t, f.timesAsked(l), n+1)
	})
}

// The same for a check whose turn comes when that renewal would be repeated, which is answered before that.
func TestCheckIsSentAfterARenewalThatIsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		f.slow = 900 * time.Millisecond
		l, _ := f.watch(testLease, true)
		time.Sleep(3 * time.Second)
		f.watchdog.Check(l)
		time.Sleep(500 * time.Millisecond)
		f.watchdog.Check(l)
		time.Sleep(2 * time.Second)
		assert.Equal(t, []time.Duration{3 * time.Second, 4 * time.Second}, f.timesAsked(l))
	})
}

// A process deletes the record while two renewals are under way, which have run before. It notices that when it has asked
// once more.
func TestOwnCheckIsSentAfterTheRenewalsUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		f.slow = 1500 * time.Millisecond
		l, ends := f.watch(testLease, true)
		time.Sleep(testLease/3 + 1200*time.Millisecond)
		require.Len(t, f.timesAsked(l), MostRenewals)
		f.mu.Lock()
		f.answer = func(*Lease) Renewal { return Renewal{} }
		f.mu.Unlock()
		f.watchdog.CheckNow([]*Lease{l})
		time.Sleep(3 * time.Second)
		synctest.Wait()
		assert.Equal(t, 1, ends.times)
	})
}

// A check of a lease that no renewal makes longer only looks for the record: it leaves the validity alone, also if it
// fails, and ends the lease if the record is gone.
func TestCheckOfALeaseThatIsNotRenewedOnlyLooks(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]time.Duration{"explicit": 0, "in its last lease": testLease} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeRecords(t)
			l, ends := newLease(f.watchdog)
			l.SetLimit(limit)
			f.watchdog.Watch(l, time.Now(), testLease, limit > 0, 0)
			end := f.watchdog.End(l)
			for _, answer := range []Renewal{{Held: true}, {Err: errDown}, {Held: true, Err: errDown}} {
				answer.Looked = !l.IsRenewable()
				f.mu.Lock()
				f.answer = func(*Lease) Renewal { return answer }
				f.mu.Unlock()
				time.Sleep(2 * time.Second)
				f.watchdog.Check(l)
				synctest.Wait()
				assert.Equal(t, end, f.watchdog.End(l), "%s: the end after %+v", name, answer)
				assert.Equal(t, limit > 0, f.watchdog.Renews(l), "%s: renewed after %+v", name, answer)
			}
			require.Len(t, f.timesAsked(l), 3, name)
			assert.Zero(t, ends.times, name)
			f.mu.Lock()
			f.answer = func(*Lease) Renewal { return Renewal{Looked: true} }
			f.mu.Unlock()
			time.Sleep(2 * time.Second)
			f.watchdog.Check(l)
			synctest.Wait()
			assert.Equal(t, 1, ends.times, name)
			assert.ErrorIs(t, ends.cause, ErrGone, name)
		})
	}
}

// However many hints there are, a lease is checked once a second.
func TestChecksAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		time.Sleep(time.Minute)
		one, _ := f.watch(time.Hour, true)
		for range 10_000 {
			f.watchdog.Check(one)
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		assert.Len(t, f.timesAsked(one), 11, "checks of one lease, from 0s to 10s")
	})
}

// Config.Old is called once when a lease has become old, and once when none is old any more. Leases that are removed
// sooner are never old, and neither are those without a record, nor those that are renewed every second.
func TestOldLeasesAreNoticedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		var told []bool
		var at []time.Duration
		f.watchdog.config.Old = func(old bool) {
			told, at = append(told, old), append(at, f.watchdog.Now())
		}
		short := func(d time.Duration) {
			l, _ := f.watch(testLease, true)
			time.Sleep(d)
			f.watchdog.Remove(l)
		}
		for range 100 {
			short(oldAge - 10*time.Millisecond)
		}
		f.watch(2*time.Second, true)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Empty(t, told, "no lease was old")

		began := f.watchdog.Now()
		var all []*Lease
		for range 100 {
			l, _ := f.watch(testLease, true)
			all = append(all, l)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, []bool{true}, told)
		assert.LessOrEqual(t, at[0]-began, oldAge, "when it was noticed")
		for _, l := range all[1:] {
			f.watchdog.Remove(l)
			time.Sleep(time.Second)
		}
		synctest.Wait()
		require.Len(t, told, 1, "one old lease is left")
		f.watchdog.Remove(all[0])
		for range 30 {
			short(time.Second / 2)
		}
		synctest.Wait()
		assert.Equal(t, []bool{true, false}, told, "no old lease is left")
		time.Sleep(time.Hour)
		assert.Len(t, told, 2)
		short(2 * oldAge)
		synctest.Wait()
		assert.Equal(t, []bool{true, false, true}, told)
	})
}

// A lease that is old stays old when it is renewed, whenever the loop looks at it.
func TestOldLeaseStaysOldWhenItIsRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeRecords(t)
		var told []bool
		f.watchdog.config.Old = func(old bool) { told = append(told, old) }
		f.watch(testLease-time.Second, true) // its renewals drift past the looks
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Equal(t, []bool{true}, told)
	})
}
