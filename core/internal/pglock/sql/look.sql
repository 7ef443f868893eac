-- Looks at locks for which lockers of this process wait. It writes nothing.
--
-- $1 keys      $2 the numbers of the last calls that are known; -1 for none
-- $3 the ends, in µs since 1970, that are known to have passed
--
-- Returns a row for each lock that has news: its index, from 1; whether there is a row; when its last lease
-- ends, in µs since 1970, and whether that has passed; the number of the last call; the called lockers; the
-- record; whether the server only reads; the clock, in µs since 1970. If no lock has news it returns one row, with the index 0.
SELECT coalesce(n.i, 0) AS i, n.key IS NOT NULL AS there, coalesce(n.ends, 0) AS ends, coalesce(n.lapsed, false) AS lapsed,
	coalesce(n.called, 0) AS called, coalesce(n.names, '') AS names, coalesce(n.record, '') AS record,
	current_setting('transaction_read_only')::boolean AS reads, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
FROM (SELECT) one LEFT JOIN (
	SELECT r.i, l.key, (extract(epoch FROM l.lease_until) * 1000000)::bigint AS ends, l.lease_until <= clock_timestamp() AS lapsed,
		l.called, l.names, l.record
	FROM unnest($1::bytea[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS r (key, called, passed, i)
		LEFT JOIN interlock_lock l ON l.key = r.key
	WHERE l.key IS NULL OR l.called <> r.called
		OR l.lease_until <= clock_timestamp() AND (extract(epoch FROM l.lease_until) * 1000000)::bigint <> r.passed
) n ON true
