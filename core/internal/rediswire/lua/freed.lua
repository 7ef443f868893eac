-- Statements that give up the lock of an owner (release). The script that includes them sets
-- the locals call, format, time, stamp and room, and, named as the arguments of release.lua, lock,
-- fence, owner, publish, waiter, token and keep. fence, token and keep are nil if the store has
-- the last token already. The answer is in the variable reply then.
--
-- A lock with a list is offered to the first locker of the list, if that takes offers (a capital
-- letter): the token is minted here, and published on the locker's own channel as "=token lock",
-- or "=token+ lock" where others wait. The lock is reserved by then, so that it can be granted to
-- no other. Nothing is offered where the clock lags the token: the offer does not say how many
-- hand-offs may follow (mint.lua). Its owner is "id:token". It is no field yet: renew makes it
-- one, and release gives the lock to the next locker. So a message or request that comes late or
-- again finds another token, and does nothing. A locker without a listening connection on its
-- channel has died, and is passed over. A node of a Cluster does not know who listens elsewhere,
-- and offers nothing.

local held, reply, q = call('HMGET', lock, owner, 'q', 'offer'), 1, nil
if held[1] then
	q = held[2] or ''
else
	-- include accepted.lua
	q = rest
end
if q then
	call('DEL', lock)
	local id = waiter ~= '' and string.match(waiter, '^%+?([^~]*)')
	if id and #q < room and not string.find(q, id, 1, true) then
		q = q == '' and waiter or q .. ',' .. waiter
	end
	if fence then
		-- include remember.lua
	end
	if q ~= '' then
		local most, head = 5, ''
		local offers, minted, offer, first, rest = publish ~= 'SPUBLISH', nil, nil, nil, nil -- rest: where the others begin
		repeat
			first, rest = string.match(q, '^([^,~+]+)~%u,?()')
			if first and offers and not minted then
				-- What fails here, for want of a right, must not undo the release.
				local _, made = pcall(function()
					local fence, keep, tokens = fence or lock .. ':fence', keep or 120000, 1
					-- include mint.lua
					return {not spare and text}
				end)
				minted = made[1]
				offers = not not minted
			end
			offer = first and offers and first .. ':' .. minted or nil
			-- include reserve.lua
			local reached = offer and reserved and redis.pcall(publish, string.match(lock, '^[^{]*') .. 'wanted:' .. first,
				'=' .. minted .. (rest > #q and '' or '+') .. ' ' .. lock)
			local again = offer and (type(reached) ~= 'number' or reached == 0)
			if again then
				redis.pcall('DEL', lock)
				q, offers = reached == 0 and string.sub(q, rest) or q, reached == 0
			end
		until not again
		local offered = offer and first
		-- include call.lua
		if not told then
			reply = 2
		elseif called ~= '' and (string.match(called, '^%+?([^~]*)') ~= id or string.find(called, ',', 1, true)) then
			-- The ids of lockers are of one length, so that a long list need not be read.
			reply = {called, math.floor((#q + 1) / (#called + 1) * #ids + 0.5)}
		end
	end
else
	-- include absent.lua
	reply = why
end
