-- Extends the lease of an owner, never shortens it.
--
-- KEYS[1] lock   (alone: a script of two keys cannot run while their slot moves)
-- ARGV[1] owner
-- ARGV[2] lease, in ms; 0 only looks
--
-- Returns 0 if nobody holds the lock, -1 if somebody else does, 1 if the owner
-- does, 2 if it does and others wait.
local held = redis.call('HMGET', KEYS[1], ARGV[1], 'q')
if not held[1] then
	return -redis.call('EXISTS', KEYS[1])
end
if ARGV[2] ~= '0' then
	redis.call('PEXPIRE', KEYS[1], ARGV[2], 'GT')
end
return held[2] and 2 or 1
