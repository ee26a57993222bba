-- Removes the tombstone of a field that has ended, because no request that names the field can run any more.
--
-- KEYS[1]  the waits of the line: a hash, see tombstones.lua.
-- ARGV[1]  the field, as the line has it.
-- Returns  {1, 0, 0} done, {-1, 0, 0} the field has no tombstone.
--
-- Repeatable, and then answers {-1, 0, 0}: a field that has ended is not used again, so this is no other tombstone.

--[[with record]]
return answer(function()
return {redis.call('hdel', KEYS[1], ARGV[1]) == 1 and 1 or -1, 0, 0}
end, {'hash'})
