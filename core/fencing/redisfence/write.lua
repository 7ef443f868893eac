-- Writes fields of values, all or none: of claimed values if they still are
-- claimed for the same token, of others if no larger token has claimed them.
--
-- KEYS the values, hashes in one slot
-- ARGV[1] 'claimed' or 'any'
-- ARGV[2] and on, for each value: a token, the number of its fields, and a name
--         and a value for each of those
--
-- Returns {'ok'} or {'stale', place, latest token, 0 if there is none}.

-- Tokens are texts of digits: doubles would not tell tokens above 2^53 apart.
local function less(a, b)
	return #a < #b or #a == #b and a < b
end
local first = 2
for i, key in ipairs(KEYS) do
	local token = ARGV[first]
	local fence = redis.call('HGET', key, 'fence')
	-- Claimed is equal, not just "not smaller": after the data was lost, or loaded
	-- again from a backup, the claim is gone, and with it the earlier read.
	if ARGV[1] == 'claimed' and fence ~= token or fence and less(token, fence) then
		return {'stale', i, fence or '0'}
	end
	first = first + 2 + 2 * ARGV[first + 1]
end
first = 2
for _, key in ipairs(KEYS) do
	if redis.call('HLEN', key) == 1 then
		redis.call('PERSIST', key) -- the expiry was the claim's
	end
	redis.call('HSET', key, 'fence', ARGV[first])
	local last = first + 1 + 2 * ARGV[first + 1]
	for field = first + 2, last, 2 do
		redis.call('HSET', key, ARGV[field], ARGV[field + 1])
	end
	first = last + 1
end
return {'ok'}
