-- Claims the record of an idempotency key, or returns its state.
--
-- KEYS[1] record  hash: v version, t token (- after the claim that took over was given
--                 up; the one before it lapsed), f fingerprint, g generation, s state
--                 (c claimed, d done, x done without its response), u end of the
--                 lease in ms, m the effect may have happened (1, or s only while a step is open),
--                 l steps, n the last of them with an outcome, o the open step, w a duplicate waits,
--                 h ticket: the token of the attempt that handed the claim over (- after
--                 a duplicate has the claim), e end of the ticket in ms, p and q the ticket
--                 that this attempt had taken, and its end, r response; of a claim, the interim
--                 response, if it is not empty, i the token of its attempt
-- KEYS[2] tombstone, only where there may be one
-- ARGV[1] token
-- ARGV[2] fingerprint
-- ARGV[3] lease, in ms
-- ARGV[4] how long the record is kept, in ms
-- ARGV[5] 1: mark from the start, and take over nothing that lapsed
-- ARGV[6] 1: the duplicate will wait, and wants a notice of the end
-- ARGV[7] 1: return the response, 0: return its token, since HMGET t r comes
--         right after: copying a response through Lua takes twice as long as
--         all the rest, and this is the script that every replay runs. Request.pair
--         (package rediswire) sets it for each try
--
-- Returns {'claim', state, ...}: granted, generation, steps if there are some | in-flight, ms left, 1 if
-- the end will be announced, interim response if there is one | completed, response | unavailable | mismatch |
-- unknown | expired | damaged; or 'completed ' and the token. A second run for
-- the same token returns the same claim and leaves its lease alone. All that
-- fails when memory is full comes first.
local r = redis.call('HMGET', KEYS[1], 'v', 't', 'f', 's', 'g')
local version, token, state, generation = r[1], r[2], r[4], tonumber(r[5])

if version == '1' and token and r[3] and generation then
	-- Before all else: what is here does not concern a request for something
	-- else.
	if r[3] ~= ARGV[2] then
		return {'claim', 'mismatch'}
	elseif state == 'd' then
		if ARGV[7] == '0' then
			return 'completed ' .. token
		end
		local response = redis.call('HGET', KEYS[1], 'r')
		if response then
			return {'claim', 'completed', response}
		end
		return {'claim', 'damaged'}
	elseif state == 'x' then
		return {'claim', 'unavailable'}
	elseif state ~= 'c' then
		return {'claim', 'damaged'}
	elseif token == ARGV[1] then
		return {'claim', 'granted', generation, redis.call('HGET', KEYS[1], 'l') or nil}
	end
elseif redis.call('EXISTS', KEYS[1]) == 1 then
	return {'claim', 'damaged'}
elseif KEYS[2] and redis.call('EXISTS', KEYS[2]) == 1 then
	return {'claim', 'expired'}
end

local t = redis.call('TIME')
local time = t[1] * 1000 + math.floor(t[2] / 1000)

-- Numbers are doubles here, and print as 1.7e+12 unless formatted.
local function text(number)
	return string.format('%.0f', number)
end

if not token then
	local ends = text(time + ARGV[3])
	if ARGV[5] == '1' then
		redis.call('HSET', KEYS[1], 'v', '1', 't', ARGV[1], 'f', ARGV[2], 'g', '1', 's', 'c', 'u', ends, 'm', '1')
	else
		redis.call('HSET', KEYS[1], 'v', '1', 't', ARGV[1], 'f', ARGV[2], 'g', '1', 's', 'c', 'u', ends)
	end
	redis.call('PEXPIRE', KEYS[1], ARGV[4])
	return {'claim', 'granted', 1}
end

r = redis.call('HMGET', KEYS[1], 'u', 'm', 'h', 'r', 'e', 'l')
local ends = tonumber(r[1])
if not ends then
	return {'claim', 'damaged'}
end
if r[3] and r[3] ~= '-' and not r[2] and ARGV[5] ~= '1' then
	ends = math.max(ends, tonumber(r[5]) or 0)
end
if time < ends then
	local listed = 0
	if r[4] and r[4] ~= '' then
		return {'claim', 'in-flight', ends - time, 0, r[4]}
	end
	if ARGV[6] == '1' then
		listed = type(redis.pcall('HSET', KEYS[1], 'w', '1')) == 'number' and 1 or 0
	end
	return {'claim', 'in-flight', ends - time, listed}
end
-- The lease has lapsed, and the ticket. Where the effect may have happened, it is not known if it
-- did; else the claim is free for the same request.
if r[2] or ARGV[5] == '1' then
	return {'claim', 'unknown'}
end
redis.call('HSET', KEYS[1], 't', ARGV[1], 'g', text(generation + 1), 'u', text(time + ARGV[3]))
if r[3] then
	redis.call('HSET', KEYS[1], 'h', '-', 'p', '-', 'r', '')
end
redis.call('PEXPIRE', KEYS[1], ARGV[4], 'GT')
return {'claim', 'granted', generation + 1, r[6] or nil}
