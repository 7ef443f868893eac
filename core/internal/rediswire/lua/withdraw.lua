-- Gives up what an owner holds by vote, and tells the waiting lockers. Their list stays for a while,
-- with no owner, until one of them has the lock.
--
-- KEYS[1] lock
-- KEYS[2] fence
-- ARGV[1] owner
-- ARGV[2] the highest token given out under this owner; 0 if none was
-- ARGV[3] how long the fence is kept, in ms
-- ARGV[4] the highest proposal that is given up; 0 for all of the owner's
-- ARGV[5] a locker that wants the lock again, after the others; empty for none. It
--         does not get into a full list
-- ARGV[6] channel
-- ARGV[7] PUBLISH, or empty to announce nothing
--
-- Returns 1, the list of the lockers that wait, in a list, if it has others than the fifth
-- argument and was announced, 2 if it could not be, 3 if the owner holds the lock by a
-- higher proposal, which stays, or 0 if it does not hold it. The announcement is
-- the owner, a space, and the waiting lockers; with a limit, after which the owner may try
-- again, it is not the owner but "owner#limit".
-- The fence is never lowered, and it is raised to ARGV[2] also if the owner does not hold
-- the lock: its proposal may yet be on the way, and comes too late then.
local held = redis.call('HMGET', KEYS[1], ARGV[1], 'q')
local given = tonumber(ARGV[2])
local fence, at = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+)@?(%d*)$')
fence = tonumber(fence or 0)
if not held[1] then
	local now
	if at and at ~= '' then
		local t = redis.call('TIME') -- another holder counts on; as in propose.lua
		now = t[1] * 1000000 + t[2]
		fence = fence + math.floor(math.max(0, now - tonumber(at)) * 0.99)
	end
	if given > fence then
		redis.pcall('SET', KEYS[2], string.format(now and '%.0f@%.0f' or '%.0f', given, now), 'PX', ARGV[3])
	end
	return 0
end
local token, limit = tonumber(held[1]), tonumber(ARGV[4])
if limit > 0 and token > limit then
	return 3
end
local q = held[2] or ''
if ARGV[5] ~= '' and #q < 2048 and not string.find(q, ARGV[5], 1, true) then
	q = q == '' and ARGV[5] or q .. ',' .. ARGV[5]
end
redis.call('DEL', KEYS[1])
if q ~= '' and not (type(redis.pcall('HSET', KEYS[1], 'q', q)) == 'number' and type(redis.pcall('PEXPIRE', KEYS[1], 4000)) == 'number') then
	redis.call('DEL', KEYS[1]) -- nothing that never ends
end
-- From here the highest token is known, and does not count on. A fence that
-- cannot be written does, which only asks more of the next proposal.
token = string.format('%.0f', math.max(token, given, fence))
redis.pcall('SET', KEYS[2], token, 'PX', ARGV[3])
local giver = limit > 0 and ARGV[1] .. '#' .. ARGV[4] or ARGV[1]
if q == '' or ARGV[7] == '' then
	return 1
elseif type(redis.pcall(ARGV[7], ARGV[6], giver .. ' ' .. q)) ~= 'number' then
	return 2
end
return q == ARGV[5] and 1 or {q}
