-- The common functions of the scripts that know places (acquire, enter, stay and leave). A
-- place is the hold of an owner that shares a lock with others. The lock's hash then holds
--
-- owner   "token@end" for each place; end is an instant of the server's clock, in ms.
--         The field of an exclusive owner is "token"
-- m       a lower bound of the earliest end. Its presence says that owners have places.
--         Before that instant every place is live, and HLEN counts them
-- q       the lockers that wait, in order. A plain id wants the lock, "+id" wants a
--         place, and "-id" was called to a place and has not come yet
-- b       barrier: until this instant a locker gets a new place only if no plain id is
--         before it in q. An exclusive request moves it on, so that a request
--         of a dead process keeps others out for a short time only
-- r       the lock is free, and reserved for so many ms for the first lockers of q; see
--         reserve.lua. There is no owner then
-- offer   the owner, of the first locker of q, that is offered a reserved lock; see freed.lua
--
-- An id may end with "~" and a letter: how long the locker may take to answer a call.
-- The key stays for at least linger after the last end, so that q is still there when
-- the holders have crashed. All ids are of one length, so that none is found inside
-- another.

local call, pcall_, format, floor = redis.call, redis.pcall, string.format, math.floor
local find, sub, gsub, gmatch, match = string.find, string.sub, string.gsub, string.gmatch, string.match
local ceil, max, min = math.ceil, math.max, math.min
local room = 65536 -- bytes of a list, beyond which no locker is entered: 1,800 lockers
local most, head, offered = 5, '', nil -- for call.lua
local linger = 1000 -- ms
local poll = 1000 -- after how many ms a locker asks again at the latest where owners have places
local longest = 1500 -- ms that a barrier keeps others out; a live locker asks again after poll at most
local few = 16 -- up to how many holders are named
local offer -- none: only a release offers the lock

-- clock returns the server's time in ms, rounded down.
local function clock()
	-- include clock.lua
	return floor(time / 1000)
end

-- uncalled returns a list without calls to a place.
local function uncalled(q)
	return sub((gsub(',' .. q, ',%-', ',+')), 2)
end

-- bare returns the id of a name, without the locker's patience.
local function bare(name)
	return match(name, '^[^~]*')
end

-- entry returns where a locker's entry in the list begins and ends; nil if it is not
-- there. id has no patience.
local function entry(q, id)
	local at = id ~= '' and find(q, id, 1, true)
	if at then
		return find(sub(q, at - 1, at - 1), '^[+-]') and at - 1 or at, (find(q, ',', at, true) or #q + 1) - 1
	end
end

-- full reports whether the list has no room for another locker.
local function full(q)
	return #q >= room
end

-- enlist enters a locker at the end of the list, or changes its wish. When memory
-- is full, or the list long, it does not grow. Returns 1 if the locker is in the list, else 0, and the
-- list.
local function enlist(lock, q, name, sign)
	local first, last = entry(q, bare(name))
	local new
	if first and sub(q, first, last) == sign .. name then
		return 1, q
	elseif first then
		new = sub(q, 1, first - 1) .. sign .. name .. sub(q, last + 1)
	elseif name ~= '' and not full(q) then
		new = q == '' and sign .. name or q .. ',' .. sign .. name
	else
		return 0, q
	end
	return type(pcall_('HSET', lock, 'q', new)) == 'number' and 1 or 0, new
end

-- again bounds after how many ms a locker in the list asks again. A release calls the next lockers by
-- name. If all of these are dead, no message wakes the others: they ask more often, the less often the
-- more they are, so that a list costs 115 requests a second at most.
local function again(ms, listed, q, name)
	if listed == 0 then
		return ms
	end
	local comma = 0
	for _ = 1, most do
		comma = find(q, ',', comma + 1, true)
		if not comma then
			return min(ms, 10000)
		end
	end
	if entry(sub(q, 1, comma), bare(name)) then
		return min(ms, 10000)
	end
	return min(ms, max(1500, floor(#q / 4)))
end

-- without returns a list that lacks a locker.
local function without(q, name)
	local first, last = entry(q, bare(name))
	if not first then
		return q
	elseif first == 1 then
		return sub(q, last + 2)
	end
	return sub(q, 1, first - 2) .. sub(q, last + 1)
end

-- sweep deletes the places that have ended, if there may be any, and returns how many
-- are left and a lower bound of their ends. held has the fields q, m and b after
-- another one.
local function sweep(lock, held, now)
	local m = tonumber(held[3])
	if now < m then
		return call('HLEN', lock) - (held[2] and 2 or 1) - (held[4] and 1 or 0), m
	end
	local fields = call('HGETALL', lock)
	local live, over, earliest = 0, {}, nil
	for i = 1, #fields, 2 do
		local name = fields[i]
		if name ~= 'q' and name ~= 'm' and name ~= 'b' then
			local ends = tonumber(match(fields[i + 1], '@(%d+)$') or 0)
			if ends <= now then
				over[#over + 1] = name
			else
				live = live + 1
				earliest = min(earliest or ends, ends)
			end
		end
	end
	for i = 1, #over, 1000 do -- unpack has a limit
		call('HDEL', lock, unpack(over, i, min(i + 999, #over)))
	end
	if live > 0 then
		pcall_('HSET', lock, 'm', format('%.0f', earliest)) -- a lower one only costs time
	end
	return live, earliest
end

-- opening returns in how many ms the turn of a locker begins if a lock is reserved for it, or
-- the reservation ends, and if that has come the list of the lockers that it does not pass over. The locker
-- that is offered the lock, as the owner o, has its turn if it names the token of the offer.
-- Else its request may be a late one, and the locker uses the offer by now: its turn begins when
-- the offer has ended.
local function opening(lock, q, id, reserved, o, named)
	local ms, all, behind = 0, tonumber(reserved), nil
	local to = o and match(o, '^(.*):')
	for name, letter, after in gmatch(q, '%+?([^,~]+)~?(%a?),?()') do
		if name == id then
			behind = sub(q, after)
			break
		elseif letter == '' or ms >= all then -- no turn begins later, so a long list is not read to its end
			break
		end
		-- include patience.lua
		if name == to then
			-- include offered.lua
		end
		ms = ms + patience
	end
	if o and o == id .. ':' .. named then
		ms, behind = 0, without(q, id)
	elseif o then
		local patience = ms -- also where another locker goes before all by now
		-- include offered.lua
		ms = patience
	end
	local left = call('PTTL', lock)
	if left > all then -- the clock was set back: the time begins anew
		left = all
		call('PEXPIRE', lock, all)
	end
	ms = (behind and min(ms, all) or all) - (all - left)
	return ms, ms <= 0 and (behind or without(q, id)) or nil
end

-- barrierOf returns until when the barrier in a field keeps new places out. A barrier that ends later
-- than any is of before the clock was set back, and is over.
local function barrierOf(field, now)
	local til = tonumber(field) or 0
	return til <= now + longest and til or 0
end

-- absent says why an owner has no place. places says that others have, so that none holds the lock
-- exclusively.
local function absent(lock, owner, places)
	-- include absent.lua
	return places and why == -1 and 0 or why
end

-- holders names the owners that hold a lock, if they are few, and returns the field of
-- the last one: the token of an exclusive holder.
local function holders(lock, n)
	if n > few then
		return ''
	end
	local fields = call('HGETALL', lock)
	local names, token = {}, nil
	for i = 1, #fields, 2 do
		local name = fields[i]
		if name ~= 'q' and name ~= 'm' and name ~= 'b' and name ~= 'r' and name ~= 'offer' then
			names[#names + 1], token = name, fields[i + 1]
		end
	end
	return table.concat(names, ','), token
end
