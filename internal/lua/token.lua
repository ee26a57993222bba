-- Prelude of the scripts that acquire locks which may be fenced. See counter.lua.

-- As take_token, but a failure ends the script.
local function draw_token(counter, most)
    local token, following = take_token(counter, most)
    if token then
        return token, following
    elseif following.err:find('not an integer', 1, true) then
        refuse(counter, 'number')
    elseif following.err:find('too large', 1, true) or following.err:find('overflow', 1, true) then
        refuse(counter, 'large')
    end
    error(following, 0)
end
