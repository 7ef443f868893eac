-- Statements that read the server's clock, once in each run: time is a number of µs, and
-- stamp the same as a string.

if not time then
	local t = call('TIME')
	local us = t[2] + 0 -- a number
	time, stamp = t[1] * 1000000 + us, format('%s%06d', t[1], us)
end
