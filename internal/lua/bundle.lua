-- Acquires several locks: all of them, or none.
--
-- KEYS     the keys of all locks, one lock after the other.
-- ARGV[1]  the number of locks. For each lock follow: the number of its pair of scripts, the number of its keys, the
--          number of arguments of acquire and of roll_back, the arguments of acquire, and those of roll_back.
-- Returns  for each lock that the script tried to acquire, in order, the three integers that its acquire returned. If
--          the last three begin with 1, all locks are held. Else the script has acquired none: those in front that were
--          held with the field before, and still are, have -1 as their third number.
--
-- A pair of scripts acquires one lock and rolls this back. The linker puts a script, as a function of KEYS and ARGV, in
-- the place of each mark below. bundle.go numbers the pairs in this order.
--
-- Repeatable: each of its scripts is. A run that is late finds locks that their owner holds since an earlier run, and
-- others that it has released or lost. So the script rolls back only what it has acquired itself.
--
-- After an error no lock is held that was not held before. An error that names a key which holds no lock counts the
-- KEYS of the bundle.

local scripts = {
    {acquire = --[[script lock_acquire]], roll_back = --[[script lock_release]]},
    {acquire = --[[script read_acquire]], roll_back = --[[script read_release]]},
    {acquire = --[[script write_acquire]], roll_back = --[[script write_release]]},
}

-- What the scripts append to a field when they store it.
local endings = {'', '', ':write'}

local function part(list, from, n)
    local p = {}
    -- At most #ARGV.
    for i = from, from + n - 1 do
        p[#p + 1] = list[i]
    end
    return p
end

-- An error of a script that counts its KEYS from this index on.
local function with_index(err, key)
    return {err = err:gsub('^(NOTALOCK )(%d+)', function(code, n)
        return code .. (n == '0' and 0 or n + key - 1)
    end)}
end

local answers, acquired = {}, {}
local key, at = 1, 2
-- At most #ARGV.
for i = 1, tonumber(ARGV[1]) do
    local number, n_keys = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
    local n_acquire, n_roll_back = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    local script, keys, args = scripts[number], part(KEYS, key, n_keys), part(ARGV, at + 4, n_acquire)
    -- A hold count above 1 is that of a hold, and is set back.
    local stays = args[3] == '1' and redis.pcall('hexists', keys[1], args[1] .. endings[number]) == 1
    local answer = script.acquire(keys, args)
    local failed = type(answer) == 'table' and answer.err
    answers[i] = type(answer) == 'number' and string.format('1 %.0f 0', answer) or answer
    if failed or not answers[i]:find('^1 ') then
        answers = failed and with_index(failed, key) or answers
        -- At most #ARGV.
        for j = i - 1, 1, -1 do
            local a = acquired[j]
            if a.stays then
                answers[j] = answers[j] and answers[j]:gsub('%d+$', '-1', 1) -- nil after an error
            else
                local undone = a.roll_back(a.keys, a.args)
                answers = type(undone) == 'table' and with_index(undone.err, a.key) or answers -- that lock may be held
            end
        end
        break
    end
    acquired[i] = {stays = stays, roll_back = script.roll_back, keys = keys, key = key,
        args = part(ARGV, at + 4 + n_acquire, n_roll_back)}
    key, at = key + n_keys, at + 4 + n_acquire + n_roll_back
end
return answers.err and answers or table.concat(answers, ' ')
