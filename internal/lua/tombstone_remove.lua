-- Removes the tombstone of a field that has ended, because no request that names the field can run any more. See
-- line.lua.
--
-- KEYS[1]  the line, which is the wait queue in Redis: a hash.
-- ARGV[1]  the field, as the line has it.
-- Returns  {1, 0, 0} done, {-1, 0, 0} the field has no tombstone.
--
-- Repeatable, and then answers {-1, 0, 0}: a late or second run removes no other tombstone, because a field that has
-- ended is not used again.

local key, field = KEYS[1], ARGV[1]

local over = redis.call('hget', key, 'over') or ''
local from, to = over:find(field .. ' ', 1, true)
if not from then
    return {-1, 0, 0}
end
local rest = over:sub(1, from - 1) .. over:sub(to + 1):gsub('^%d+ ?', '', 1)
if rest == '' then
    redis.call('hdel', key, 'over')
else
    redis.call('hset', key, 'over', (rest:gsub(' $', '')))
end
return {1, 0, 0}
