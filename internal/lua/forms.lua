-- Prelude of the scripts that read or write the line, which is the wait queue in Redis, or publish messages: the texts
-- of both, and bounds. It consists of constants, so it may stand in front of a common case, where a function would make
-- every run slower.
--
-- Defines  place_format     the text of a place, see parse_place of line.lua: delivery, lease of its grant in
--          ms, fenced, number of its last request, field, since.
-- Defines  place_pattern    matches such a text, and captures its words.
-- Defines  grant_format     the message of a grant: field, number of the request, lease in ms, token.
-- Defines  queue_format     the text of a place in the queue of a fair lock, see place_of of queue.lua: lease of its grant
--          in ms, fenced, number of its last request, since, at, life, java.
-- Defines  queue_pattern    matches such a text, and captures its words.
-- Defines  in_both_ways     how of a client that does not know which command its servers need: see announce.lua.
-- Defines  provisional      the longest lease in ms of a grant, unless its client has been late.
-- Defines  line_life        how long a line lasts that no client has joined, in ms.
-- Defines  near_head        as in internal/poller.

local place_format = '%s %s %s %s %s %s'
local place_pattern = '^(%a+) (%d+) (%d) (%d+) (%S+) ?(%d*)$'
local grant_format = 'grant %s %s %s %s'
local queue_format = '%s %s %s %s %s %s %s'
local queue_pattern = '^(%d+) (%d) (%d+) (%d+) (%d+) (%d+) (%d)$'
local in_both_ways = 'publish+spublish'
local provisional = 5000
local line_life = 5 * 60 * 1000
local near_head = 32
