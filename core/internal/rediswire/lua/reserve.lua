-- Statements that keep a lock that became free for its next lockers (release, leave).
-- The lock's hash then has no owner, but r: for the first locker of the list q the lock is
-- reserved for as long as that locker may take, then for the second, and so on up to the
-- fourth, in all for r ms, after which the key ends. The time that has passed is r less the
-- rest of the key's TTL, so no clock is read. Reserved means only that others are refused
-- (acquire, enter): a lease begins as it does for a free lock. Where the first locker does
-- not say how long it may take, nothing is reserved. If a write fails, the lock is free.
-- lock and q are set, and no locker in q has been called. The lock has been deleted. offer is
-- nil, or the owner that is to be offered the lock (freed.lua), which is the field offer then.
-- Whether the lock is reserved is in the variable reserved then. If it is not offered, the
-- first of q is no locker that takes offers any more.

local kept, n = 0, 0
local capital = string.match(q, '^[^,~]*~()%u')
if capital and not offer then
	q = string.sub(q, 1, capital - 1) .. string.lower(string.sub(q, capital, capital)) .. string.sub(q, capital + 1)
end
for letter in string.gmatch(q, '[^,~]+~?(%a?),?') do
	if n == 4 or letter == '' then
		break
	end
	-- include patience.lua
	if n == 0 and offer then
		-- include offered.lua
	end
	kept, n = kept + patience, n + 1
end
local reserved = kept > 0
	and type(redis.pcall('HSET', lock, 'r', kept, 'q', q, unpack(offer and {'offer', offer} or {}))) == 'number'
if reserved and type(redis.pcall('PEXPIRE', lock, kept)) ~= 'number' then
	redis.pcall('DEL', lock)
	reserved = false
end
