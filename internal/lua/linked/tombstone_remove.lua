local function answer(script, types)
    local done, result = pcall(script)
    if done and type(result) == 'table' and type(result[3]) == 'number' then
        local more = result[4] and ' ' .. table.concat(result, ' ', 4) or ''
        return string.format('%.0f %.0f %.0f', result[1], result[2], result[3]) .. more
    elseif done then
        return result
    end
    local text = type(result) == 'table' and result.err or tostring(result)
    if text:find('WRONGTYPE ', 1, true) then
        text = 'NOTALOCK 0 type ?'
        for n, key in ipairs(KEYS) do
            local found = redis.pcall('type', key).ok
            if found and found ~= 'none' and found ~= types[n] then
                text = 'NOTALOCK ' .. n .. ' type ' .. found
                break
            end
        end
    end
    return {err = text:find('^%u+ ') and text or 'ERR ' .. text}
end

return answer(function()

return {redis.call('hdel', KEYS[1], ARGV[1]) == 1 and 1 or -1, 0, 0}

end, {'hash'})
