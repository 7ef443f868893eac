-- Statements that make so many tokens that follow one another: token is the first as a
-- number, and text as a string. The first is max(last + 16, the server's time in µs): greater
-- than every token before it, also after the fence was lost, if the clocks agree that far. It is
-- the time, unless the clock lags the last token. Then spare is set: so many tokens are left out
-- after it, for hand-offs that the server never sees if the holder dies. Else spare is nil,
-- and the clock is ahead of all hand-offs.
-- Numbers are doubles here: µs fit exactly, but print as 1.79e+15 unless formatted.

-- include clock.lua
local token, text, spare = time, stamp, nil
local last = call('SET', fence, tokens == 1 and text or format('%.0f', token + tokens - 1), 'PX', keep, 'GET')
if last and (#last > #text or #last == #text and last >= text) then -- as numbers
	spare = 15
	token = (tonumber(last) or token) + spare + 1
	text = format('%.0f', token)
	call('SET', fence, format('%.0f', token + tokens - 1), 'PX', keep)
end
