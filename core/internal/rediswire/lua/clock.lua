-- Statements that read the server's clock, once in each run: stamp is a number of µs as a
-- string, and time the same as a number.

if not time then
	local t = call('TIME')
	local us = t[2]
	stamp = #us == 6 and t[1] .. us or format('%s%06d', t[1], us) -- format costs as much as a command
	time = stamp + 0
end
