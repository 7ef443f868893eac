-- Statements that read the server's clock, once in each run: time is in µs, and stamp the
-- same as text.

if not time then
	local t = call('TIME')
	time, stamp = t[1] * 1000000 + t[2], format('%s%06d', t[1], t[2])
end
