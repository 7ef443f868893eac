-- Votes on a proposal: takes a lock together with its fencing token, if the token
-- is above every token that this server has seen for the key.
--
-- KEYS[1] lock    hash: the owner's field holds its token, q the waiting lockers; without an owner
--                 it is free (withdraw.lua)
-- KEYS[2] fence   string: the highest token of the key, "token@time" while its
--                 holder may be counting on from it, "token" once it cannot
-- KEYS[3] mark    string, see package quorum; a server that lost its data has another or none
-- ARGV[1] owner
-- ARGV[2] lease, in ms
-- ARGV[3] how long the fence is kept, in ms
-- ARGV[4] the token proposed; 0 takes no lock and only asks
-- ARGV[5] the locker that will wait if the lock is held; empty for none. If it takes the lock, those
--         before it in the list lose their places, or all if it is not in the list: they ask again
-- ARGV[6] the end of the proposal, in µs by this server's clock: a server that was
--         stopped finds proposals of the past when it runs again
-- ARGV[7] the mark that this server needs to vote
--
-- Returns {1, token, time in µs} when the owner holds the lock, {2, highest
-- token, time} when it is free but the proposal too low, {3, time} when the proposal
-- has ended, {4, time} when the mark is another, else {0, holder, its ms left, 1 if the locker is in the list, time}.
-- A second run of a proposal changes nothing. A higher proposal of the same owner
-- is a new vote, with its whole lease; a lower one comes late and does nothing.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local ballot = tonumber(ARGV[4])
if ballot > 0 then
	if redis.call('GET', KEYS[3]) ~= ARGV[7] then
		return {4, now}
	elseif now > tonumber(ARGV[6]) then
		return {3, now}
	end
end

-- The fence goes first: if memory is full it is refused, and nothing is done.
local function take()
	redis.call('SET', KEYS[2], string.format('%.0f@%.0f', ballot, now), 'PX', ARGV[3])
	redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', ballot))
end

local fields = redis.call('HGETALL', KEYS[1])
if #fields == 0 or #fields == 2 and fields[1] == 'q' then
	local highest = 0
	local token, at = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+)@?(%d*)$')
	if token then
		highest = tonumber(token)
		if at ~= '' then
			-- The last holder never said which tokens it gave out. In its process
			-- each is the last one plus one, and takes more than a microsecond.
			highest = highest + math.floor(math.max(0, now - tonumber(at)) * 0.99)
		end
	end
	if ballot <= highest then
		return {2, highest, now}
	end
	take()
	if fields[2] then
		local q = fields[2] .. ','
		local _, last = string.find(q, ARGV[5] .. ',', 1, true)
		if ARGV[5] ~= '' and last and last < #q then
			redis.call('HSET', KEYS[1], 'q', string.sub(q, last + 1, -2))
		else
			redis.call('HDEL', KEYS[1], 'q')
		end
	end
	if type(redis.pcall('PEXPIRE', KEYS[1], ARGV[2])) ~= 'number' then
		redis.call('DEL', KEYS[1]) -- nothing that never ends; the second call says why
		redis.call('PEXPIRE', KEYS[1], ARGV[2])
	end
	return {1, ballot, now}
end

local holder, q = '', ''
for i = 1, #fields, 2 do
	if fields[i] == ARGV[1] then
		local mine = tonumber(fields[i + 1])
		if ballot <= mine then
			return {1, mine, now}
		end
		take()
		redis.call('PEXPIRE', KEYS[1], ARGV[2], 'GT')
		return {1, ballot, now}
	elseif fields[i] == 'q' then
		q = fields[i + 1]
	else
		holder = fields[i]
	end
end
local listed = 0
if ARGV[5] ~= '' then
	if string.find(q, ARGV[5], 1, true) then
		listed = 1
	elseif #q < 2048 then
		local set = redis.pcall('HSET', KEYS[1], 'q', q == '' and ARGV[5] or q .. ',' .. ARGV[5])
		listed = type(set) == 'number' and 1 or 0
	end
end
return {0, holder, redis.call('PTTL', KEYS[1]), listed, now}
