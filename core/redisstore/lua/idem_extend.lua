-- Extends the lease of a claim, and the record's time with it; never shortens
-- either.
--
-- KEYS[1] record
-- ARGV[1] token
-- ARGV[2] lease, in ms
-- ARGV[3] how long the record is kept, in ms
--
-- Returns 'renewed', 'done' if there is nothing to renew any more, or 'lost' if
-- the record is not the token's.
local r = redis.call('HMGET', KEYS[1], 't', 's', 'u')
if r[1] ~= ARGV[1] then
	return 'lost'
elseif r[2] ~= 'c' then
	return 'done'
end
local t = redis.call('TIME')
local ends = t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[2]
if ends > (tonumber(r[3]) or 0) then
	redis.call('HSET', KEYS[1], 'u', string.format('%.0f', ends))
end
redis.call('PEXPIRE', KEYS[1], ARGV[3], 'GT')
return 'renewed'
