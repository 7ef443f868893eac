-- Settles a record with an unknown outcome, by the findings of an operator.
--
-- KEYS[1] record
-- KEYS[2] tombstone, only if one is wanted
-- ARGV[1] token, a new one: the attempt that had the claim can change nothing any more
-- ARGV[2] response; empty: there was no effect, and the record goes; with steps it stays, lapsed
-- ARGV[3] how long the record is kept, in ms; an earlier promise is not shortened
-- ARGV[4] 1: a claim that lapsed is unknown also if it is not marked
-- ARGV[5] how long the tombstone is kept, in ms
-- ARGV[6] name of the step that must be open; empty: any, or none
-- ARGV[7] the outcome of the step, which is appended to the steps
--
-- Returns 'resolved', 'damaged', or 'known' if there is nothing to resolve.
local r = redis.call('HMGET', KEYS[1], 'v', 't', 's', 'u', 'm', 'l', 'o')
local ends = tonumber(r[4])
if not r[2] then
	return 'known'
elseif r[1] ~= '1' then
	return 'damaged'
elseif r[2] == ARGV[1] then
	return 'resolved' -- by an earlier try
elseif r[3] == 'd' or r[3] == 'x' then
	return 'known' -- without a lease, if a commit has written the record anew
elseif r[3] ~= 'c' or not ends then
	return 'damaged'
end
local t = redis.call('TIME')
if t[1] * 1000 + math.floor(t[2] / 1000) < ends or not (r[5] or ARGV[4] == '1') then
	return 'known'
end
if ARGV[6] ~= '' then
	if r[7] ~= ARGV[6] then
		return 'known'
	end
	redis.call('HSET', KEYS[1], 'l', (r[6] or '') .. ARGV[7], 'n', ARGV[6])
elseif ARGV[2] == '' and not r[6] then
	redis.call('DEL', KEYS[1])
	return 'resolved'
end
if ARGV[2] == '' then
	redis.call('HDEL', KEYS[1], 'm', 'o')
	redis.call('HSET', KEYS[1], 't', '-', 'u', string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)))
	return 'resolved'
end
redis.call('HSET', KEYS[1], 't', ARGV[1], 's', 'd', 'r', ARGV[2]) -- first: it is refused when memory is full
if r[6] then
	redis.call('HDEL', KEYS[1], 'l', 'n', 'o')
end
redis.call('PEXPIRE', KEYS[1], ARGV[3], 'GT')
if KEYS[2] then
	redis.pcall('SET', KEYS[2], '', 'PX', ARGV[5], 'NX')
	redis.pcall('PEXPIRE', KEYS[2], ARGV[5], 'GT')
end
return 'resolved'
