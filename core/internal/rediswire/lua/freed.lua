-- Statements that give up the lock of an owner (release). The script that includes them sets
-- the locals call and room, and, named as the arguments of release.lua, lock, fence, owner,
-- publish, waiter, token and keep. fence, token and keep are nil where the store has not to be
-- told the last token. The answer is in the variable reply then.

local held, reply = call('HMGET', lock, owner, 'q'), 1
if held[1] then
	call('DEL', lock)
	local q = held[2] or ''
	if waiter ~= '' and select(2, string.gsub(q, ',', '')) < room - 1 and
		not string.find(q, string.match(waiter, '^[^~]*'), 1, true) then
		q = q == '' and waiter or q .. ',' .. waiter
	end
	if fence then
		redis.pcall('SET', fence, token, 'PX', keep)
	end
	if q ~= '' then
		-- include reserve.lua
		local command, db = string.match(publish, '^(%u+)(.*)$')
		if type(redis.pcall(command, lock .. ':free' .. db, q)) ~= 'number' then
			reply = 2
		elseif q ~= waiter then
			reply = {q}
		end
	end
else
	reply = redis.pcall('EXISTS', lock .. ':revoked:' .. owner) == 1 and -2 or -call('EXISTS', lock)
end
