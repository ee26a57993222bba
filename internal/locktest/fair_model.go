package locktest

// The part of Java: KEYS lock, queue, timeouts; ARGV field, channel prefix, lease, worth, now.
const JavaEvict = `
local function evict(now)
	while true do
		local head = redis.call('lindex', KEYS[2], 0)
		if not head then return end
		local timeout = redis.call('zscore', KEYS[3], head)
		if not timeout or tonumber(timeout) > now then return end
		redis.call('zrem', KEYS[3], head)
		redis.call('lpop', KEYS[2])
	end
end
evict(tonumber(ARGV[5]))
local me, now, worth = ARGV[1], tonumber(ARGV[5]), tonumber(ARGV[4])
`

const JavaAcquire = JavaEvict + `
local head = redis.call('lindex', KEYS[2], 0)
if redis.call('exists', KEYS[1]) == 0 and (not head or head == me) then
	redis.call('lpop', KEYS[2])
	redis.call('zrem', KEYS[3], me)
	for _, w in ipairs(redis.call('zrange', KEYS[3], 0, -1)) do
		redis.call('zincrby', KEYS[3], -worth, w)
	end
	redis.call('hset', KEYS[1], me, 1)
	redis.call('pexpire', KEYS[1], ARGV[3])
	return 1
end
if redis.call('zscore', KEYS[3], me) then return 0 end
local last = redis.call('lindex', KEYS[2], -1)
local base = math.max(redis.call('pttl', KEYS[1]), 0)
if last and last ~= me and redis.call('zscore', KEYS[3], last) then
	base = tonumber(redis.call('zscore', KEYS[3], last)) - now
end
if redis.call('zadd', KEYS[3], base + worth + now, me) == 1 then
	redis.call('rpush', KEYS[2], me)
end
return 0`

const JavaGiveUp = JavaEvict + `
local found = false
for _, w in ipairs(redis.call('lrange', KEYS[2], 0, -1)) do
	if found then redis.call('zincrby', KEYS[3], -worth, w) end
	if w == me then found = true end
end
redis.call('zrem', KEYS[3], me)
redis.call('lrem', KEYS[2], 0, me)
return 1`
