-- Stores the response of a claim for good, in place of its steps, and tells the waiting duplicates.
--
-- KEYS[1] record
-- KEYS[2] tombstone, only if one is wanted
-- ARGV[1] token
-- ARGV[2] fingerprint
-- ARGV[3] generation
-- ARGV[4] d, x if there is no response to store, or c for an interim response
-- ARGV[5] response
-- ARGV[6] how long the record is kept, in ms; an earlier promise is not shortened
-- ARGV[7] channel
-- ARGV[8] PUBLISH or SPUBLISH
-- ARGV[9] how long the tombstone is kept, in ms
--
-- Returns {'commit', state, ...}: stored, unannounced if it is stored and the waiting
-- duplicates were not notified, or the state of another token: in-flight | completed,
-- response | unavailable | mismatch; for an interim response unknown if the claim is gone. The
-- lease does not matter: as long as no other attempt
-- has taken over, the answer counts. Nor does it matter that the record is gone (the server
-- lost it) or has no owner (the attempt that took over gave the claim up): then this is the
-- only answer there is.
local r = redis.call('HMGET', KEYS[1], 't', 's', 'f', 'w', 'h', 'l')
local token, state, interim = r[1], r[2], ARGV[4] == 'c'
if interim and r[5] == ARGV[1] then
	token = ARGV[1] -- as long as the ticket counts
end
if token and token ~= ARGV[1] and token ~= '-' then
	if r[3] ~= ARGV[2] then
		return {'commit', 'mismatch'}
	elseif state == 'd' then
		return {'commit', 'completed', redis.call('HGET', KEYS[1], 'r') or ''}
	elseif state == 'x' then
		return {'commit', 'unavailable'}
	end
	return {'commit', 'in-flight'}
end
if interim and r[5] ~= ARGV[1] then
	return {'commit', 'unknown'}
elseif token and state ~= 'c' then
	return {'commit', 'stored'} -- by an earlier try; or the final response is
end
if interim then
	redis.call('HSET', KEYS[1], 'r', ARGV[5], 'i', ARGV[1])
else
	redis.call('HSET', KEYS[1], 'v', '1', 't', ARGV[1], 'f', ARGV[2], 'g', ARGV[3], 's', ARGV[4], 'r', ARGV[5])
	if r[6] then
		redis.call('HDEL', KEYS[1], 'l', 'n', 'o')
	end
end
if token then
	redis.call('PEXPIRE', KEYS[1], ARGV[6], 'GT')
else
	redis.call('PEXPIRE', KEYS[1], ARGV[6]) -- GT never applies to a key without an expiry
end
if KEYS[2] then
	redis.pcall('SET', KEYS[2], '', 'PX', ARGV[9], 'NX')
	redis.pcall('PEXPIRE', KEYS[2], ARGV[9], 'GT')
end
if r[4] and type(redis.pcall(ARGV[8], ARGV[7], '')) ~= 'number' then
	return {'commit', 'unannounced'}
end
return {'commit', 'stored'}
