package lua

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// The timeouts of a fair lock that Go and Java wait for: a living waiter keeps its place, and no Java waiter sleeps without an
// end. The scripts are those of RedissonFairLock, shortened.

const redissonEvicts = `while true do local firstThreadId2 = redis.call('lindex', KEYS[2], 0);if firstThreadId2 == false then break;end;local timeout = redis.call('zscore', KEYS[3], firstThreadId2);if timeout ~= false and tonumber(timeout) <= tonumber(ARGV[4]) then redis.call('zrem', KEYS[3], firstThreadId2);redis.call('lpop', KEYS[2]);else break;end;end;`

const redissonLocks = redissonEvicts + `if (redis.call('exists', KEYS[1]) == 0) and ((redis.call('exists', KEYS[2]) == 0) or (redis.call('lindex', KEYS[2], 0) == ARGV[2])) then redis.call('lpop', KEYS[2]);redis.call('zrem', KEYS[3], ARGV[2]);local keys = redis.call('zrange', KEYS[3], 0, -1);for i = 1, #keys, 1 do redis.call('zincrby', KEYS[3], -tonumber(ARGV[3]), keys[i]);end;redis.call('hset', KEYS[1], ARGV[2], 1);redis.call('pexpire', KEYS[1], ARGV[1]);return {'held'};end;if redis.call('hexists', KEYS[1], ARGV[2]) == 1 then redis.call('hincrby', KEYS[1], ARGV[2],1);redis.call('pexpire', KEYS[1], ARGV[1]);return {'held'};end;if ARGV[5] == 'try' then return {'busy'} end;local timeout = redis.call('zscore', KEYS[3], ARGV[2]);if timeout ~= false then local ttl = redis.call('pttl', KEYS[1]);return {math.max(0, ttl)}; end;local lastThreadId = redis.call('lindex', KEYS[2], -1);local ttl;if lastThreadId ~= false and lastThreadId ~= ARGV[2] and redis.call('zscore', KEYS[3], lastThreadId) ~= false then ttl = tonumber(redis.call('zscore', KEYS[3], lastThreadId)) - tonumber(ARGV[4]);else ttl = redis.call('pttl', KEYS[1]);end;local timeout = ttl + tonumber(ARGV[3]) + tonumber(ARGV[4]);if redis.call('zadd', KEYS[3], timeout, ARGV[2]) == 1 then redis.call('rpush', KEYS[2], ARGV[2]);end;return {ttl};`

var redissonKeys = []string{"lock", "redisson_lock_queue:{lock}", "redisson_lock_timeout:{lock}"}

// besideJava plays the requests of a story, and those of Java threads.
type besideJava struct {
	*teller
	out strings.Builder // what was played, for a test that fails
}

func newBesideJava(t *testing.T) *besideJava {
	s := &besideJava{teller: newTeller(t)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("\n" + s.out.String())
		}
	})
	return s
}

// do plays requests of a story, one a line.
func (s *besideJava) do(lines string) string {
	got := ""
	for line := range strings.Lines(lines) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		got = s.play(words[0], words[1:])
		fmt.Fprintf(&s.out, "%s\n%s", strings.TrimSpace(line), got)
	}
	return got
}

// java asks for the fair lock with wait as its wait timeout, as RedissonFairLock does; how is "" or "try".
func (s *besideJava) java(field string, wait time.Duration, how string) string {
	got := s.run(redissonLocks, redissonKeys, []any{30000, s.value(field), wait.Milliseconds(), s.now.UnixMilli(), how})
	fmt.Fprintf(&s.out, "java %s %v %s\n%s", field, wait, how, got)
	return got
}

// A waiter that has asked just now keeps its place when the one before it is granted the lock, however long the Java
// waiter behind it has waited.
func TestLivingWaiterKeepsItsPlaceBeforeJava(t *testing.T) {
	for _, tt := range []struct {
		name string
		wait time.Duration
		step time.Duration
		hold int
	}{{"5m", 5 * time.Minute, 50 * time.Second, 14}, {"5s", 5 * time.Second, 17 * time.Second, 1}} {
		t.Run(tt.name, func(t *testing.T) {
			s := newBesideJava(t)
			w := fmt.Sprintf(" wait=%v", tt.wait)
			s.do("listen redisson_lock__channel:{lock}:client:B\nlisten redisson_lock__channel:{lock}:client:C\n" +
				"fair_acquire A lease=5s\nfair_acquire B" + w + "\nfair_acquire C" + w)
			s.java("J:1", tt.wait, "")
			s.do("renew A lease=1h")
			for range tt.hold {
				s.do(fmt.Sprintf("pass %v\n", tt.step) + "fair_acquire B asked=2" + w + "\nfair_acquire C asked=2" + w)
			}
			s.do("fair_release A" + w)
			s.do("pass 100ms")
			got := s.java("J:2", tt.wait, "try")
			assert.Contains(t, got, ") C:1:1, J:1", "C is the next one")
			got = s.do("pass 800ms\nfair_acquire C asked=3" + w)
			assert.Contains(t, got, "C:1:1, J:1", "C is the next one")
		})
	}
}

// B waits behind a Java waiter that came with a wait of an hour, and in front of one that came with ten seconds. The
// first one acquires the lock after 20 seconds, and shortens all others by an hour.
func TestWaiterBetweenTwoJavaWaitersKeepsItsPlace(t *testing.T) {
	s := newBesideJava(t)
	s.do("listen redisson_lock__channel:{lock}:client:B\nlisten redisson_lock__channel:{lock}:client:C\n" +
		"fair_acquire A lease=5s\nfair_acquire C")
	s.java("J:1", time.Hour, "")
	s.do("fair_acquire B")
	s.java("J:2", 30*time.Second, "")
	s.do("fair_release C rollback=1\nrenew A lease=1m\npass 39s\nfair_acquire B asked=2\nfair_release A")
	assert.Contains(t, s.java("J:1", time.Hour, ""), "held")
	s.do("pass 10ms")
	got := s.java("J:3", 5*time.Minute, "try")
	assert.Regexp(t, `redisson_lock_queue:\{lock\} \(list, \S+\) B:1:1, J:2`, got, "B is the next one")
}

// Redisson sleeps without an end if its script returns a negative number, which is what is left of the timeout of the last
// waiter if the caller joins. Two Java waiters are behind a Go waiter each, and have waited for longer than their timeouts.
// The Go waiters live, so theirs are not over. The first Java waiter is evicted by its own request, and joins again.
func TestJavaNeverSleepsWithoutAnEnd(t *testing.T) {
	for _, tt := range []struct {
		name       string
		wait, step time.Duration
		hold       int
	}{{"5m", 5 * time.Minute, 50 * time.Second, 26}, {"5s", 5 * time.Second, time.Second, 40}} {
		t.Run(tt.name, func(t *testing.T) {
			s := newBesideJava(t)
			w := fmt.Sprintf(" wait=%v", tt.wait)
			s.do("listen redisson_lock__channel:{lock}:client:B\nlisten redisson_lock__channel:{lock}:client:C\n" +
				"fair_acquire A lease=5s\nfair_acquire B" + w)
			s.java("J:1", tt.wait, "")
			s.do("fair_acquire C" + w)
			s.java("J:2", tt.wait, "")
			s.do("renew A lease=1h")
			for range tt.hold {
				s.do(fmt.Sprintf("pass %v\n", tt.step) + "fair_acquire B asked=2" + w + "\nfair_acquire C asked=2" + w)
			}
			s.do("fair_release A" + w + "\nrenew B lease=30s")
			got := s.java("J:1", tt.wait, "")
			assert.NotContains(t, got, "answers -", "Java sleeps until a message comes")
			for range tt.hold / 2 {
				s.do(fmt.Sprintf("pass %v\n", tt.step) + "renew B lease=1h\nfair_acquire C asked=3" + w)
			}
			s.do("fair_release B" + w + "\npass 100ms\n")
			s.do("fair_release C" + w)
		})
	}
}
