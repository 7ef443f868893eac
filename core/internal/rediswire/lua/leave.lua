-- Gives up an owner's place and calls the first of the waiting lockers. Or does so for several
-- places, each on its own, where one server has them all: their keys and arguments then
-- follow one another, for all with a fence or for all without. See places.lua for the
-- layout.
--
-- KEYS[1] lock
-- KEYS[2] fence, only when the store does not have the last token
-- ARGV[1] owner
-- ARGV[2] PUBLISH or SPUBLISH, as in release.lua
-- ARGV[3] a locker that wants a place again, after the others; empty for none. It does
--         not get into a full list
-- ARGV[4] how many owners may have places, as the owner asked for; 0 for any number
-- ARGV[5] the last token given out under this owner
-- ARGV[6] how long the fence is kept, in ms
--
-- Returns 1, 2 if the lockers could not be called, or where the owner has no place 0, or -1 if
-- another owner holds the lock exclusively, or in both cases -2 if an operator has released
-- the place. A place that has ended is none. The first write is a deletion, which works when memory
-- is full. For several places it returns a list; see several.lua.
-- The message is as in call.lua if the lock is free. Else the first k of a list may have places: only
-- these are called, and the list has "*k," before it.
local KEYS, ARGV, call, format = KEYS, ARGV, redis.call, string.format
local time, stamp -- the server's, in µs
local held

-- Most releases are of a lock for which no locker waits, and no place has ended. They make
-- no function, as in acquire.lua.
if #ARGV == 4 and ARGV[3] == '' then
	local lock, owner = KEYS[1], ARGV[1]
	held = call('HMGET', lock, owner, 'q', 'm', 'b')
	if held[1] and held[3] and not held[2] and not held[4] then
		-- include clock.lua
		if time < held[3] * 1000 then
			call('HDEL', lock, owner)
			if call('HLEN', lock) == 1 then
				call('DEL', lock) -- m alone is left
			end
			return 1
		end
	end
end

-- include places.lua

-- invite calls lockers to so many free places, or to one at least. It returns the list
-- that stays, how many were called, and the list to announce, with these first.
-- While no barrier stands, a locker that was called before and has not come has left or
-- died, and loses its place in the list; once a barrier has ended, so do lockers that want
-- the lock. barrier is 0 where there was none.
local function invite(q, free, barrier, now)
	local stays, called, n, from = {}, {}, 0, 1
	for sign, id, after in string.gmatch(q, '([+-]?)([^,]+),?()') do
		if n >= free and #called > 0 or sign == '' and barrier > now then
			break
		end
		from = after
		if sign == '+' then
			n = n + 1
			called[#called + 1] = '+' .. id
			stays[#stays + 1] = '-' .. id
		elseif sign == '-' then
			n = n + 1 -- it may be on its way
			if barrier > now then
				stays[#stays + 1] = '-' .. id
			end
		elseif barrier == 0 then
			stays[#stays + 1] = id
		end
	end
	n = #called
	if from <= #q then
		stays[#stays + 1] = sub(q, from)
		called[#called + 1] = uncalled(sub(q, from))
	end
	return table.concat(stays, ','), n, table.concat(called, ',')
end

local function leave(held, lock, fence, owner, publish, waiter, atmost, token, keep)
	held = held or call('HMGET', lock, owner, 'q', 'm', 'b')
	local mine, q, now = held[1], held[2] or '', clock()
	if not held[3] or tonumber(match(mine or '', '@(%d+)$') or 0) <= now then
		return absent(lock, owner, held[3])
	end
	call('HDEL', lock, owner)
	local n, barrier = sweep(lock, held, now), barrierOf(held[4], now)
	if waiter ~= '' and not full(q) and not find(q, bare(waiter), 1, true) then
		q = q == '' and '+' .. waiter or q .. ',+' .. waiter
	end
	local calls, most, head = '', most, ''
	if n == 0 then
		call('DEL', lock)
		q = uncalled(q)
		-- include reserve.lua
		calls = q
	else
		local stays, k, list = invite(q, atmost - n, barrier, now)
		if k > 0 then
			calls, most, head = list, k, format('*%d,', k)
		end
		if stays == '' and held[2] then
			call('HDEL', lock, 'q')
		elseif stays ~= '' and stays ~= held[2] then
			pcall_('HSET', lock, 'q', stays)
		end
		if barrier > 0 and barrier <= now then
			call('HDEL', lock, 'b')
		end
	end
	if fence then
		-- include remember.lua
	end
	local q = calls
	-- include call.lua
	return told and 1 or 2
end

if #ARGV == 4 then
	return leave(held, KEYS[1], nil, ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]))
elseif #ARGV == 6 then
	return leave(nil, KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6])
end
local fenced = #ARGV == 3 * #KEYS
local name, count = 'leave', fenced and #KEYS / 2 or #KEYS
local function one(i)
	if fenced then
		local k, a = 2 * i, 6 * i
		return leave(nil, KEYS[k - 1], KEYS[k], ARGV[a - 5], ARGV[a - 4], ARGV[a - 3], tonumber(ARGV[a - 2]), ARGV[a - 1], ARGV[a])
	end
	local a = 4 * i
	return leave(nil, KEYS[i], nil, ARGV[a - 3], ARGV[a - 2], ARGV[a - 1], tonumber(ARGV[a]))
end
-- include each.lua
