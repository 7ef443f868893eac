-- Takes a lock for an exclusive owner, or enters a locker into the list of those
-- waiting. Or does so for several locks, each on its own, where one server has them all:
-- their keys and arguments then follow one another; the common arguments, all but the owners,
-- may be there once, after the owners. See places.lua for the layout.
--
-- KEYS[1] lock    hash: the owner's field holds its token, q the waiting lockers. Without
--                 an owner it has r, and is reserved for the first of these (reserve.lua), or
--                 has been offered to that (freed.lua)
-- KEYS[2] fence   string: the last token of the key
-- ARGV[1] owner
-- ARGV[2] lease, in ms
-- ARGV[3] how long the fence is kept, in ms
-- ARGV[4] the locker that will wait if the lock is held; empty for none. It may end with
--         "~" and a letter, how long it may take to answer a call, with "=token", an offer to
--         the locker that the owner wants the lock in place of, and with "@ms", ms being
--         how long its caller still waits: for as long, but for a short time only, no new
--         places are granted ahead of it
--
-- Returns the token when the owner holds the lock, or {token, number of tokens left out after
-- it} where the clock lags the token, else {holders, after how many ms to ask again, 1 if the
-- locker is in the list, the token of the exclusive holder, or of the offer, if there is one};
-- for several locks a list, see several.lua. The second is the rest of an exclusive holder's
-- lease, or at most 1 s where owners have places; where the lock is reserved, the time until
-- the turn of the locker, or of all. Holders are joined by commas, and are not named if they
-- are many.
-- A second run for the same owner returns the same token and leaves the lease
-- alone, so that a repeated request neither fails nor revives anything.
local KEYS, ARGV, call, format = KEYS, ARGV, redis.call, string.format
local time, stamp -- the server's, in µs

-- Most requests find their lock free, and make no function at all: Lua makes them anew in
-- each run, and that took as long as two commands.
local count = #KEYS / 2
if count == 1 and call('EXISTS', KEYS[1]) == 0 then
	local lock, fence, owner, lease, keep, rest = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
	-- include grant.lua
	return spare and {token, spare} or token
end

-- contended returns the function that tries to take a lock that has a holder, or had one
-- a moment ago.
local function contended()
	-- include places.lua
	-- include want.lua
	local function grant(lock, fence, owner, lease, keep, rest)
		-- include grant.lua
		return spare and {token, spare} or token
	end

	return function(lock, fence, owner, lease, keep, waiter)
		local has = call('HMGET', lock, owner, 'q', 'm', 'b', 'r', 'offer')
		local mine, q, m, r, o = has[1], has[2] or '', has[3], has[5], has[6]
		local id, left = match(waiter, '^(.*)@(%d+)$')
		id = id or waiter
		local name, named = match(id, '^(.*)=(%d+)$')
		id = name or id
		if r then
			local ms, behind = opening(lock, q, bare(id), r, o, named or '')
			if ms > 0 then
				local listed, new = enlist(lock, q, id, '')
				return {o or '', again(ms, listed, new, id), listed, tonumber((match(o or '', '%d+$')))} -- in parentheses: miniredis has no value where Redis has nil
			end
			call('DEL', lock)
			return grant(lock, fence, owner, lease, keep, behind)
		elseif not m then
			if mine then
				local token = tonumber(mine)
				clock()
				return token and token > time and {token, 15} or token -- as in mint.lua
			end
			local names, token = holders(lock, 1)
			want(lock, q, id, names)
			local listed, new = enlist(lock, q, id, '')
			return {names, again(call('PTTL', lock), listed, new, id), listed, tonumber(token)}
		end

		local now = clock()
		local n = sweep(lock, has, now)
		if n == 0 then
			-- The holders have crashed, and the lockers that wait are still in the list.
			call('DEL', lock)
			return grant(lock, fence, owner, lease, keep, uncalled(without(q, id)))
		end
		local listed = enlist(lock, q, id, '')
		local til = now + min(tonumber(left) or 0, longest)
		if til > max(now, barrierOf(has[4], now)) then
			pcall_('HSET', lock, 'b', format('%.0f', til))
		end
		local names = holders(lock, n)
		want(lock, q, id, names)
		return {names, max(1, min(poll, call('PTTL', lock) - linger)), listed}
	end
end

if count == 1 then
	return contended()(KEYS[1], KEYS[2], unpack(ARGV))
end

local name, held = 'acquire', nil
local common, each = #ARGV == count + 3, #ARGV / count
local function all(replies, from)
	local lease, keep, waiter, rest = ARGV[count + 1], ARGV[count + 2], ARGV[count + 3]
	for i = from, count do
		local lock, fence, owner = KEYS[2 * i - 1], KEYS[2 * i], ARGV[i]
		if not common then
			local a = each * (i - 1)
			owner, lease, keep, waiter = ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
		end
		if call('EXISTS', lock) == 0 then
			-- include grant.lua
			replies[i + 1] = spare and {token, spare} or token
		else
			held = held or contended()
			replies[i + 1] = held(lock, fence, owner, lease, keep, waiter) or false
		end
	end
end
-- several.lua follows (script.go)
