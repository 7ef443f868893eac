-- Statements that take a lock that is free, for an exclusive owner (acquire). rest, the
-- lockers that wait already, may be nil, false or empty. The token is in the variable token
-- then, and spare is as in mint.lua.

local tokens = 1
-- include mint.lua
if (rest or '') == '' then
	call('HSET', lock, owner, text)
else
	call('HSET', lock, owner, text, 'q', rest)
end
if type(redis.pcall('PEXPIRE', lock, lease)) ~= 'number' then
	-- A user without that right must leave nothing that never ends. The
	-- second call says why.
	call('DEL', lock)
	call('PEXPIRE', lock, lease)
end
