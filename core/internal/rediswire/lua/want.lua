-- The common functions of the scripts that refuse a lock (acquire, enter), besides places.lua.

-- want tells the holders which listen that a locker waits: their names, which holders has
-- returned, end with "!". The locker tells them that begins the list q, and each that asks
-- again, since its message may have been lost; so there is about one message a hold. The channel
-- of a locker has the prefix of the lock's name in its own, and its name is no key: PUBLISH
-- reaches it from any slot. A user without the right to PUBLISH is not heard, and the holders
-- find it out with their renewals.
local function want(lock, q, id, names)
	if id == '' or q ~= '' and not find(q, bare(id), 1, true) then
		return
	end
	for locker, number in gmatch(names, '([^:,]+):(%d+)!') do
		pcall_('PUBLISH', match(lock, '^[^{]*') .. 'wanted:' .. locker, number .. ' ' .. lock)
	end
end
