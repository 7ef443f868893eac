-- Gives an owner a place, which it has together with other owners, or enters a locker into
-- the list of those waiting. Or does so for several locks, each on its own, where one server
-- has them all: their keys and arguments then follow one another. See places.lua for
-- the layout.
--
-- KEYS[1] lock
-- KEYS[2] fence   string: the last token of the key
-- ARGV[1] owner
-- ARGV[2] lease, in ms
-- ARGV[3] how long the fence is kept, in ms
-- ARGV[4] how many owners may have places, with this one; 0 for any number
-- ARGV[5] the locker that will wait if it is refused; empty for none
-- ARGV[6] how many tokens are made
--
-- Returns the first token when the owner has a place, else {holders, after how many ms
-- to ask again, 1 if the locker is in the list, 1 if too many have places}; for several
-- locks a list, see several.lua. The second and the holders are as in acquire.lua.
-- A second run for an owner with a live place returns the same token and leaves the
-- lease alone. A place that has ended is not revived: its owner is a new one.
local KEYS, ARGV, call, format = KEYS, ARGV, redis.call, string.format
local time, stamp -- the server's, in µs
local count, held = #KEYS / 2, nil

-- Most requests find that no locker waits and that there is room. They make no function, as in
-- acquire.lua. A refusal costs them a command more.
if count == 1 then
	local lock, fence, owner, keep, atmost, left = KEYS[1], KEYS[2], ARGV[1], ARGV[3], ARGV[4] + 0, ''
	held = call('HMGET', lock, owner, 'q', 'm', 'b')
	local fresh, earliest = not held[3], tonumber(held[3])
	if not held[1] and not held[2] and not held[4] and not (fresh and call('EXISTS', lock) == 1) then
		-- include clock.lua
		if fresh or time < earliest * 1000 and (atmost == 0 or call('HLEN', lock) - 1 < atmost) then
			local lease, tokens, q, ceil, min = ARGV[2] + 0, ARGV[6] + 0, '', math.ceil, math.min
			local linger = 1000 -- as in places.lua
			-- include seat.lua
			return token
		end
	end
end

-- include places.lua
-- include want.lua

-- ahead returns where a locker's entry in the list begins, if no other that wants the lock is
-- before it; else false or nil.
local function ahead(q, id)
	local first = entry(q, bare(id))
	return first and not find(',' .. sub(q, 1, first - 1), ',[^+-]') and first
end

local function enter(held, lock, fence, owner, lease, keep, atmost, id, tokens)
	held = held or call('HMGET', lock, owner, 'q', 'm', 'b')
	local mine, q, m = held[1], held[2] or '', held[3]
	local fresh = not m and call('EXISTS', lock) == 0
	local left, behind
	local kept = not m and not fresh and call('HMGET', lock, 'r', 'offer') or {}
	local reserved, o = kept[1], kept[2]
	if reserved then
		local ms
		ms, behind = opening(lock, q, bare(id), reserved, o, '')
		local first = not o and ahead(q, id)
		if first and (atmost == 0 or select(2, gsub(sub(q, 1, first), ',', '')) < atmost) then
			ms, behind = 0, without(q, id) -- as many come together as there are places
		elseif ms > 0 then
			local listed, new = enlist(lock, q, id, '+')
			return {o or '', again(ms, listed, new, id), listed, 0}
		end
		call('DEL', lock)
		fresh, left = true, behind
	elseif not m and not fresh then
		local names = holders(lock, 1)
		want(lock, q, id, names)
		local listed, new = enlist(lock, q, id, '+')
		return {names, again(call('PTTL', lock), listed, new, id), listed, 0}
	end

	local now, earliest = clock(), nil
	if m then
		local token, ends = match(mine or '', '^(%d+)@(%d+)$')
		if token and tonumber(ends) > now then
			return tonumber(token)
		end
		local n
		n, earliest = sweep(lock, held, now)
		local full, b = atmost > 0 and n >= atmost, barrierOf(held[4], now)
		if full or b > now and not ahead(q, id) then
			local ms, names = (full and earliest or b) - now, holders(lock, n)
			want(lock, q, id, names)
			return {names, max(1, min(poll, ms)), (enlist(lock, q, id, '+')), full and 1 or 0}
		end
	end

	left = left or without(q, id)
	-- include seat.lua
	if behind and left ~= q and find(',' .. left, ',[^+-]') then -- its call comes when those before it have left
		call('HSET', lock, 'b', format('%.0f', now + longest))
	end
	return token
end

if count == 1 then
	return enter(held, KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6]))
end
local name = 'enter'
local function one(i)
	local k, a = 2 * i, 6 * i
	return enter(nil, KEYS[k - 1], KEYS[k], ARGV[a - 5], tonumber(ARGV[a - 4]), ARGV[a - 3], tonumber(ARGV[a - 2]), ARGV[a - 1],
		tonumber(ARGV[a]))
end
-- include each.lua
