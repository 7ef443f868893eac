-- Takes the claim of a request that was handed over, or only looks at the record.
--
-- KEYS[1] record, as in idem_claim.lua
-- ARGV[1] token
-- ARGV[2] fingerprint; empty: look, and change nothing
-- ARGV[3] lease, in ms
-- ARGV[4] how long the record is kept, in ms
-- ARGV[5] 1: take over nothing that lapsed
-- ARGV[6] ticket: the token of the attempt that handed over
--
-- Returns {'claim', state, ...} as idem_claim.lua; expired if there is no such record, or if
-- the claim is of an attempt that knows nothing of the ticket.
local r = redis.call('HMGET', KEYS[1], 'v', 't', 'f', 's', 'g', 'u', 'm', 'h', 'r', 'e', 'l')
local token, state, generation, ends, ticket = r[2], r[4], tonumber(r[5]), tonumber(r[6]), r[8]
local look = ARGV[2] == ''

if not token and redis.call('EXISTS', KEYS[1]) == 0 then
	return {'claim', 'expired'}
elseif r[1] ~= '1' or not token or not r[3] or not generation then
	return {'claim', 'damaged'}
elseif not look and r[3] ~= ARGV[2] then
	return {'claim', 'mismatch'}
elseif state == 'd' and r[9] then
	return {'claim', 'completed', r[9]}
elseif state == 'x' then
	return {'claim', 'unavailable'}
elseif state ~= 'c' or not ends then
	return {'claim', 'damaged'}
elseif not look and ticket ~= ARGV[6] and token ~= ARGV[6] then
	return {'claim', 'expired'}
elseif not look and token == ARGV[1] then
	return {'claim', 'granted', generation, r[11] or nil}
end

local t = redis.call('TIME')
local time = t[1] * 1000 + math.floor(t[2] / 1000)
if not look and ticket ~= ARGV[6] then -- about to be handed over, perhaps
	if time < ends then
		return {'claim', 'in-flight', ends - time, 0}
	end
	return {'claim', 'expired'}
end
if look and ticket and ticket ~= '-' and not r[7] and ARGV[5] ~= '1' then
	ends = math.max(ends, tonumber(r[10]) or 0)
end
local free = not look and (token == ticket or token == '-') -- never taken, or given up
if not free then
	if time < ends then
		return {'claim', 'in-flight', ends - time, 0, look and r[9] ~= '' and r[9] or nil}
	elseif r[7] or ARGV[5] == '1' then
		return {'claim', 'unknown'}
	end
end
if token ~= ticket then
	generation = generation + 1
end
if not look then
	redis.call('HSET', KEYS[1], 't', ARGV[1], 'g', string.format('%.0f', generation),
		'u', string.format('%.0f', time + ARGV[3]))
	redis.call('PEXPIRE', KEYS[1], ARGV[4], 'GT')
end
return {'claim', 'granted', generation, r[11] or nil}
