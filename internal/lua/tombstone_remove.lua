-- Removes the tombstone of a field that has ended, because no request that names the field can run any more. See
-- line.lua.
--
-- KEYS[1]  the waits of the line, which is the wait queue in Redis: a hash.
-- ARGV[1]  the field, as the line has it.
-- Returns  {1, 0, 0} done, {-1, 0, 0} the field has no tombstone.
--
-- Repeatable, and then answers {-1, 0, 0}: a late or second run removes no other tombstone, because a field that has
-- ended is not used again.

--[[with record]]
return answer(function()
return {redis.call('hdel', KEYS[1], ARGV[1]) == 1 and 1 or -1, 0, 0}
end, {'hash'})
