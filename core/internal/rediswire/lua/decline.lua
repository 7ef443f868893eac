-- Takes a locker out of the list of those waiting: its last caller has left. If the lock is
-- reserved for the locker, its turn goes to the lockers after it, and is announced. An offer
-- to the locker stays: the locker gets it, and gives it up by a release of its owner, or a caller
-- that has come since holds the lock by it.
--
-- KEYS[1] lock
-- ARGV[1] the locker
-- ARGV[2] PUBLISH or SPUBLISH, as in release.lua
--
-- Returns 1, or 2 if the turn could not be announced, or 0 if the locker is not in the list.
local KEYS, ARGV, call = KEYS, ARGV, redis.call
local time, stamp
-- include places.lua

local lock, id = KEYS[1], bare(ARGV[1])
if call('HMGET', lock .. ':waiter', 'w')[1] == id then
	call('DEL', lock .. ':waiter') -- line.lua
end
local has = call('HMGET', lock, 'q', 'r', 'offer')
local q, r, o = has[1] or '', has[2], has[3]
if not entry(q, id) then
	return 0
elseif r and call('PTTL', lock) == 0 then
	call('DEL', lock) -- in its last millisecond: the turns of all have ended
	return 0
end
local ms, behind = nil, without(q, id)
if r then
	ms, behind = opening(lock, q, id, r, o, '')
end
if not ms or ms > 0 then
	if o and match(o, '^(.*):') == id then
		return 0
	end
	behind = without(q, id)
	-- A user without the right to delete a field leaves the name there: then the locker is
	-- called in vain, as if it had died.
	if behind ~= '' then
		pcall_('HSET', lock, 'q', behind)
	else
		pcall_('HDEL', lock, 'q')
	end
	return 1
end
call('DEL', lock)
q = behind
-- include reserve.lua
local publish = ARGV[2]
-- include call.lua
return told and 1 or 2
