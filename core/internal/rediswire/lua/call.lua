-- Statements that call the first lockers of the list q (release, leave, decline, move): the four for which
-- a lock is kept, and the next one, which asks when those do not come. Each gets the message ":", the
-- list of the called lockers, a space and the name of the lock, on its own channel. The list has "." in
-- place of the ids of the other lockers. Lockers that are not called get no message.
-- publish, lock, q and most are set, head goes before the list (leave.lua), and offered is nil or the id of
-- the first locker if it has been offered the lock. Afterwards called is the list, and told says whether
-- the messages were sent. On a node of a Cluster PUBLISH reaches the connections of all nodes.

local called, told, ids, names = {}, true, {}, {}
for sign, id, patience in string.gmatch(q, '([+-]?)([^,~]+)([^,]*)') do
	local n = #ids + 1
	ids[n], names[n], called[n] = id, sign .. '.' .. patience, sign .. id .. patience
	if n == most then
		break
	end
end
for n, id in ipairs(ids) do
	if id ~= offered then
		local other = names[n]
		names[n] = called[n]
		local answer = redis.pcall(publish == 'SPUBLISH' and 'PUBLISH' or publish, string.match(lock, '^[^{]*') .. 'wanted:' .. id,
			':' .. head .. table.concat(names, ',') .. ' ' .. lock)
		names[n], told = other, told and type(answer) == 'number'
	end
end
called = table.concat(called, ',')
