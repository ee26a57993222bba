//go:build go1.25

package sim

// Java services: Redisson's plain and fair locks, as it sends them.
//
// Rules: written after the scripts of Redisson, without its latch, which no other client reads. A Java service here asks for an explicit
// lease, so that its hold ends by itself; its network has no faults. It waits as Redisson does: it asks,
// subscribes, asks again, and then sleeps until a message or the end of the lease in its way.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

var errOver = errors.New("the work is over")

// javaWait is for how long a Java waiter stands in a fair queue without taking its turn.
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
if redis.call('exists', KEYS[1]) == 0 and (redis.call('exists', KEYS[2]) == 0 or redis.call('lindex', KEYS[2], 0) == ARGV[2]) then
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
)

// java takes the lock as a Java service does.
func (w *worker) java() {
	p := w.world.operator()
	rdb, ctx, name := p.rdbs[0], context.Background(), w.Names[0]
	id := fmt.Sprintf("00000000-0000-4000-8000-%012d", w.ID)
	field := id + ":1"
	lease := w.Section + 10*time.Second
	channel := "redisson_lock__channel:{" + name + "}"
	fair := []string{name, "redisson_lock_queue:{" + name + "}", "redisson_lock_timeout:{" + name + "}", channel}
	clock := func() int64 { return rdb.Time(ctx).Val().UnixMilli() } // clocks are set together: Redisson's scores are of its own
	try := func() (time.Duration, error) {
		script, keys, args := javaLock, []string{name}, []any{lease.Milliseconds(), field}
		if w.Kind == JavaFair {
			script, keys, args = javaFairLock, fair[:3], append(args, javaWait.Milliseconds(), clock())
		}
		left, err := script.Run(ctx, rdb, keys, args...).Int64()
		if err != nil {
			return 0, err
		}
		return time.Duration(left) * time.Millisecond, nil
	}
	const had = -3 * time.Millisecond

	h := &hold{p: p, worker: &w.Worker, ids: []string{id}, names: w.Names, lease: lease, asked: time.Now()}
	call := w.world.witness.begin(p, &w.Worker, "lock of Java", 0)
	sent := time.Now()
	left, err := try()
	if left != had {
		listen := channel
		if w.Kind == JavaFair {
			listen += ":" + field
		}
		sub := rdb.Subscribe(ctx, listen)
		_, _ = sub.Receive(ctx)
		for {
			sent = time.Now()
			if left, err = try(); left == had || errors.Is(err, redis.ErrClosed) {
				break
			}
			if w.isOver() { // as after a wait with an end
				for range 100 { // its connection may still be one that a fault has cut
					if rdb.LRem(ctx, fair[1], 0, field).Err() == nil && rdb.ZRem(ctx, fair[2], field).Err() == nil {
						break
					}
					time.Sleep(100 * time.Millisecond)
				}
				err = errOver
				break
			}
			if err != nil { // it tries again, rather than leave its place in a queue to nobody
				time.Sleep(time.Second)
				continue
			}
			// A head of the queue whose lock is free asks again and again: here not without a pause.
			_, _ = sub.ReceiveTimeout(ctx, min(max(left, time.Second), time.Minute))
		}
		_ = sub.Close()
	}
	call.end(err)
	if err != nil {
		return
	}
	held, end := context.WithDeadline(ctx, sent.Add(lease))
	defer end()
	h.ctx = held
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
	if w.Kind == JavaFair {
		_ = javaFairUnlock.Run(ctx, rdb, fair, field, clock()).Err()
	} else {
		_ = javaUnlock.Run(ctx, rdb, []string{name, channel}, field).Err()
	}
}
