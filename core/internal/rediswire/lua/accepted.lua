-- Statements that find out whether a lock is offered to an owner (freed.lua). If so, the variable
-- rest has the list without the owner's locker; else it is nil. held has the fields of the owner,
-- q and offer. They are for scripts that have no places.lua.
-- A list may be long, and each text that is made of it takes a microsecond for 1,000 bytes.

local rest
if held[3] == owner then
	local q, id = held[2] or '', string.match(owner, '^(.*):')
	local first = string.find(q, id, 1, true)
	if not first then
		rest = q
	else
		if string.find(string.sub(q, first - 1, first - 1), '^[+-]') then
			first = first - 1
		end
		local comma = string.find(q, ',', first, true)
		if first == 1 then
			rest = comma and string.sub(q, comma + 1) or ''
		else
			rest = string.sub(q, 1, first - 2) .. (comma and string.sub(q, comma) or '')
		end
	end
end
