-- Frees a lock that is kept for waiting lockers (reserve.lua), for an operator: the lockers for
-- which it is kept may have died. All lockers that wait are called, and enter the list anew.
--
-- KEYS[1] lock
-- KEYS[2] fence
-- ARGV[1] the fence that the operator has seen; empty for none. Each grant changes it
-- ARGV[2] PUBLISH or SPUBLISH, as in release.lua
--
-- Returns 1, or 2 if the lockers could not be called, or 0 if the lock is not kept, is offered to
-- a locker (freed.lua), or has been granted since the operator looked.
local has = redis.call('HMGET', KEYS[1], 'r', 'offer')
if not has[1] or has[2] or (redis.call('GET', KEYS[2]) or '') ~= ARGV[1] then
	return 0
end
redis.call('DEL', KEYS[1])
local command, db = string.match(ARGV[2], '^(%u+)(.*)$')
-- Without a list each locker tries at once, and does not wait for dead ones.
return type(redis.pcall(command, KEYS[1] .. ':free' .. db, '')) == 'number' and 1 or 2
