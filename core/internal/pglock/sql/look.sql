-- Looks at locks for which lockers of this process wait. It writes nothing.
--
-- $1 keys
--
-- Returns a row for each key: its index, from 1; the token, 0 if there is no row;
-- whether the lock is free because its lease has ended, and whether it is free at all;
-- when waiting lockers were last to look, in µs since 1970, 0 for never, and how many µs
-- ago that was; the list of the lockers that wait; whether the server only reads.
SELECT r.i, coalesce(l.token, 0) AS token,
	l.owner IS NOT NULL AND l.lease_until <= clock_timestamp() AS lapsed,
	l.owner IS NULL OR l.lease_until <= clock_timestamp() AS free,
	coalesce((extract(epoch FROM l.called_at) * 1000000)::bigint, 0) AS called,
	coalesce((extract(epoch FROM clock_timestamp() - l.called_at) * 1000000)::bigint, 0) AS age,
	coalesce(array_to_string(l.waiters, ','), '') AS list,
	current_setting('transaction_read_only')::boolean AS reads
FROM unnest($1::bytea[]) WITH ORDINALITY AS r (key, i)
	LEFT JOIN interlock_lock l ON l.key = r.key
