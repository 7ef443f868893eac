-- What the scripts share that refuse a lock (acquire, enter), beside places.lua.

-- want tells the holders which listen that a locker waits: their names, which holders has
-- returned, end with "!". The locker tells them that begins the list q, and each that asks
-- again, since what it said may have been lost; so it is said about once a hold. The channel
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
