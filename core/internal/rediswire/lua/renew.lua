-- Extends the lease of an owner, never shortens it. Or does so for several locks,
-- each on its own, where one server has them all: keys and arguments follow one
-- another. If all have one lease and no vote, it may be there once, after the owners.
--
-- An owner that is offered the lock (freed.lua) becomes its holder.
--
-- Where the owner has the lock by vote, it raises the vote to the proposal that won: a
-- withdrawal of an earlier one, which may be on its way, then leaves it alone.
--
-- KEYS[1] lock   (alone: a script of two keys cannot run while their slot moves)
-- ARGV[1] owner
-- ARGV[2] lease, in ms; 0 only looks
-- ARGV[3] the proposal that won, 0 if that is unknown; not there if there was no vote
--
-- Returns 0 if no owner holds the lock, -1 if another owner does, in both cases -2 if an
-- operator has released it, 1 if the owner holds it, 2 if it does and others wait.
-- For several locks it returns a list; see several.lua.
local KEYS, ARGV, call = KEYS, ARGV, redis.call

local function renew(lock, owner, lease, won)
	local held = call('HMGET', lock, owner, 'q', 'offer')
	if not held[1] then
		-- include accepted.lua
		if rest then
			if lease ~= '0' then
				-- Without the right to this nothing is changed. From here no command fails: a
				-- lock without an owner could be granted to another.
				call('PEXPIRE', lock, lease, 'GT')
				call('DEL', lock)
				call('HSET', lock, owner, string.match(owner, '%d+$'), unpack(rest ~= '' and {'q', rest} or {}))
				call('PEXPIRE', lock, lease)
				redis.pcall('PEXPIRE', lock .. ':fence', lease + 60000, 'GT') -- as an acquire keeps it
			end
			return rest ~= '' and 2 or 1
		end
		-- include absent.lua
		return why
	end
	if won and tonumber(held[1]) < tonumber(won) then
		call('HSET', lock, owner, won)
	end
	if lease ~= '0' then
		call('PEXPIRE', lock, lease, 'GT')
	end
	return held[2] and 2 or 1
end

if #KEYS == 1 then
	return renew(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
end
local name, count, each = 'renew', #KEYS, #ARGV / #KEYS
local common = #ARGV == count + 1
local function one(i)
	if common then
		return renew(KEYS[i], ARGV[i], ARGV[count + 1])
	end
	local first = each * (i - 1)
	return renew(KEYS[i], ARGV[first + 1], ARGV[first + 2], each > 2 and ARGV[first + 3])
end
-- include each.lua
