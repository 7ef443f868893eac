-- Statements that make so many tokens that follow one another: token is the first as a
-- number, and text as a string. The first is max(last + 1, the server's time in µs): greater
-- than every token before it, also after the fence was lost, if the clocks agree that far.
-- Numbers are doubles here: µs fit exactly, but print as 1.79e+15 unless formatted.

-- include clock.lua
local token, text = time, stamp
local last = call('SET', fence, tokens == 1 and text or format('%.0f', token + tokens - 1), 'PX', keep, 'GET')
if last and (#last > #text or #last == #text and last >= text) then -- as numbers
	token = (tonumber(last) or token) + 1
	text = format('%.0f', token)
	call('SET', fence, format('%.0f', token + tokens - 1), 'PX', keep)
end
