-- Extends the lease of an owner's place, never shortens it. Or does so for several
-- places, each on its own, where one server has them all: keys and arguments follow one
-- another. See places.lua for the layout.
--
-- KEYS[1] lock   (alone: a script of two keys cannot run while their slot moves)
-- ARGV[1] owner
-- ARGV[2] lease, in ms; 0 only looks
--
-- Returns 0 if the owner has no place, -1 if another owner holds the lock exclusively, in
-- both cases -2 if an operator has released the place, 1 if the owner has a place, 2 if it has and others wait. A place that has ended is none.
-- For several places it returns a list; see several.lua.
local KEYS, ARGV = KEYS, ARGV
local time, stamp -- the server's, in µs
-- include places.lua

local function stay(lock, owner, lease)
	local held = call('HMGET', lock, owner, 'q', 'm')
	if not held[3] then
		return absent(lock, owner)
	end
	local token, ends = match(held[1] or '', '^(%d+)@(%d+)$')
	local now = clock()
	if not token or tonumber(ends) <= now then
		return absent(lock, owner, true)
	end
	local til = ceil(time / 1000) + lease
	if til > tonumber(ends) then
		-- In this order: when memory is full, the first write of a script must not be
		-- a command that takes memory, and the second may be.
		call('PEXPIRE', lock, lease + linger, 'GT')
		call('HSET', lock, owner, format('%s@%.0f', token, til))
	end
	return held[2] and 2 or 1
end

if #KEYS == 1 then
	return stay(KEYS[1], ARGV[1], tonumber(ARGV[2]))
end
local name, count = 'stay', #KEYS
local function one(i)
	return stay(KEYS[i], ARGV[2 * i - 1], tonumber(ARGV[2 * i]))
end
-- include each.lua
