-- Finds the notes that owners have handed a lock on, or that an operator has released it.
--
-- $1 keys of notes
--
-- Returns a row for each note that there is and that has not ended: its index, from 1; what it says.
SELECT r.i, l.token AS why
FROM unnest($1::bytea[]) WITH ORDINALITY AS r (key, i) JOIN interlock_lock l ON l.key = r.key
WHERE l.lease_until > clock_timestamp()
