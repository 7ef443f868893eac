-- Extends the lease of an owner, never shortens it. Or does so for several locks,
-- each on its own, where one server has them all: keys and arguments follow one
-- another.
--
-- KEYS[1] lock   (alone: a script of two keys cannot run while their slot moves)
-- ARGV[1] owner
-- ARGV[2] lease, in ms; 0 only looks
--
-- Returns 0 if no owner holds the lock, -1 if another owner does, 1 if the owner
-- does, 2 if it does and others wait.
-- For several locks it returns a list; see several.lua.
local KEYS, ARGV, call = KEYS, ARGV, redis.call

local function renew(lock, owner, lease)
	local held = call('HMGET', lock, owner, 'q')
	if not held[1] then
		return -call('EXISTS', lock)
	end
	if lease ~= '0' then
		call('PEXPIRE', lock, lease, 'GT')
	end
	return held[2] and 2 or 1
end

if #KEYS == 1 then
	return renew(KEYS[1], ARGV[1], ARGV[2])
end
local name, count = 'renew', #KEYS
local function one(i)
	return renew(KEYS[i], ARGV[2 * i - 1], ARGV[2 * i])
end
