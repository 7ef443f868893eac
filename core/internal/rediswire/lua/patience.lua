-- Statements that say for how many ms the lock is kept for a locker that was called. letter is
-- the letter after its id: "a" is 5 ms, and each letter is the square root of two times the
-- letter before it, up to 1 s. A capital letter stands for the same: its locker takes offers
-- (freed.lua). The answer is in the variable patience then.

local patience = math.min(1000, math.floor(5 * 2 ^ ((string.byte(string.lower(letter)) - 97) / 2)))
