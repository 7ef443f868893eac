-- Takes one lock where that is simple: it is free, and no locker waits for it. Refuses it
-- where nothing is to be noted. It does what acquire.sql does, for a part of its price.
--
-- $1 key      $2 owner      $3 lease, in µs
-- $4 the locker that will wait if the lock is held; '' for none
-- $5 lock_timeout: for how many ms the statement waits for the lock of the row
--
-- Returns 1 if the owner holds the lock, 0 if it does not, 2 to ask acquire.sql, as no row
-- does, 3 if the row has a record; then the other columns of acquire.sql.
WITH conf AS MATERIALIZED (
	SELECT set_config('lock_timeout', $5::text, true) AS bound,
		CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END AS flush
), taken AS (
	UPDATE interlock_lock l SET
		owner = $2::text,
		token = greatest(l.token + 16, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint),
		lease_until = clock_timestamp() + $3::bigint * interval '1 microsecond',
		called_at = NULL
	FROM conf
	WHERE l.key = $1::bytea AND (l.owner IS NULL OR l.lease_until <= clock_timestamp()) AND l.waiters = '{}' AND l.record IS NULL
	RETURNING l.token, CASE WHEN l.token > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint THEN 15 ELSE 0 END::bigint AS room
), added AS (
	INSERT INTO interlock_lock (key, owner, token, lease_until)
	SELECT $1::bytea, $2::text, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
		clock_timestamp() + $3::bigint * interval '1 microsecond'
	FROM conf
	WHERE NOT EXISTS (SELECT FROM taken)
	ON CONFLICT (key) DO NOTHING
	RETURNING token
)
SELECT 1 AS code, token, '' AS holder, room AS remains, false AS listed FROM taken
UNION ALL
SELECT 1, token, '', 0, false FROM added
UNION ALL
SELECT CASE WHEN l.record IS NOT NULL THEN 3
		WHEN l.owner IS NULL OR l.lease_until <= clock_timestamp() OR l.owner = $2::text THEN 2
		WHEN $4::text <> '' AND array_position(l.waiters, $4::text) IS NULL AND (cardinality(l.waiters) < 63 OR EXISTS (
			SELECT FROM unnest(l.waiters) name WHERE split_part(name, '~', 1) = split_part($4::text, '~', 1))) THEN 2
		ELSE 0 END,
	l.token, coalesce(l.owner, ''), (extract(epoch FROM l.lease_until - clock_timestamp()) * 1000000)::bigint,
	$4::text <> '' AND array_position(l.waiters, $4::text) IS NOT NULL
FROM interlock_lock l
WHERE l.key = $1::bytea AND NOT EXISTS (SELECT FROM taken) AND NOT EXISTS (SELECT FROM added)
