-- Frees a lock that is kept for waiting lockers (reserve.lua), for an operator: the lockers for
-- which it is kept may have died. All lockers that wait are called, and enter the list anew.
--
-- KEYS[1] lock
-- KEYS[2] fence
-- ARGV[1] the fence that the operator has seen; empty for none. Each grant changes it
--
-- Returns 1, or 2 if the lockers could not be called, or 0 if the lock is not kept, is offered to
-- a locker (freed.lua), or has been granted since the operator looked.
local has = redis.call('HMGET', KEYS[1], 'r', 'offer', 'q')
if not has[1] or has[2] or (redis.call('GET', KEYS[2]) or '') ~= ARGV[1] then
	return 0
end
redis.call('DEL', KEYS[1])
-- Without a list each locker tries at once, and does not wait for dead ones.
local told = true
for id in string.gmatch(has[3] or '', '[+-]?([^,~]+)[^,]*') do
	local answer = redis.pcall('PUBLISH', string.match(KEYS[1], '^[^{]*') .. 'wanted:' .. id, ': ' .. KEYS[1])
	told = told and type(answer) == 'number'
end
return told and 1 or 2
