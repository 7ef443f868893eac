-- Gives up the lock of an owner and calls the first of the waiting lockers. Or does
-- so for several locks, each on its own, where one server has them all: their keys
-- and arguments then follow one another, for all with a fence or for all without. The
-- common arguments, without a fence all but the owners, may be there once, after the
-- owners.
--
-- KEYS[1] lock
-- KEYS[2] fence, only when the store does not have the last token
-- ARGV[1] owner
-- ARGV[2] PUBLISH, or on a node of a Cluster SPUBLISH, which makes no offers: a node does not know who
--         listens elsewhere
-- ARGV[3] a locker that wants the lock again, after the others; empty for none. It
--         does not get into a full list
-- ARGV[4] the last token given out under this owner
-- ARGV[5] how long the fence is kept, in ms
--
-- Returns 1, {the lockers that were called (call.lua), how many wait} if there are others than the third
-- argument, 2 if they could not be called, or where the owner does not hold the
-- lock -2 if an operator has released it, else 0 if no owner does and -1 if another owner does. It frees by deleting,
-- which works when memory is full; what may fail comes after, and does not undo it. A lock
-- with a list is then reserved for the first of it, or offered to it (freed.lua). For several locks it returns a list; see several.lua.
local KEYS, ARGV, call, format = KEYS, ARGV, redis.call, string.format
local time, stamp -- the server's, in µs
local room = 65536 -- as in places.lua

if #KEYS == 1 or #KEYS == 2 and #ARGV == 5 then -- without a function, as in acquire.lua
	local lock, fence, owner, publish, waiter, token, keep = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
	-- include freed.lua
	return reply
end

local fenced = 2 * #ARGV == 5 * #KEYS
local name, count = 'release', fenced and #KEYS / 2 or #KEYS
local common = #ARGV == count + 2
local function all(replies, from)
	local publish, waiter, token, keep = ARGV[count + 1], ARGV[count + 2], nil, nil
	for i = from, count do
		local lock, fence, owner = KEYS[i], nil, ARGV[i]
		if fenced then
			local a = 5 * i
			lock, fence = KEYS[2 * i - 1], KEYS[2 * i]
			owner, publish, waiter, token, keep = ARGV[a - 4], ARGV[a - 3], ARGV[a - 2], ARGV[a - 1], ARGV[a]
		elseif not common then
			owner, publish, waiter = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
		end
		-- include freed.lua
		replies[i + 1] = reply
	end
end
-- several.lua follows (script.go)
