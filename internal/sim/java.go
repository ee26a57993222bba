//go:build go1.25

package sim

// Java services: Redisson's plain, fair and read/write locks, and its permits with leases, with the commands that it
// sends.
//
// Rules: the scripts are written after those of Redisson, without its latch, which no other client reads. A simulated
// Java service asks for an explicit lease, so that its hold expires by itself. Its network has no faults. It waits as
// Redisson does: it makes an attempt, subscribes, makes another attempt, and then sleeps until it receives a message
// or the lease that blocks it has expired.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

var errOver = errors.New("the work is over")

// javaWait is how long a Java waiter that does not take its turn stays in a fair queue.
const javaWait = 5 * time.Minute

var (
	javaLock = redis.NewScript(`
if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
    redis.call('hincrby', KEYS[1], ARGV[2], 1)
    redis.call('pexpire', KEYS[1], ARGV[1])
    return -3
end
return redis.call('pttl', KEYS[1])`)

	javaUnlock = redis.NewScript(`
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return -3 end
if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then return 0 end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], '0')
return 1`)

	javaFairLock = redis.NewScript(`
while true do
    local first = redis.call('lindex', KEYS[2], 0)
    if first == false then break end
    local timeout = redis.call('zscore', KEYS[3], first)
    if timeout == false or tonumber(timeout) > tonumber(ARGV[4]) then break end
    redis.call('zrem', KEYS[3], first)
    redis.call('lpop', KEYS[2])
end
if redis.call('exists', KEYS[1]) == 0 and
    (redis.call('exists', KEYS[2]) == 0 or redis.call('lindex', KEYS[2], 0) == ARGV[2]) then
    redis.call('lpop', KEYS[2])
    redis.call('zrem', KEYS[3], ARGV[2])
    for _, key in ipairs(redis.call('zrange', KEYS[3], 0, -1)) do
        redis.call('zincrby', KEYS[3], -tonumber(ARGV[3]), key)
    end
    redis.call('hset', KEYS[1], ARGV[2], 1)
    redis.call('pexpire', KEYS[1], ARGV[1])
    return -3
end
if redis.call('zscore', KEYS[3], ARGV[2]) ~= false then return math.max(0, redis.call('pttl', KEYS[1])) end
local last, ttl = redis.call('lindex', KEYS[2], -1), nil
if last ~= false and last ~= ARGV[2] and redis.call('zscore', KEYS[3], last) ~= false then
    ttl = tonumber(redis.call('zscore', KEYS[3], last)) - tonumber(ARGV[4])
else
    ttl = redis.call('pttl', KEYS[1])
end
if redis.call('zadd', KEYS[3], ttl + tonumber(ARGV[3]) + tonumber(ARGV[4]), ARGV[2]) == 1 then
    redis.call('rpush', KEYS[2], ARGV[2])
end
return ttl`)

	javaFairUnlock = redis.NewScript(`
while true do
    local first = redis.call('lindex', KEYS[2], 0)
    if first == false then break end
    local timeout = redis.call('zscore', KEYS[3], first)
    if timeout == false or tonumber(timeout) > tonumber(ARGV[2]) then break end
    redis.call('zrem', KEYS[3], first)
    redis.call('lpop', KEYS[2])
end
local function wake()
    local first = redis.call('lindex', KEYS[2], 0)
    if first ~= false then redis.call('publish', KEYS[4] .. ':' .. first, '0') end
end
if redis.call('exists', KEYS[1]) == 0 then wake() return 1 end
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return -3 end
if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then return 0 end
redis.call('del', KEYS[1])
wake()
return 1`)

	javaRead = redis.NewScript(`
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == false then
    redis.call('hset', KEYS[1], 'mode', 'read')
    redis.call('hset', KEYS[1], ARGV[2], 1)
    redis.call('set', KEYS[2] .. ':1', 1)
    redis.call('pexpire', KEYS[2] .. ':1', ARGV[1])
    redis.call('pexpire', KEYS[1], ARGV[1])
    return -3
end
if mode == 'read' or mode == 'write' and redis.call('hexists', KEYS[1], ARGV[2] .. ':write') == 1 then
    local key = KEYS[2] .. ':' .. redis.call('hincrby', KEYS[1], ARGV[2], 1)
    redis.call('set', key, 1)
    redis.call('pexpire', key, ARGV[1])
    redis.call('pexpire', KEYS[1], math.max(redis.call('pttl', KEYS[1]), ARGV[1]))
    return -3
end
return redis.call('pttl', KEYS[1])`)

	javaReadUnlock = redis.NewScript(`
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == false then
    redis.call('publish', KEYS[2], '0')
    return -3
end
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return -3 end
local count = redis.call('hincrby', KEYS[1], ARGV[1], -1)
if count == 0 then redis.call('hdel', KEYS[1], ARGV[1]) end
redis.call('del', KEYS[3] .. ':' .. ARGV[1] .. ':rwlock_timeout:' .. count + 1)
if redis.call('hlen', KEYS[1]) > 1 then
    local longest = -3
    for _, field in ipairs(redis.call('hkeys', KEYS[1])) do
        local levels = tonumber(redis.call('hget', KEYS[1], field))
        if type(levels) == 'number' then
            for i = levels, 1, -1 do
                longest = math.max(redis.call('pttl', KEYS[3] .. ':' .. field .. ':rwlock_timeout:' .. i), longest)
            end
        end
    end
    if longest > 0 then
        redis.call('pexpire', KEYS[1], longest)
        return 0
    end
    if mode == 'write' then return 0 end
end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], '0')
return 1`)

	javaWrite = redis.NewScript(`
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == false then
    redis.call('hset', KEYS[1], 'mode', 'write')
    redis.call('hset', KEYS[1], ARGV[2] .. ':write', 1)
    redis.call('pexpire', KEYS[1], ARGV[1])
    return -3
end
if mode == 'write' and redis.call('hexists', KEYS[1], ARGV[2] .. ':write') == 1 then
    redis.call('hincrby', KEYS[1], ARGV[2] .. ':write', 1)
    redis.call('pexpire', KEYS[1], redis.call('pttl', KEYS[1]) + ARGV[1])
    return -3
end
return redis.call('pttl', KEYS[1])`)

	javaWriteUnlock = redis.NewScript(`
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == false then
    redis.call('publish', KEYS[2], '1')
    return -3
end
local field = ARGV[1] .. ':write'
if mode ~= 'write' or redis.call('hexists', KEYS[1], field) == 0 then return -3 end
if redis.call('hincrby', KEYS[1], field, -1) > 0 then return 0 end
redis.call('hdel', KEYS[1], field)
if redis.call('hlen', KEYS[1]) == 1 then
    redis.call('del', KEYS[1])
    redis.call('publish', KEYS[2], '1')
else
    redis.call('hset', KEYS[1], 'mode', 'read')
end
return 1`)

	// The number is set only if neither key exists, because after a loss of only the counter Redisson would forget
	// the permits that are taken.
	javaSetPermits = redis.NewScript(`
if redis.call('exists', KEYS[1], KEYS[2]) > 0 then return 0 end
redis.call('set', KEYS[1], ARGV[1])
redis.call('publish', KEYS[3], ARGV[1])
return 1`)

	javaPermit = redis.NewScript(`
local expired = redis.call('zrangebyscore', KEYS[2], 0, ARGV[3], 'limit', 0, 1)
if #expired > 0 then
    redis.call('zrem', KEYS[2], unpack(expired))
    local value = redis.call('incrby', KEYS[1], #expired)
    if value > 0 then redis.call('publish', KEYS[3], value) end
end
local value = redis.call('get', KEYS[1])
if value ~= false and tonumber(value) >= 1 then
    redis.call('decrby', KEYS[1], 1)
    redis.call('zadd', KEYS[2], ARGV[1], ARGV[2])
    return -3
end
local first = redis.call('zrange', KEYS[2], 0, 0, 'withscores')
if first[1] then return math.max(0, tonumber(first[2]) - tonumber(ARGV[3])) end
return -1`)

	javaPermitRelease = redis.NewScript(`
local ends = redis.call('zscore', KEYS[2], ARGV[1])
if redis.call('zrem', KEYS[2], ARGV[1]) ~= 1 then return 0 end
redis.call('publish', KEYS[3], redis.call('incrby', KEYS[1], 1))
return tonumber(ends) <= tonumber(ARGV[2]) and 0 or 1`)
)

// had is the result, as a time, of a Java script that has acquired the lock. Any other result is the remaining lease
// that blocks it; it is negative if none expires.
const had = -3 * time.Millisecond

// A service is one hold of a Java service.
type service struct {
	rdb     *redis.Client
	id      string // of the service, or of the permit
	channel string // on which it waits
	shared  bool
	lease   time.Duration
	try     func() (time.Duration, error)
	leave   func() // gives up its position in a queue
	unlock  func()
}

// clock returns the time of the service. All clocks are set together, so the times that Redisson writes and compares
// by its own clock follow that of Redis. A real service reads its clock without Redis, so clock repeats the request
// until it is answered.
func (s *service) clock() int64 {
	for range 1000 {
		now, err := s.rdb.Time(context.Background()).Result()
		if err == nil {
			return now.UnixMilli()
		}
		if errors.Is(err, redis.ErrClosed) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return time.Now().UnixMilli()
}

func (s *service) run(script *redis.Script, keys []string, args ...any) (time.Duration, error) {
	left, err := script.Run(context.Background(), s.rdb, keys, args...).Int64()
	return time.Duration(left) * time.Millisecond, err
}

// subscribe subscribes sub to the channel of the service, and reports whether Redis allowed it.
func (s *service) subscribe(sub *redis.PubSub) bool {
	_ = sub.Subscribe(context.Background(), s.channel)
	_, err := sub.ReceiveTimeout(context.Background(), time.Second)
	return err == nil
}

// isRefusal reports whether Redis has answered with an error, as it does when a subscription is renewed without the
// permission.
func isRefusal(err error) bool {
	var refused redis.Error
	return errors.As(err, &refused)
}

// service returns a Java service that is about to acquire the lock of w.
func (w *worker) service(rdb *redis.Client) *service {
	name := w.Names[0]
	s := &service{rdb: rdb, id: fmt.Sprintf("00000000-0000-4000-8000-%012d", w.ID), lease: w.Section + 10*time.Second,
		leave: func() {}}
	field, lease := s.id+":1", s.lease.Milliseconds()
	s.channel = "redisson_lock__channel:{" + name + "}"
	switch w.Kind {
	case JavaPlain:
		s.try = func() (time.Duration, error) { return s.run(javaLock, []string{name}, lease, field) }
		s.unlock = func() { _, _ = s.run(javaUnlock, []string{name, s.channel}, field) }
	case JavaFair:
		keys := []string{name, "redisson_lock_queue:{" + name + "}", "redisson_lock_timeout:{" + name + "}", s.channel}
		s.channel += ":" + field
		s.try = func() (time.Duration, error) {
			return s.run(javaFairLock, keys[:3], lease, field, javaWait.Milliseconds(), s.clock())
		}
		s.leave = func() {
			for range 100 { // its connection may still be one that a fault has cut
				if rdb.LRem(context.Background(), keys[1], 0, field).Err() == nil &&
					rdb.ZRem(context.Background(), keys[2], field).Err() == nil {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
		}
		s.unlock = func() { _, _ = s.run(javaFairUnlock, keys, field, s.clock()) }
	case JavaReadWrite:
		// Each hold has a thread of its own. The same thread would re-enter its old record after a failover has
		// brought that back, and Redisson adds up the leases when a writer re-enters.
		field = fmt.Sprintf("%s:%d", s.id, w.rng.Uint32())
		s.channel = "redisson_rwlock:{" + name + "}"
		if s.shared = w.rng.IntN(3) > 0; s.shared {
			leases := "{" + name + "}:" + field + ":rwlock_timeout"
			s.try = func() (time.Duration, error) { return s.run(javaRead, []string{name, leases}, lease, field) }
			s.unlock = func() { _, _ = s.run(javaReadUnlock, []string{name, s.channel, "{" + name + "}"}, field) }
			break
		}
		s.try = func() (time.Duration, error) { return s.run(javaWrite, []string{name}, lease, field) }
		s.unlock = func() { _, _ = s.run(javaWriteUnlock, []string{name, s.channel}, field) }
	case JavaPermits:
		s.channel = "redisson_sc:{" + name + "}"
		keys := []string{name, takenKey(name), s.channel}
		_, _ = s.run(javaSetPermits, keys, w.Kind.permits())
		s.try = func() (time.Duration, error) {
			// Each attempt asks for a permit of its own. If Redisson ran one twice, the second run would take another
			// permit for the same ID, which could never be released.
			s.id = fmt.Sprintf("%08x%08x", w.ID, w.rng.Uint32()) // 16 bytes
			now := s.clock()
			return s.run(javaPermit, keys, now+lease, s.id, now)
		}
		s.unlock = func() { _, _ = s.run(javaPermitRelease, keys, s.id, s.clock()) }
	}
	return s
}

// java acquires the lock as a Java service does.
func (w *worker) java() {
	p := w.world.operator()
	s := w.service(p.rdbs[0])
	h := &hold{p: p, worker: &w.Worker, names: w.Names, lease: s.lease, asked: time.Now()}
	if s.shared {
		h.read = w.Names
	}
	call := w.world.witness.begin(p, &w.Worker, "lock of Java", 0)
	sent := time.Now()
	left, err := s.try()
	if left != had {
		sub := s.rdb.Subscribe(context.Background())
		for hears := false; ; {
			if !hears {
				hears = s.subscribe(sub)
			}
			sent = time.Now()
			if left, err = s.try(); left == had || errors.Is(err, redis.ErrClosed) {
				break
			}
			if w.isOver() { // as after a wait with a time limit
				s.leave()
				err = errOver
				break
			}
			if err != nil { // it tries again, because otherwise its position in a queue would remain
				time.Sleep(time.Second)
				continue
			}
			switch {
			case !hears:
				left = time.Second
			case left < 0:
				left = time.Minute
			}
			// Here the head of a queue whose lock is free pauses before it makes another attempt.
			_, err = sub.ReceiveTimeout(context.Background(), min(max(left, time.Second), time.Minute))
			hears = hears && !isRefusal(err)
		}
		_ = sub.Close()
	}
	call.end(err)
	if err != nil {
		return
	}
	held, end := context.WithDeadline(context.Background(), sent.Add(s.lease))
	defer end()
	h.ctx, h.ids = held, []string{s.id}
	if held.Err() == nil {
		w.world.witness.held(h)
	}
	select {
	case <-held.Done():
	case <-w.over:
	case <-time.After(w.upTo(w.Section)):
	}
	w.world.witness.given(h)
	release := w.world.witness.begin(p, &w.Worker, "unlock of Java", 0)
	defer func() { release.end(nil) }()
	s.unlock()
}
