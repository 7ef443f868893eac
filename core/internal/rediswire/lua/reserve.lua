-- Statements that keep a lock that became free for those whose turn it is (release, leave).
-- The lock's hash then has no owner, but r: for the first locker of the list q the lock is
-- reserved for as long as that locker may take, then for the second, and so on up to the
-- fourth, in all for r ms, after which the key ends. The time that has passed is r less what
-- is left of the key, so no clock is read. Reserved means only that others are refused
-- (acquire, enter): a lease begins as it does for a free lock. Where the first locker does
-- not say how long it may take, nothing is reserved. If a write fails, the lock is free.
-- lock and q are set, and no locker in q has been called. The lock has been deleted.

local kept, n = 0, 0
for letter in string.gmatch(q, '[^,~]+~?(%l?),?') do
	if n == 4 or letter == '' then
		break
	end
	-- include patience.lua
	kept, n = kept + patience, n + 1
end
if kept > 0 and type(redis.pcall('HSET', lock, 'r', kept, 'q', q)) == 'number' and
	type(redis.pcall('PEXPIRE', lock, kept)) ~= 'number' then
	redis.pcall('DEL', lock)
end
