-- Gives up a claim as if it had never been made, and tells the waiting duplicates. If it
-- had taken over from an earlier claim, the earlier claim is left, as a claim that lapsed:
-- an attempt was begun before, and the next claim has to know. A claim that was taken with a
-- ticket goes back to the ticket, for the ticket's own time. A record with steps stays, as a claim that
-- lapsed, and no step is open. It works when memory is full:
-- DEL does, and so does PEXPIRE, after which the script may write as well.
--
-- KEYS[1] record
-- ARGV[1] token
-- ARGV[2] channel
-- ARGV[3] PUBLISH or SPUBLISH
--
-- Returns 'abandoned', 'unannounced' if the waiting duplicates were not notified, or 'lost' if
-- there is no claim of the token, or its interim response is stored.
local r = redis.call('HMGET', KEYS[1], 't', 's', 'w', 'g', 'h', 'e', 'p', 'q', 'i', 'l', 'm')
local ticket, ends = r[5], r[6]
if r[1] ~= ARGV[1] or r[2] ~= 'c' or ticket == ARGV[1] and r[9] == ticket then
	return 'lost'
end
if ticket == ARGV[1] then -- it counts no more, and the one before it does
	ticket, ends = r[7], r[8]
end
local generation = tonumber(r[4]) or 1
if ticket and ticket ~= '-' then
	redis.call('PEXPIRE', KEYS[1], 1, 'GT') -- shortens nothing
	redis.call('HSET', KEYS[1], 't', '-', 'g', string.format('%.0f', generation - 1), 'u', ends, 'h', ticket, 'e', ends)
elseif generation > 1 or r[10] then
	local t = redis.call('TIME')
	redis.call('PEXPIRE', KEYS[1], 1, 'GT') -- shortens nothing
	redis.call('HSET', KEYS[1], 't', '-', 'g', string.format('%.0f', generation - 1),
		'u', string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)), 'h', '-')
else
	redis.call('DEL', KEYS[1])
end
if r[11] == 's' then
	redis.call('HDEL', KEYS[1], 'm', 'o')
end
if r[3] and type(redis.pcall(ARGV[3], ARGV[2], '')) ~= 'number' then
	return 'unannounced'
end
return 'abandoned'
