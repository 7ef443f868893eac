-- Notes that the effect of a claim is about to happen, and extends its lease:
-- after this no other attempt takes the record over. Or notes that the claim is handed over.
--
-- KEYS[1] record
-- ARGV[1] token
-- ARGV[2] lease, in ms
-- ARGV[3] how long the record is kept, in ms
-- ARGV[4] m: mark, or h: hand over
--
-- Returns 'marked', or 'lost' if the record is not the token's.
local r = redis.call('HMGET', KEYS[1], 't', 's', 'u')
if r[1] ~= ARGV[1] then
	return 'lost'
elseif r[2] ~= 'c' then
	return 'marked' -- it is done, which holds more
end
local t = redis.call('TIME')
local ends = t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[2]
ends = math.max(ends, tonumber(r[3]) or 0)
redis.call('HSET', KEYS[1], ARGV[4], ARGV[4] == 'm' and '1' or ARGV[1], 'u', string.format('%.0f', ends))
redis.call('PEXPIRE', KEYS[1], ARGV[3], 'GT')
return 'marked'
