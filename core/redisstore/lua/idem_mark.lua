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
local r = redis.call('HMGET', KEYS[1], 't', 's', 'u', 'h', 'e')
if r[1] ~= ARGV[1] then
	return 'lost'
elseif r[2] ~= 'c' then
	return 'marked' -- it is done, which holds more
end
local t = redis.call('TIME')
local ends = t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[2]
ends = string.format('%.0f', math.max(ends, tonumber(r[3]) or 0))
if ARGV[4] == 'm' then
	redis.call('HSET', KEYS[1], 'm', '1', 'u', ends)
else
	if r[4] and r[4] ~= '-' and r[4] ~= ARGV[1] then
		redis.call('HSET', KEYS[1], 'p', r[4], 'q', r[5])
	end
	redis.call('HSET', KEYS[1], 'h', ARGV[1], 'e', ends, 'u', ends)
end
redis.call('PEXPIRE', KEYS[1], ARGV[3], 'GT')
return 'marked'
