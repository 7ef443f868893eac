-- Stores the steps of a claim, and extends its lease.
--
-- KEYS[1] record
-- ARGV[1] token
-- ARGV[2] lease, in ms
-- ARGV[3] how long the record is kept, in ms
-- ARGV[4] all steps so far; the longer of two texts counts, so that a try that is late changes nothing
-- ARGV[5] name of the last step with an outcome
-- ARGV[6] name of the step that is under way and must not run twice, or empty
--
-- Returns 'stepped', or 'lost' if the record is not the token's, or is done.
local r = redis.call('HMGET', KEYS[1], 't', 's', 'u', 'l', 'm')
local log = r[4] or ''
local n = math.min(#log, #ARGV[4])
if r[1] ~= ARGV[1] or r[2] ~= 'c' or string.sub(log, 1, n) ~= string.sub(ARGV[4], 1, n) then
	return 'lost'
end
local t = redis.call('TIME')
local ends = t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[2]
redis.call('HSET', KEYS[1], 'u', string.format('%.0f', math.max(ends, tonumber(r[3]) or 0)))
if #ARGV[4] > #log then
	redis.call('HSET', KEYS[1], 'l', ARGV[4], 'n', ARGV[5], 'o', ARGV[6])
	if ARGV[6] == '' and r[5] == 's' then
		redis.call('HDEL', KEYS[1], 'm')
	elseif ARGV[6] ~= '' and not r[5] then
		redis.call('HSET', KEYS[1], 'm', 's')
	end
end
redis.call('PEXPIRE', KEYS[1], ARGV[3], 'GT')
return 'stepped'
