-- For how many ms a lock is kept for a locker that was called, by the letter after its name:
-- "a" is 5 ms, and each letter is the square root of two times the letter before it, up to 1 s.
-- A name without a letter has the least patience.
least(1000, coalesce(floor(5 * 2 ^ ((ascii(substring(name FROM '~([a-z])$')) - 97) / 2.0)), 5))
