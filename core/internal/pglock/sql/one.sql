-- Does for one lock without notes what write.sql does, for a part of its price.
--
-- The parameters are the first eleven of write.sql, for one lock. Returns its row of an answer.
WITH conf AS MATERIALIZED (
	SELECT set_config('lock_timeout', $10::text, true) AS bound,
		CASE WHEN 'off' IN ($11::text, current_setting('synchronous_commit')) THEN set_config('synchronous_commit', $11::text, true) END AS flush
), changed AS (
	UPDATE interlock_lock l SET
		record = $3::text,
		token = $4::bigint,
		lease_until = to_timestamp(0) + $5::bigint * interval '1 microsecond',
		called = CASE WHEN $6::bigint = 0 THEN l.called ELSE $6::bigint END,
		names = CASE WHEN $6::bigint = 0 THEN l.names ELSE $7::text END
	FROM conf
	WHERE l.key = $1::bytea AND $3::text <> '' AND $2::text =
		-- include version.sql
		AND clock_timestamp() BETWEEN to_timestamp(0) + $8::bigint * interval '1 microsecond' AND to_timestamp(0) + $9::bigint * interval '1 microsecond'
	RETURNING clock_timestamp() AS now
), added AS (
	INSERT INTO interlock_lock (key, record, token, lease_until, called, names)
	SELECT $1::bytea, $3::text, $4::bigint, to_timestamp(0) + $5::bigint * interval '1 microsecond', $6::bigint, $7::text
	FROM conf
	WHERE $2::text = '' AND $3::text <> ''
		AND clock_timestamp() BETWEEN to_timestamp(0) + $8::bigint * interval '1 microsecond' AND to_timestamp(0) + $9::bigint * interval '1 microsecond'
	ON CONFLICT (key) DO NOTHING
	RETURNING clock_timestamp() AS now
)
SELECT 1::bigint AS i, d.now IS NOT NULL AS done, CASE WHEN d.now IS NULL THEN coalesce(l.record, '') ELSE '' END AS record,
	coalesce(l.called, 0) AS called, coalesce(l.names, '') AS names,
	(extract(epoch FROM coalesce(d.now, clock_timestamp())) * 1000000)::bigint AS now
FROM (SELECT coalesce((SELECT now FROM changed), (SELECT now FROM added)) AS now) d LEFT JOIN interlock_lock l ON l.key = $1::bytea
