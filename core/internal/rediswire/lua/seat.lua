-- Statements that give an owner a place (enter). The arguments of enter.lua are in variables
-- of their names (lock, fence, owner, lease, keep, tokens). q is the list of the lockers that
-- wait, and left the part of it that stays; fresh says that no owner holds the lock, and earliest
-- is, where owners have places, a lower bound of their ends. linger is as in places.lua.
-- The first token is in the variable token then.

-- include mint.lua
if not fresh then
	call('PEXPIRE', lock, lease + linger, 'GT')
end
local ends = ceil(time / 1000) + lease
local place, bound = format('%s@%.0f', text, ends), format('%.0f', min(ends, earliest or ends))
if left == q then
	call('HSET', lock, owner, place, 'm', bound)
elseif left == '' then
	call('HSET', lock, owner, place, 'm', bound)
	call('HDEL', lock, 'q')
else
	call('HSET', lock, owner, place, 'm', bound, 'q', left)
end
if fresh and type(redis.pcall('PEXPIRE', lock, lease + linger)) ~= 'number' then
	call('DEL', lock) -- as in acquire.lua
	call('PEXPIRE', lock, lease + linger)
end
