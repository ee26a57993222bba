package mistakes

// Mistakes in the scripts.

// Scripts has a mistake for each precaution of the scripts that is known to matter.
var Scripts = []Mistake{
	{
		Name:    "skippedPlace",
		Omits:   "A grant goes to the first place of the line.",
		Changes: []Change{{"'limit', 0, size)", "'limit', math.min(1, line.size - 1), size)"}},
	},
	{
		Name:    "noTombstone",
		Omits:   "A field with a tombstone never acquires the lock again.",
		Changes: []Change{{"return till and (tonumber(till) or 0) > now_ms()", "return false"}},
	},
	{
		Name:    "tombstoneUnseen",
		Omits:   "The short cuts of a lock look for a tombstone of their field.",
		Changes: []Change{{"== 0 and redis.pcall('hexists', KEYS[3], ARGV[1]) == 0 then", "== 0 then"}},
	},
	{
		Name:    "toAndFro",
		Omits:   "The grants of a client that was late have their whole lease.",
		Changes: []Change{{"math.max(kept or wish.most or 0, provisional)", "math.max(kept or 0, provisional)"}},
	},
	{
		Name:  "wrongField",
		Omits: "A grant makes the field of the waiter that is told of it the holder.",
		Changes: []Change{
			{
				"redis.pcall('hset', lock, waiter.field, 1)",
				"redis.pcall('hset', lock, waiter.field .. '1', 1)",
			},
		},
	},
	{
		Name:    "noGrant",
		Omits:   "A release grants the lock to the next place.",
		Changes: []Change{{"heard == 0 and pass_on(lock, line, tokens, channel, how, nil) or nil", "nil"}},
	},
	{
		Name:    "foreignRelease",
		Omits:   "A release removes nothing but the field of its caller.",
		Changes: []Change{{"redis.pcall('hdel', lock, field)", "redis.pcall('del', lock)"}},
	},
	{
		Name:    "grantUnnoticed",
		Omits:   "A poll of a lock notices that the client has lost its place, as by a grant.",
		Changes: []Change{{"return redis.call('zscore', order, client) ~= false", "return true"}},
	},
	{
		Name:    "toTheEnd",
		Omits:   "A client that asks again keeps its place.",
		Changes: []Change{{"'zadd', line.order, 'nx',", "'zadd', line.order,"}},
	},
	{
		Name:    "deadTakenForJava",
		Omits:   "A waiter of relock without a place is dead, and not one of Java, whose timeout counts.",
		Changes: []Change{{"elseif not is_relocks(waiter) then", "elseif not p then"}},
	},
	{
		Name:    "requestOfTheFuture",
		Omits:   "A request from before the clock was set back lasts for no longer than others.",
		Changes: []Change{{"gap < 0 or gap > 2 * ask_every", "gap > 2 * ask_every"}},
	},
	{
		Name:    "writerOfTheFuture",
		Omits:   "A heartbeat of a writer that ends further ahead than any can does not hold readers off.",
		Changes: []Change{{"tonumber(last[2]) > now + farthest_beat then", "false then"}},
	},
	{
		Name:    "windowOfTheFuture",
		Omits:   "A hand-off window that began in the future has ended.",
		Changes: []Change{{" or shared > now", ""}},
	},
	{
		Name:    "queueWithoutALease",
		Omits:   "The queue of a fair lock expires.",
		Changes: []Change{{"redis.call('pexpire', q.timeouts, queue_life)", ""}},
	},
	{
		Name:    "overdueNotPassedOver",
		Omits:   "A waiter of a fair lock that has not asked for long is passed over.",
		Changes: []Change{{"elseif not p or p.at + p.life <= q.now - q.lost then", "elseif not p then"}},
	},
	{
		Name:    "noGraceAfterAnOutage",
		Omits:   "After an outage no waiter of a fair lock is overdue for a while.",
		Changes: []Change{{"(gap > 0 and ask_every or 0)", "math.max(0, gap)"}},
	},
	{
		Name:    "javaNotNoted",
		Omits:   "A place of a fair lock notes that Java is in front.",
		Changes: []Change{{"java = java and '1' or '0'}", "java = '0'}"}},
	},
	{
		Name:    "unheardNotPassedOver",
		Omits:   "A waiter of a fair lock that nobody hears is passed over.",
		Changes: []Change{{"elseif is_heard(q, p, heard) then", "elseif true then"}},
	},
	{
		Name:  "shortReleaseTwice",
		Omits: "The short way of a release grants the lock only if this run has freed it.",
		Changes: []Change{
			{
				"local free, token = deleted == 1 and redis.pcall('exists', lock) == 0, 0",
				"local free, token = true, 0",
			},
		},
	},
	{
		Name:  "patternsCounted",
		Omits: "A subscriber to a pattern is no listener.",
		Changes: []Change{
			{
				"(redis.pcall('pubsub', how == 'spublish' and 'shardnumsub' or 'numsub', channel .. ':' .. to)[2] or 0) ~= 0 then",
				"redis.pcall('publish', channel .. ':' .. to, '') ~= 0 then",
			},
		},
	},
	{
		Name:    "barge",
		Omits:   "A request that finds the lock free lets the line go first.",
		Changes: []Change{{"line.size > 0 and delivery ~= 'barge' then", "line.size > 0 and false then"}},
	},
	{
		Name:    "newsLost",
		Omits:   "A release that has freed nothing still passes on a lock that it finds free.",
		Changes: []Change{{"return heard == 0 and pass_on(", "return had and heard == 0 and pass_on("}},
	},
	{
		Name:  "uncounted",
		Omits: "A grant that nobody has received is taken back, and a place that nobody hears is passed over.",
		Changes: []Change{
			{"return heard > 0", "return true"},
			{"q.reachable = counts[channels[i]] ~= 0", "q.reachable = true"},
		},
	},
	{
		Name:  "joinUnsubscribed",
		Omits: "A client whose subscription is not known gets no place that is told by a message.",
		Changes: []Change{
			{
				"return delivery == 'push' and listeners(channel .. ':' .. client_of(field), how) == 0",
				"return false",
			},
		},
	},
	{
		Name:    "confirmLease",
		Omits:   "A request that confirms a grant lengthens its lease.",
		Changes: []Change{{"if pttl < lease then", "if pttl < 0 then"}},
	},
	{
		Name:    "leaseShortened",
		Omits:   "A request of the holder never shortens its lease.",
		Changes: []Change{{"if pttl < lease then", "if true then"}},
	},
	{
		Name:  "lateConfirm",
		Omits: "A renewal changes the lease only if its field holds the lock.",
		Changes: []Change{
			{
				"if redis.call('hexists', lock, field) == 0 then\n    return {-1, 0, 0}\nend\nif exact",
				"if exact",
			},
		},
	},
	{
		Name:    "permitBarge",
		Omits:   "Permits that are available go to the line before the caller.",
		Changes: []Change{{"local to = not ahead and line.size", "local to = not wants and line.size"}},
	},
	{
		Name:  "permitReleasedTwice",
		Omits: "A release returns only those permits that are there.",
		Changes: []Change{
			{"if there == 0 then\n        return 0\n    end", "there = #ids"},
			{"if removed ~= there then", "if false then"},
		},
	},
	{
		Name:  "handsOn",
		Omits: "Nothing is granted of permits that are not available.",
		Changes: []Change{
			{"return count_free(free) > 0 and pass_on(", "return pass_on("},
			{"if room.available >= n then", "if true then"},
		},
	},
	{
		Name:    "expireTwice",
		Omits:   "Expired permits are removed when they are returned.",
		Changes: []Change{{"return_permits(free, taken, expired, #expired)", "add(free, #expired)"}},
	},
	{
		Name:  "permitNewsLost",
		Omits: "A release of a permit that is not there any more still passes on what is available.",
		Changes: []Change{
			{
				"if n <= 0 then\n            return",
				"if not ends then\n            return",
			},
		},
	},
	{
		Name:    "permitNoTombstone",
		Omits:   "A field with a tombstone takes no permit.",
		Changes: []Change{{"wants = wants and not is_buried(line.waits, id)", ""}},
	},
	{
		Name:  "notIdempotent",
		Omits: "A request for a permit that runs again takes no second one.",
		Changes: []Change{
			{"local wants = not ends and hold_count == '1'", "local wants = hold_count == '1'"},
			{"if added ~= #ids then", "if type(added) == 'table' then"},
		},
	},
	{
		Name:    "oneGrant",
		Omits:   "One release grants all permits that are available.",
		Changes: []Change{{"local most_passed = 1000", "local most_passed = 1"}},
	},
	{
		Name:    "silentRelease",
		Omits:   "A release of a permit tells the next place.",
		Changes: []Change{{"return heard == 0 and pass_permits(", "return heard < 0 and pass_permits("}},
	},
	{
		Name:  "setForgetsTaken",
		Omits: "The number that an acquire sets leaves out the permits that are taken.",
		Changes: []Change{
			{
				"available = permits - redis.call('zcard', taken)\n    redis.call('set'",
				"available = permits\n    redis.call('set'",
			},
		},
	},
	{
		Name:  "numberForgetsTaken",
		Omits: "A new number of permits leaves out those that are taken.",
		Changes: []Change{
			{
				"redis.call('set', free, ms(permits - redis.call('zcard', taken)), 'KEEPTTL')",
				"redis.call('set', free, ms(permits), 'KEEPTTL')",
			},
		},
	},
	{
		Name:    "readerWithoutALease",
		Omits:   "A reader has a lease of its own.",
		Changes: []Change{{"redis.call('set', lease_key(prefix, field, 1), '1', 'PX', ms(longest))", ""}},
	},
	{
		Name:    "permitForTwo",
		Omits:   "A permit that is taken is not available.",
		Changes: []Change{{"redis.call('incrby', free, -#ids)", ""}},
	},
	{
		Name:    "countsOne",
		Omits:   "A hold of several permits takes all of them from those that are available.",
		Changes: []Change{{"redis.call('incrby', free, -#ids)", "redis.call('incrby', free, -1)"}},
	},
	{
		Name:    "partly",
		Omits:   "A waiter for several permits is granted all of them or none.",
		Changes: []Change{{"if room.available >= n then\n        return 'now'", "if true then\n        return 'now'"}},
	},
	{
		Name:    "skips",
		Omits:   "Nobody passes a waiter that has to wait for more permits.",
		Changes: []Change{{"< n and 'never' or 'later'", "< n and 'never' or 'never'"}},
	},
	{
		Name:    "tryAhead",
		Omits:   "A caller ahead of the line takes nothing from a waiter for several permits that is next.",
		Changes: []Change{{"line.size > 0 and wants_several(line, total, channel, how))", "false)"}},
	},
	{
		Name:    "keepsTicket",
		Omits:   "A hold that was renamed is no longer that of the old field.",
		Changes: []Change{{"redis.call('hdel', lock, from)", ""}},
	},
	{
		Name:    "keepsPermits",
		Omits:   "Permits that were renamed are no longer those of the old field.",
		Changes: []Change{{"redis.call('zrem', taken, unpack(old))", ""}},
	},
	{
		Name:    "detachedWithOldLease",
		Omits:   "A hold that is renamed gets the lease that was asked for.",
		Changes: []Change{{"set_lease_of(lock)\n    renamed = true", "renamed = true"}},
	},
	{
		Name:    "commonRepeat",
		Omits:   "In its common case a semaphore gives no permit to a request that has one.",
		Changes: []Change{{"string.format('%.0f', now + ARGV[2]), ARGV[1]) == 1", "string.format('%.0f', now + ARGV[2]), ARGV[1]) == 0"}},
	},
	{
		Name:    "commonWish",
		Omits:   "In its common case a fair lock finds no tombstone.",
		Changes: []Change{{"redis.pcall('exists', KEYS[1], KEYS[2], KEYS[5]) == 0", "redis.pcall('exists', KEYS[1], KEYS[2]) == 0"}},
	},
	{
		Name:    "commonDowngrade",
		Omits:   "In its common case the release of a write lock ends no hold but its own.",
		Changes: []Change{{"== 2 then\n    local record = redis.pcall('hmget', KEYS[1], 'mode', ARGV[1] ..", "> 1 then\n    local record = redis.pcall('hmget', KEYS[1], 'mode', ARGV[1] .."}},
	},
	{
		Name:    "commonDetached",
		Omits:   "In its common case the release of a read lock buries no detached reader.",
		Changes: []Change{{"ARGV[1]:sub(37, 39) ~= ':0:' and", ""}},
	},
	{
		Name:    "commonListener",
		Omits:   "In its common case the release of a lock has no listener.",
		Changes: []Change{{"received = deleted == 1 and redis.pcall(ARGV[3], ARGV[2], '0')\n    if received == 0 then", "received = deleted == 1 and redis.pcall(ARGV[3], ARGV[2], '0')\n    if received then"}},
	},
}
