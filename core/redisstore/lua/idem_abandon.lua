-- Gives up a claim as if it had never been made, and tells the waiting requests. It
-- deletes only, which works when memory is full.
--
-- KEYS[1] record
-- ARGV[1] token
-- ARGV[2] channel
-- ARGV[3] PUBLISH or SPUBLISH
--
-- Returns 'abandoned', or 'lost' if there is no claim of the token.
local r = redis.call('HMGET', KEYS[1], 't', 's', 'w')
if r[1] ~= ARGV[1] or r[2] ~= 'c' then
	return 'lost'
end
redis.call('DEL', KEYS[1])
if r[3] then
	redis.pcall(ARGV[3], ARGV[2], '')
end
return 'abandoned'
