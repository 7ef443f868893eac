-- Writes the rows of some locks that read.sql has read, unless they have changed since.
--
-- $1 keys, each once      $2 the versions of the rows; '' where there was none
-- $3 tokens               $4 when the lock ends, or ended, in µs since 1970
-- $5 records; '' for a row without one
-- $6 owners; '' for none, and where there is a record
-- $7 the lockers that wait; where there is a record, the lockers that are called
-- $8 whether lockers are called
-- $9 lock_timeout: for how many ms the statement waits for the lock of one row
-- $10 off if the statement need not wait for the disk, else on
-- $11 keys of notes, each once      $12 what they say: 0, an owner has handed the lock on; 1, an operator
--     has released it
-- $13 the row that each note goes with, as its index from 1      $14 when the notes end, in µs since 1970
--
-- Returns a row for each key that was written: its index, from 1; when lockers were last called,
-- in µs since 1970, 0 for never.
WITH conf AS MATERIALIZED (
	SELECT set_config('lock_timeout', $9::text, true) AS bound,
		CASE WHEN 'off' IN ($10::text, current_setting('synchronous_commit')) THEN set_config('synchronous_commit', $10::text, true) END AS flush
), req AS MATERIALIZED (
	SELECT r.* FROM conf, unnest($1::bytea[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::boolean[])
		WITH ORDINALITY AS r (key, version, token, ends, record, owner, list, calls, i)
), pick AS MATERIALIZED (
	SELECT r.*,
		-- include version.sql
		AS present
	FROM req r JOIN interlock_lock l ON l.key = r.key
	WHERE r.version <> ''
	ORDER BY l.key
	FOR NO KEY UPDATE OF l
), changed AS (
	UPDATE interlock_lock l SET
		owner = nullif(p.owner, ''),
		token = p.token,
		lease_until = to_timestamp(0) + p.ends * interval '1 microsecond',
		waiters = CASE WHEN p.calls OR p.record = '' THEN string_to_array(p.list, ',') WHEN l.record IS NULL THEN '{}' ELSE l.waiters END,
		called_at = CASE WHEN p.calls THEN clock_timestamp() ELSE l.called_at END,
		record = nullif(p.record, '')
	FROM pick p
	WHERE l.key = p.key AND p.present = p.version
	RETURNING p.i, l.called_at
), added AS (
	-- After the rows are locked, and in the order of the keys; see acquire.sql.
	INSERT INTO interlock_lock (key, owner, token, lease_until, waiters, record)
	SELECT r.key, nullif(r.owner, ''), r.token, to_timestamp(0) + r.ends * interval '1 microsecond',
		string_to_array(r.list, ','), nullif(r.record, '')
	FROM req r
	WHERE r.version = '' AND (SELECT count(*) FROM pick) >= 0
	ORDER BY r.key
	ON CONFLICT (key) DO NOTHING
	RETURNING key, called_at
), noted AS (
	-- A row of its own for each note, or the row of the lock would grow. The sweep deletes them.
	INSERT INTO interlock_lock (key, token, lease_until)
	SELECT n.key, n.why, to_timestamp(0) + n.ends * interval '1 microsecond'
	FROM unnest($11::bytea[], $12::bigint[], $13::bigint[], $14::bigint[]) AS n (key, why, i, ends)
	WHERE n.i IN (SELECT i FROM changed UNION ALL SELECT r.i FROM added a JOIN req r ON r.key = a.key)
	ORDER BY n.key
	ON CONFLICT (key) DO UPDATE SET token = EXCLUDED.token, lease_until = EXCLUDED.lease_until
)
SELECT c.i, coalesce((extract(epoch FROM c.called_at) * 1000000)::bigint, 0) AS called FROM changed c
UNION ALL
SELECT r.i, 0 FROM added a JOIN req r ON r.key = a.key
