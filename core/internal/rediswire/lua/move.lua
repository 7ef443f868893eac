-- Moves a held lock, or a place, from one owner to another (driver.AcquireRequest.From). See places.lua for the
-- layout.
--
-- KEYS[1] lock
-- KEYS[2] fence
-- KEYS[3] note    string: its presence says that the former owner has handed the lock on. Not there
--                 if nothing is to be noted. Its name is made of the lock's, ":passed:" and the owner
-- ARGV[1] owner
-- ARGV[2] the former owner
-- ARGV[3] lease, in ms
-- ARGV[4] how long the fence is kept, in ms
-- ARGV[5] the highest token that was given out under the former owner, if the fence may lack it; else 0
-- ARGV[6] PUBLISH or SPUBLISH, as in release.lua
-- ARGV[7] how many tokens are made for a place; 0: the hold is exclusive
-- ARGV[8] how long the note is kept after the end of the former lease, in ms
--
-- Returns the token when the owner holds the lock, or {token, number of tokens left out after it} as
-- acquire.lua does. Else the former owner does not hold it: -3 if it has handed the lock on, -2 if an
-- operator has released it, -1 if another owner holds it, 0 if none does. A second run for the same
-- owner returns the same token and leaves the lease alone.
--
-- The lockers that wait are called if the lock may end earlier than they know. They ask then, and are
-- refused with the new time.
local KEYS, ARGV, call, format = KEYS, ARGV, redis.call, string.format
local time, stamp -- the server's, in µs
-- include places.lua

local lock, fence, noted = KEYS[1], KEYS[2], KEYS[3]
local owner, from, lease, keep, above, tokens = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[7])
local place = tokens > 0
local held = call('HMGET', lock, owner, 'q', 'm', 'b', from)
local q, m = held[2], held[3]

-- lives returns the token and the end of a hold of the kind that the request asks for.
local function lives(field)
	if not field or place ~= not not m then
		return
	elseif not place then
		return field
	end
	local token, ends = match(field, '^(%d+)@(%d+)$')
	if token and tonumber(ends) > clock() then
		return token, tonumber(ends)
	end
end

local mine = lives(held[1])
if mine then
	mine = tonumber(mine)
	clock()
	return not place and mine > time and {mine, 15} or mine
end
local token, ends = lives(held[5])
if not token then
	if pcall_('EXISTS', lock .. ':passed:' .. from) == 1 then
		return -3
	end
	return absent(lock, from, place and m)
end
local left = place and ends - clock() or call('PTTL', lock)

-- A full server refuses the first write of a script if it may need memory, and no write after that. This
-- one needs none, and changes nothing: a holder has to be able to hand its lock over.
call('PEXPIRE', lock, 1, 'GT')
tokens = max(tokens, 1)
-- include mint.lua
if above > (spare and token - spare - 1 or token - 1) then
	spare = 15
	token = above + spare + 1
	text = format('%.0f', token)
	call('SET', fence, format('%.0f', token + tokens - 1), 'PX', keep)
end
if place then
	local til = ceil(time / 1000) + lease
	call('PEXPIRE', lock, lease + linger, 'GT')
	call('HDEL', lock, from)
	call('HSET', lock, owner, format('%s@%.0f', text, til), 'm', format('%.0f', min(til, tonumber(m))))
else
	-- Without the right to DEL nothing has changed. After it the lock may be free, and never has two owners.
	call('DEL', lock)
	call('HSET', lock, owner, text, unpack(q and {'q', q} or {}))
	if type(pcall_('PEXPIRE', lock, lease)) ~= 'number' then
		call('DEL', lock) -- as in grant.lua
		call('PEXPIRE', lock, lease)
	end
end
if noted then
	pcall_('SET', noted, '1', 'PX', format('%.0f', left + ARGV[8]))
end
if q and not place and lease < left then
	-- In lower case the first locker is called, and not offered the lock (freed.lua).
	local publish, q = ARGV[6], string.gsub(q, '^[^,]*~%u', function(first)
		return string.sub(first, 1, -2) .. string.lower(string.sub(first, -1))
	end)
	-- include call.lua
end
return not place and spare and {token, spare} or token
