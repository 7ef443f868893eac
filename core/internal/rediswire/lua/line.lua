-- Takes a lock as acquire.lua does, for a caller that is not in turn: the newest caller, or a caller
-- that waits only while no other such caller does. Or, without an owner, takes nothing, and says
-- whether the caller may wait. See places.lua for the layout.
--
-- KEYS[1] lock
-- KEYS[2] fence
-- KEYS[3] line    hash. Of newest callers n is the number of the last that came, and ":" with a locker
--                 "order number" of the last caller of that locker; of the other callers w is the
--                 locker of the only waiting caller
-- ARGV[1] owner; empty to take nothing
-- ARGV[2] lease, in ms
-- ARGV[3] how long fence and number are kept, in ms
-- ARGV[4] the locker that will wait if the lock is held, as for acquire.lua; empty for none
-- ARGV[5] 1: the newest caller, 2: the only one
-- ARGV[6] the number that the caller got before; 0: it comes at this moment
-- ARGV[7] of a newest caller without a number its order: greater for a later caller of the locker
--
-- Returns {token, number, how many tokens are left out after it, or 0 as in acquire.lua} when
-- the owner holds the lock, {0} if the caller must not wait, else
-- {holders, after how many ms to ask again, 1 if the locker is in the list, number}. A newest
-- caller goes before all in the list, and takes a lock that is reserved. The holder gets a message
-- that it comes. So does the locker that it displaces in the list: with the number 0 in place of an
-- owner's.
local KEYS, ARGV, call, format = KEYS, ARGV, redis.call, string.format
local time, stamp -- the server's, in µs
-- include places.lua
-- include want.lua

local lock, fence, line, owner, lease, keep = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3]
local lately = 63 -- lockers of which the last newest caller is known
local newest, number = ARGV[5] == '1', tonumber(ARGV[6])
local id, left = match(ARGV[4], '^(.*)@(%d+)$')
id = id or ARGV[4]
local name, named = match(id, '^(.*)=(%d+)$')
id = name or id
local alone = 1500 -- ms for which the only caller is one without asking again

local has = call('HMGET', lock, owner, 'q', 'm', 'b', 'r', 'offer')
local mine, q, m, r, o = has[1], has[2] or '', has[3], has[5], has[6]
local by = ':' .. bare(id)
local from = newest and call('HMGET', line, 'n', by) or {}
local last = tonumber(from[1]) or 0
if mine and not m then
	-- A repeated request. Its number is not kept, but is about the token.
	local token = tonumber(mine) or 0 -- no lock
	clock()
	return {token, newest and max(number, min(last, token)) or 0, token > time and 15 or 0}
end

-- write sets fields of the line.
local function write(ms, ...)
	call('HSET', line, ...)
	if type(pcall_('PEXPIRE', line, ms)) ~= 'number' then
		call('DEL', line) -- as in grant.lua
		call('PEXPIRE', line, ms)
	end
end

-- bound forgets the locker whose last newest caller came first, where there are many. It needs no more
-- rights than a lock.
local function bound()
	local all = call('HGETALL', line)
	if #all <= 2 * (lately + 1) then
		return
	end
	local oldest, least, kept = 0, math.huge, {}
	for i = 1, #all, 2 do
		local n = tonumber(match(all[i + 1], ' (%d+)$'))
		if n and n < least then
			oldest, least = i, n
		end
	end
	for i = 1, #all do
		if i ~= oldest and i ~= oldest + 1 then
			kept[#kept + 1] = all[i]
		end
	end
	call('DEL', line)
	write(keep, unpack(kept))
end

local comes = newest and number == 0
local others = without(q, id)
if newest then
	if comes then
		local order = tonumber(ARGV[7])
		local before, had = match(from[2] or '', '^(%d+) (%d+)$')
		before, number = tonumber(before), tonumber(had)
		if not before or order > before then
			-- include clock.lua
			last = max(last + 1, time)
			number = last
			local text = format('%.0f', last)
			write(keep, 'n', text, by, ARGV[7] .. ' ' .. text)
			if not before then
				bound()
			end
		elseif order < before then
			return {0} -- a later caller of the locker has asked already
		end
	end
	if number < last then
		return {0}
	end
	if comes then
		local displaced = match(others, '^[+-]?([^,~]+)')
		if displaced then
			pcall_('PUBLISH', match(lock, '^[^{]*') .. 'wanted:' .. displaced, '0 ' .. lock)
		end
	end
end

-- granted takes the lock.
local function granted(rest)
	if not newest and call('HMGET', line, 'w')[1] == bare(id) then
		call('DEL', line)
	end
	-- include grant.lua
	return {token, newest and number or 0, spare or 0}
end

-- refused enters the caller into the list.
local function refused(names, ms)
	local listed, new = 0, q
	if id ~= '' and newest then
		if full(others) then
			others = match(others, '^(.*),') -- the last asks for a place again
		end
		new = others == '' and id or id .. ',' .. others
		listed = (new == q or type(pcall_('HSET', lock, 'q', new)) == 'number') and 1 or 0
	elseif id ~= '' then
		local only = call('HMGET', line, 'w')[1]
		if only and only ~= bare(id) and call('PTTL', line) <= alone then -- else the clock was set back
			return {0}
		end
		number = 1
		write(alone, 'w', bare(id))
		listed, new = enlist(lock, q, id, '')
	end
	if owner ~= '' then -- else its locker has the lock itself
		want(lock, comes and '' or q, id, names)
	end
	return {names, again(ms, listed, new, id), listed, number}
end

if not m and not r and call('EXISTS', lock) == 0 then
	return owner ~= '' and granted() or {'', 0, 0, number}
elseif r then
	local ms, behind = opening(lock, q, bare(id), r, o, named or '')
	if newest and not o then
		ms, behind = 0, others
	end
	if ms > 0 or owner == '' then
		return refused(o or '', ms)
	end
	call('DEL', lock)
	return granted(behind)
elseif not m then
	return refused(holders(lock, 1), call('PTTL', lock))
end
local now = clock()
local n = sweep(lock, has, now)
if n == 0 then
	if owner == '' then
		return {'', 0, 0, number}
	end
	call('DEL', lock)
	return granted(uncalled(others))
end
local reply = refused(holders(lock, n), max(1, min(poll, call('PTTL', lock) - linger)))
local til = now + min(tonumber(left) or 0, longest)
if reply[3] == 1 and til > max(now, barrierOf(has[4], now)) then
	pcall_('HSET', lock, 'b', format('%.0f', til))
end
return reply
