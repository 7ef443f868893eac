-- Claims the record of an idempotency key, or tells what there is.
--
-- KEYS[1] record  hash: v version, t token, f fingerprint, g generation, s state
--                 (c claimed, d done, x done without its response), u end of the
--                 lease in ms, m the effect may have happened, w somebody waits,
--                 r response
-- KEYS[2] tombstone, only where there may be one
-- ARGV[1] token
-- ARGV[2] fingerprint
-- ARGV[3] lease, in ms
-- ARGV[4] how long the record is kept, in ms
-- ARGV[5] 1: mark from the start, and take over nothing that lapsed
-- ARGV[6] 1: whoever asks will wait, and wants to hear of the end
--
-- Returns {'claim', state, ...}: granted, generation | in-flight, ms left, 1 if
-- the end will be announced | completed, response | unavailable | mismatch |
-- unknown | expired | damaged. A second run for the same token returns the same
-- claim and leaves its lease alone. All that fails when memory is full comes
-- first.
local fields = redis.call('HGETALL', KEYS[1])

local function now()
	local t = redis.call('TIME')
	return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Numbers are doubles here, and print as 1.7e+12 unless formatted.
local function text(ms)
	return string.format('%.0f', ms)
end

if #fields == 0 then
	if KEYS[2] and redis.call('EXISTS', KEYS[2]) == 1 then
		return {'claim', 'expired'}
	end
	local ends = text(now() + ARGV[3])
	if ARGV[5] == '1' then
		redis.call('HSET', KEYS[1], 'v', '1', 't', ARGV[1], 'f', ARGV[2], 'g', '1', 's', 'c', 'u', ends, 'm', '1')
	else
		redis.call('HSET', KEYS[1], 'v', '1', 't', ARGV[1], 'f', ARGV[2], 'g', '1', 's', 'c', 'u', ends)
	end
	redis.call('PEXPIRE', KEYS[1], ARGV[4])
	return {'claim', 'granted', 1}
end

local r = {}
for i = 1, #fields, 2 do
	r[fields[i]] = fields[i + 1]
end
local generation, ends = tonumber(r.g), tonumber(r.u)
if r.v ~= '1' or not r.t or not r.f or not generation then
	return {'claim', 'damaged'}
end
-- Before all else: what is here is nobody's business who asks for something else.
if r.f ~= ARGV[2] then
	return {'claim', 'mismatch'}
end
if r.s == 'd' and r.r then
	return {'claim', 'completed', r.r}
elseif r.s == 'x' then
	return {'claim', 'unavailable'}
elseif r.s ~= 'c' or not ends then
	return {'claim', 'damaged'}
elseif r.t == ARGV[1] then
	return {'claim', 'granted', generation}
end

local time = now()
if time < ends then
	local listed = 0
	if ARGV[6] == '1' then
		listed = type(redis.pcall('HSET', KEYS[1], 'w', '1')) == 'number' and 1 or 0
	end
	return {'claim', 'in-flight', ends - time, listed}
end
-- The lease has lapsed. Where the effect may have happened, nobody knows if it
-- did; else the claim is free for the same request.
if r.m or ARGV[5] == '1' then
	return {'claim', 'unknown'}
end
generation = generation + 1
redis.call('HSET', KEYS[1], 't', ARGV[1], 'g', text(generation), 'u', text(time + ARGV[3]))
redis.call('PEXPIRE', KEYS[1], ARGV[4], 'GT')
return {'claim', 'granted', generation}
