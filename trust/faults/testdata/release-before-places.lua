-- Gives up the lock of an owner and tells those who wait, in their order. Or does
-- so for several locks, each on its own, where one server has them all: their keys
-- and arguments then follow one another, for all with a fence or for all without.
--
-- KEYS[1] lock
-- KEYS[2] fence, only when the store has to be told the last token
-- ARGV[1] owner
-- ARGV[2] PUBLISH or SPUBLISH, to the channel with the name of the lock and ":free"
-- ARGV[3] a locker that wants the lock again, after the others; empty for none. It
--         does not get into a full list, which those in it would keep for themselves
-- ARGV[4] the last token given out under this owner
-- ARGV[5] how long the fence is kept, in ms
--
-- Returns 1, 2 if the release could not be announced, or where the owner does not
-- hold the lock 0 if nobody does and -1 if somebody else does. It frees by deleting
-- only, which works when memory is full; what may fail comes after, and does not
-- undo it. For several locks it returns a list of these, or of the texts of errors,
-- behind its name: inside of a list go-redis would take an error for the end of it.
local KEYS, ARGV, call, pcall_ = KEYS, ARGV, redis.call, redis.pcall
local limit = 2048 -- from how many bytes the list is full, as in acquire.lua

local function release(lock, fence, owner, publish, waiter, token, keep)
	local held = call('HMGET', lock, owner, 'q')
	if not held[1] then
		return -call('EXISTS', lock)
	end
	call('DEL', lock)
	local q = held[2] or ''
	if waiter ~= '' and #q < limit and not string.find(q, waiter, 1, true) then
		q = q == '' and waiter or q .. ',' .. waiter
	end
	if fence then
		pcall_('SET', fence, token, 'PX', keep)
	end
	if q ~= '' and type(pcall_(publish, lock .. ':free', q)) ~= 'number' then
		return 2
	end
	return 1
end

if #ARGV == 3 then
	return release(KEYS[1], nil, ARGV[1], ARGV[2], ARGV[3])
elseif #ARGV == 5 then
	return release(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
end
local fenced = 2 * #ARGV == 5 * #KEYS
local replies = {'release'}
for i = 1, fenced and #KEYS / 2 or #KEYS do
	local ok, reply
	if fenced then
		local k, a = 2 * i, 5 * i
		ok, reply = pcall(release, KEYS[k - 1], KEYS[k], ARGV[a - 4], ARGV[a - 3], ARGV[a - 2], ARGV[a - 1], ARGV[a])
	else
		local a = 3 * i
		ok, reply = pcall(release, KEYS[i], nil, ARGV[a - 2], ARGV[a - 1], ARGV[a])
	end
	if not ok then
		reply = reply.err or reply -- of this lock alone
		if string.find(reply, '^READONLY') then
			return {err = reply} -- of the server: go-redis has to see it, and connects anew
		end
	end
	replies[i + 1] = reply
end
return replies
