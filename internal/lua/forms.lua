-- Prelude of the scripts that read or write the line, which is the wait queue in Redis, or publish messages: the texts
-- of both, and bounds. It consists of constants, so it may stand in front of a common case, where a function would make
-- every run slower.

local place_format = '%s %s %s %s %s %s' -- see parse_place of line.lua
local place_pattern = '^(%a+) (%d+) (%d) (%d+) (%S+) ?(%d*)$'
local grant_format = 'grant %s %s %s %s' -- field, number of the request, lease in ms, token
local queue_format = '%s %s %s %s %s %s %s' -- see place_of of queue.lua
local queue_pattern = '^(%d+) (%d) (%d+) (%d+) (%d+) (%d+) (%d)$'
local in_both_ways = 'publish+spublish' -- see announce.lua
local provisional = 5000 -- the longest lease in ms of a grant, unless its client has been late
local line_life = 5 * 60 * 1000 -- ms: how long a line lasts that no client has joined
local near_head = 32 -- as in internal/poller
