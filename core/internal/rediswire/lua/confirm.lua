-- Extends the lease that an owner has by vote, never shortens it, and raises the vote to
-- the proposal that won: a withdrawal of an earlier one, which may be on its way, then
-- leaves it alone. Or does so for several locks, each on its own: keys and arguments
-- follow one another.
--
-- KEYS[1] lock
-- ARGV[1] owner
-- ARGV[2] lease, in ms; 0 only looks
-- ARGV[3] the proposal that won; 0 if that is unknown
--
-- Returns 0 if no owner holds the lock, -1 if another owner does, 1 if the owner
-- does, 2 if it does and others wait.
-- For several locks it returns a list; see several.lua.
local KEYS, ARGV, call = KEYS, ARGV, redis.call

local function confirm(lock, owner, lease, ballot)
	local held = call('HMGET', lock, owner, 'q')
	if not held[1] then
		return -call('EXISTS', lock)
	end
	if tonumber(held[1]) < tonumber(ballot) then
		call('HSET', lock, owner, ballot)
	end
	if lease ~= '0' then
		call('PEXPIRE', lock, lease, 'GT')
	end
	return held[2] and 2 or 1
end

if #KEYS == 1 then
	return confirm(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
end
local name, count = 'confirm', #KEYS
local function one(i)
	return confirm(KEYS[i], ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i])
end
