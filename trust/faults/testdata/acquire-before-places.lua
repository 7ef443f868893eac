-- Takes a lock for an owner, or enters a locker into the list of those waiting.
-- Or does so for several locks, each on its own, where one server has them all:
-- their keys and arguments then follow one another.
--
-- KEYS[1] lock    hash: the owner's field holds its token, q who waits
-- KEYS[2] fence   string: the last token of the key
-- ARGV[1] owner
-- ARGV[2] lease, in ms
-- ARGV[3] how long the fence is kept, in ms
-- ARGV[4] who waits already, kept with the lock when it is granted; may be empty
-- ARGV[5] the locker that will wait if the lock is held; empty for none
--
-- Returns the token when the owner holds the lock, else {holder, its ms left, 1
-- if the locker is in the list}; for several locks a list of these, or of the texts
-- of errors, behind the script's name: inside of a list go-redis would take an error
-- for the end of it.
-- A second run for the same owner returns the same token and leaves the lease
-- alone, so that a repeated request neither fails nor revives anything.
local KEYS, ARGV, call, pcall_, format = KEYS, ARGV, redis.call, redis.pcall, string.format
local limit = 2048 -- from how many bytes the list is full: 63 lockers
local time, stamp

local function acquire(lock, fence, owner, lease, keep, rest, waiter)
	if call('EXISTS', lock) == 0 then
		-- max(last + 1, the server's time in µs): greater than every token before
		-- it, also after the fence was lost, if the clocks agree that far. Numbers
		-- are doubles here: µs fit exactly, but print as 1.79e+15 unless formatted.
		if not time then
			local t = call('TIME')
			time = t[1] * 1000000 + t[2]
			stamp = format('%.0f', time)
		end
		local token, text = time, stamp
		local last = call('SET', fence, text, 'PX', keep, 'GET')
		if last and (#last > #text or #last == #text and last >= text) then -- as numbers
			token = (tonumber(last) or token) + 1
			text = format('%.0f', token)
			call('SET', fence, text, 'PX', keep)
		end
		if rest == '' then
			call('HSET', lock, owner, text)
		else
			call('HSET', lock, owner, text, 'q', rest)
		end
		if type(pcall_('PEXPIRE', lock, lease)) ~= 'number' then
			-- A user without that right must leave nothing that never ends. The
			-- second call says why.
			call('DEL', lock)
			call('PEXPIRE', lock, lease)
		end
		return token
	end

	local fields = call('HGETALL', lock)
	local holder, q = '', ''
	for i = 1, #fields, 2 do
		if fields[i] == owner then
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
	if waiter ~= '' then
		if string.find(q, waiter, 1, true) then
			listed = 1
		elseif #q < limit then
			local set = pcall_('HSET', lock, 'q', q == '' and waiter or q .. ',' .. waiter)
			listed = type(set) == 'number' and 1 or 0
		end
	end
	return {holder, call('PTTL', lock), listed}
end

if #KEYS == 2 then
	return acquire(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
end
local replies = {'acquire'}
for i = 1, #KEYS / 2 do
	local k, a = 2 * i, 5 * i
	local ok, reply = pcall(acquire, KEYS[k - 1], KEYS[k], ARGV[a - 4], ARGV[a - 3], ARGV[a - 2], ARGV[a - 1], ARGV[a])
	if not ok then
		reply = reply.err or reply -- of this lock alone
		if string.find(reply, '^READONLY') then
			return {err = reply} -- of the server: go-redis has to see it, and connects anew
		end
	end
	replies[i + 1] = reply
end
return replies
