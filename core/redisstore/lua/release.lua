-- Gives up the lock of an owner and tells those who wait, in their order.
--
-- KEYS[1] lock
-- KEYS[2] fence, only when the store has to be told the last token
-- ARGV[1] owner
-- ARGV[2] channel
-- ARGV[3] PUBLISH or SPUBLISH
-- ARGV[4] a locker that wants the lock again, after the others; empty for none
-- ARGV[5] the last token given out under this owner
-- ARGV[6] how long the fence is kept, in ms
--
-- Returns 1, 2 if the release could not be announced, or where the owner does not
-- hold the lock 0 if nobody does and -1 if somebody else does. It frees by deleting
-- only, which works when memory is full; what may fail comes after, and does not
-- undo it.
local held = redis.call('HMGET', KEYS[1], ARGV[1], 'q')
if not held[1] then
	return -redis.call('EXISTS', KEYS[1])
end
redis.call('DEL', KEYS[1])
local q = held[2] or ''
if ARGV[4] ~= '' and not string.find(q, ARGV[4], 1, true) then
	q = q == '' and ARGV[4] or q .. ',' .. ARGV[4]
end
if KEYS[2] then
	redis.pcall('SET', KEYS[2], ARGV[5], 'PX', ARGV[6])
end
if q ~= '' and type(redis.pcall(ARGV[3], ARGV[2], q)) ~= 'number' then
	return 2
end
return 1
