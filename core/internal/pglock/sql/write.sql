-- Writes the rows of some locks, unless they are others than the writer has decided on, and reads them then.
--
-- $1 keys, each once
-- $2 the versions of the rows that were decided on; '' for no row
-- $3 records; '' to read the row alone
-- $4 the last tokens      $5 when the last lease ends, or the lock is kept no more, in µs since 1970
-- $6 numbers of calls; 0 where no locker is called      $7 the lockers that are called
-- $8 and $9 for which instants of the clock the decision is good, in µs since 1970
-- $10 lock_timeout: for how many ms the statement waits for the lock of one row
-- $11 off if the statement need not wait for the disk, else on
-- $12 keys of notes, each once      $13 what they say: 0, an owner has handed the lock on; 1, an operator
--     has released it
-- $14 the row that each note goes with, as its index from 1      $15 when the notes end, in µs since 1970
--
-- Returns a row for each key: its index, from 1; whether the row was written; else the
-- record, '' if there is none, the number of the last call, and the called lockers; the clock, in µs since 1970.
--
-- The version is a hash of all that the rules decide by. The number of the transaction that wrote the
-- row (xmin) comes again after a crash, when it was not yet on the disk; what was decided by such a row
-- must not be written over another one. A request outlives the crash where a pooler of connections is in between.
--
-- A row that has another version is not locked: such a transaction writes nothing, and waits for no disk.
WITH conf AS MATERIALIZED (
	SELECT set_config('lock_timeout', $10::text, true) AS bound,
		CASE WHEN 'off' IN ($11::text, current_setting('synchronous_commit')) THEN set_config('synchronous_commit', $11::text, true) END AS flush
), req AS MATERIALIZED (
	SELECT r.*, l.record AS present, l.called AS number, l.names AS lockers,
		-- include version.sql
		AS seen
	FROM conf, unnest($1::bytea[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[], $8::bigint[], $9::bigint[])
		WITH ORDINALITY AS r (key, version, record, token, ends, called, names, first, last, i)
		LEFT JOIN interlock_lock l ON l.key = r.key
), pick AS MATERIALIZED (
	-- In the order of the keys, so that two of these statements do not wait for each other.
	SELECT r.* FROM req r JOIN interlock_lock l ON l.key = r.key
	WHERE r.seen = r.version AND r.record <> '' AND r.version =
		-- include version.sql
	ORDER BY l.key
	FOR NO KEY UPDATE OF l
), changed AS (
	UPDATE interlock_lock l SET
		record = p.record,
		token = p.token,
		lease_until = to_timestamp(0) + p.ends * interval '1 microsecond',
		called = CASE WHEN p.called = 0 THEN l.called ELSE p.called END,
		names = CASE WHEN p.called = 0 THEN l.names ELSE p.names END
	FROM pick p
	WHERE l.key = p.key AND p.version =
		-- include version.sql
		AND clock_timestamp() BETWEEN to_timestamp(0) + p.first * interval '1 microsecond' AND to_timestamp(0) + p.last * interval '1 microsecond'
	RETURNING p.i, clock_timestamp() AS now
), added AS (
	-- After the rows are locked, and in the order of the keys, for the reason above.
	INSERT INTO interlock_lock (key, record, token, lease_until, called, names)
	SELECT r.key, r.record, r.token, to_timestamp(0) + r.ends * interval '1 microsecond', r.called, r.names
	FROM req r
	WHERE r.version = '' AND r.record <> '' AND r.seen IS NULL AND (SELECT count(*) FROM pick) >= 0
		AND clock_timestamp() BETWEEN to_timestamp(0) + r.first * interval '1 microsecond' AND to_timestamp(0) + r.last * interval '1 microsecond'
	ORDER BY r.key
	ON CONFLICT (key) DO NOTHING
	RETURNING key, clock_timestamp() AS now
), noted AS (
	-- A row of its own for each note, or the row of the lock would grow. The sweep deletes them.
	INSERT INTO interlock_lock (key, record, token, lease_until)
	SELECT n.key, '', n.why, to_timestamp(0) + n.ends * interval '1 microsecond'
	FROM unnest($12::bytea[], $13::bigint[], $14::bigint[], $15::bigint[]) AS n (key, why, i, ends)
	WHERE n.i IN (SELECT i FROM changed UNION ALL SELECT r.i FROM added a JOIN req r ON r.key = a.key)
	ORDER BY n.key
	ON CONFLICT (key) DO UPDATE SET token = EXCLUDED.token, lease_until = EXCLUDED.lease_until
)
SELECT r.i, d.now IS NOT NULL AS done, CASE WHEN d.now IS NULL THEN coalesce(r.present, '') ELSE '' END AS record,
	coalesce(r.number, 0) AS called, coalesce(r.lockers, '') AS names,
	(extract(epoch FROM coalesce(d.now, clock_timestamp())) * 1000000)::bigint AS now
FROM req r LEFT JOIN (
	SELECT i, now FROM changed UNION ALL SELECT r.i, a.now FROM added a JOIN req r ON r.key = a.key
) d ON d.i = r.i
