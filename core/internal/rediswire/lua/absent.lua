-- Statements that say why an owner does not hold a lock: -2 if an operator has released it, -1 if
-- another owner holds it, or 0 if none does; it may be kept for the lockers that wait
-- (reserve.lua). The answer is in the variable why then.

local why = redis.pcall('EXISTS', lock .. ':revoked:' .. owner) == 1 and -2
	or call('HMGET', lock, 'r')[1] and 0 or -call('EXISTS', lock)
