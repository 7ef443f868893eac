-- Takes a lock for an exclusive owner, or enters a locker into the list of those
-- waiting. Or does so for several locks, each on its own, where one server has them all:
-- their keys and arguments then follow one another; what they have in common, all but the
-- owners, may be there once, behind the owners. See places.lua for the layout.
--
-- KEYS[1] lock    hash: the owner's field holds its token, q the waiting lockers
-- KEYS[2] fence   string: the last token of the key
-- ARGV[1] owner
-- ARGV[2] lease, in ms
-- ARGV[3] how long the fence is kept, in ms
-- ARGV[4] the lockers that wait already, kept with the lock when it is granted; may be empty
-- ARGV[5] the locker that will wait if the lock is held; empty for none. It may be
--         "id@ms", ms being how long its caller still waits: for as long, but for a
--         short time only, no new places are granted ahead of it
--
-- Returns the token when the owner holds the lock, else {holders, after how many ms to
-- ask again, 1 if the locker is in the list}; for several locks a list, see
-- several.lua. The second is what is left of an exclusive holder's lease, or at most
-- 1 s where owners have places. Holders are joined by commas, and are not named if they
-- are many.
-- A second run for the same owner returns the same token and leaves the lease
-- alone, so that a repeated request neither fails nor revives anything.
local KEYS, ARGV = KEYS, ARGV
-- include tokens.lua

-- grant takes a lock that is free.
local function grant(lock, fence, owner, lease, keep, rest)
	local token, text = mint(fence, keep, 1)
	if rest == '' then
		call('HSET', lock, owner, text)
	else
		call('HSET', lock, owner, text, 'q', rest)
	end
	if type(pcall_('PEXPIRE', lock, lease)) ~= 'number' then
		-- A user without that right must leave nothing that never ends. The
		-- second call says why.
		call('DEL', lock)
		call('PEXPIRE', lock, lease)
	end
	return token
end

-- contended returns the function that tries to take a lock that has a holder, or had one
-- a moment ago. Free locks do not need it, and making it would cost them time.
local function contended()
-- include places.lua
local barrier = 1500 -- ms; a live locker asks again after 1 s at most

return function(lock, fence, owner, lease, keep, rest, waiter)
	local has = call('HMGET', lock, owner, 'q', 'm', 'b')
	local mine, q, m = has[1], has[2] or '', has[3]
	local id, left = match(waiter, '^(.*)@(%d+)$')
	id = id or waiter
	if not m then
		if mine then
			return tonumber(mine)
		end
		local names = holders(lock, 1)
		return {names, call('PTTL', lock), enlist(lock, q, id, '')}
	end

	local now = clock()
	local n = sweep(lock, has, now)
	if n == 0 then
		-- The holders have crashed, and those that wait are still in the list.
		call('DEL', lock)
		q = without(q, id)
		return grant(lock, fence, owner, lease, keep, q == '' and rest or uncalled(q))
	end
	local listed = enlist(lock, q, id, '')
	local til = now + min(tonumber(left) or 0, barrier)
	if til > max(now, tonumber(has[4]) or 0) then
		pcall_('HSET', lock, 'b', format('%.0f', til))
	end
	return {holders(lock, n), max(1, min(poll, call('PTTL', lock) - linger)), listed}
end
end

local held
local function acquire(lock, fence, owner, lease, keep, rest, waiter)
	if call('EXISTS', lock) == 0 then
		return grant(lock, fence, owner, lease, keep, rest)
	end
	held = held or contended()
	return held(lock, fence, owner, lease, keep, rest, waiter)
end

if #KEYS == 2 then
	return acquire(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
end
local name, count = 'acquire', #KEYS / 2
local common = #ARGV == count + 4
local function one(i)
	local k, a = 2 * i, 5 * i
	if common then
		return acquire(KEYS[k - 1], KEYS[k], ARGV[i], ARGV[count + 1], ARGV[count + 2], ARGV[count + 3], ARGV[count + 4])
	end
	return acquire(KEYS[k - 1], KEYS[k], ARGV[a - 4], ARGV[a - 3], ARGV[a - 2], ARGV[a - 1], ARGV[a])
end
