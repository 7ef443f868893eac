-- Takes a lock for an owner, or enters a locker into the list of those waiting.
--
-- KEYS[1] lock    hash: the owner's field holds its token, q who waits
-- KEYS[2] fence   string: the last token of the key
-- ARGV[1] owner
-- ARGV[2] lease, in ms
-- ARGV[3] how long the fence is kept, in ms
-- ARGV[4] who waits already, kept with the lock when it is granted; may be empty
-- ARGV[5] the locker that will wait if the lock is held; empty for none
-- ARGV[6] the greatest length of the list, in bytes
--
-- Returns the token when the owner holds the lock, else {holder, its ms left, 1
-- if the locker is in the list}.
-- A second run for the same owner returns the same token and leaves the lease
-- alone, so that a repeated request neither fails nor revives anything.
if redis.call('EXISTS', KEYS[1]) == 0 then
	-- max(last + 1, the server's time in µs): greater than every token before
	-- it, also after the fence was lost, if the clocks agree that far. Numbers
	-- are doubles here: µs fit exactly, but print as 1.79e+15 unless formatted.
	local t = redis.call('TIME')
	local token = t[1] * 1000000 + t[2]
	local text = string.format('%.0f', token)
	local last = tonumber(redis.call('SET', KEYS[2], text, 'PX', ARGV[3], 'GET') or nil)
	if last and last >= token then
		token = last + 1
		text = string.format('%.0f', token)
		redis.call('SET', KEYS[2], text, 'PX', ARGV[3])
	end
	if ARGV[4] == '' then
		redis.call('HSET', KEYS[1], ARGV[1], text)
	else
		redis.call('HSET', KEYS[1], ARGV[1], text, 'q', ARGV[4])
	end
	redis.call('PEXPIRE', KEYS[1], ARGV[2])
	return token
end

local fields = redis.call('HGETALL', KEYS[1])
local holder, q = '', ''
for i = 1, #fields, 2 do
	if fields[i] == ARGV[1] then
		return tonumber(fields[i + 1])
	elseif fields[i] == 'q' then
		q = fields[i + 1]
	else
		holder = fields[i]
	end
end
-- Ids are of one length, so that none is found inside another. When memory is
-- full, or the list long, it does not grow; the locker is told.
local listed = 0
if ARGV[5] ~= '' then
	if string.find(q, ARGV[5], 1, true) then
		listed = 1
	elseif #q < tonumber(ARGV[6]) then
		local set = redis.pcall('HSET', KEYS[1], 'q', q == '' and ARGV[5] or q .. ',' .. ARGV[5])
		listed = type(set) == 'number' and 1 or 0
	end
end
return {holder, redis.call('PTTL', KEYS[1]), listed}
