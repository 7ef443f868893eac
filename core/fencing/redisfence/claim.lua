-- Claims values for their holders' tokens, all or none, and reads them: from now
-- on a smaller token can neither claim nor write.
--
-- KEYS the values, hashes in one slot
-- ARGV[1] for how long a value that does not exist stays claimed, in ms
-- ARGV[2] and on: a token for each
--
-- Returns {'ok', {field, value, ...}, ...} or {'stale', place, latest token}.

-- Tokens are texts of digits: doubles would not tell tokens above 2^53 apart.
local function less(a, b)
	return #a < #b or #a == #b and a < b
end
for i, key in ipairs(KEYS) do
	local fence = redis.call('HGET', key, 'fence')
	if fence and less(ARGV[i + 1], fence) then
		return {'stale', i, fence}
	end
end
local reply = {'ok'}
for i, key in ipairs(KEYS) do
	redis.call('HSET', key, 'fence', ARGV[i + 1])
	reply[i + 1] = redis.call('HGETALL', key)
	-- Nothing but the fence: a request for a missing value must not leave
	-- anything for good.
	if #reply[i + 1] == 2 then
		redis.call('PEXPIRE', key, ARGV[1])
	end
end
return reply
