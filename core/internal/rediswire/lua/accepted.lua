-- Statements that find out whether a lock is offered to an owner (freed.lua). If so, the variable
-- rest has the list without the owner's locker; else it is nil. They are for scripts that have no
-- places.lua.

local offered, rest = call('HMGET', lock, 'offer', 'q'), nil
if offered[1] == owner then
	local id = string.gsub(string.match(owner, '^(.*):'), '%p', '%%%0')
	rest = string.sub(string.gsub(',' .. (offered[2] or ''), ',[+-]?' .. id .. '[^,]*', '', 1), 2)
end
