-- Extends leases, never shortens one.
--
-- $1 keys, each once      $2 owners      $3 leases, in µs; 0 only looks
-- $4 lock_timeout: for how many ms the statement waits for the lock of one row
--
-- Returns a row for each key: its index, from 1; 0 if no owner holds the lock, -1 if
-- another one does, 1 if the owner does, 2 if it does and others wait, 3 if the row has a record.
--
-- A lease that is long enough already is written as well: an earlier renewal may have
-- ended its wait for a synchronous standby without the standby, and this one waits for
-- it.
WITH conf AS MATERIALIZED (
	SELECT set_config('lock_timeout', $4::text, true) AS bound,
		CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END AS flush
), req AS MATERIALIZED (
	SELECT r.*, clock_timestamp() AS now
	FROM conf, unnest($1::bytea[], $2::text[], $3::bigint[]) WITH ORDINALITY AS r (key, owner, ttl, i)
), seen AS MATERIALIZED (
	SELECT r.*, l.owner AS holder, l.waiters, l.record IS NOT NULL AS recorded, l.owner IS NULL OR l.lease_until <= r.now AS free,
		l.owner = r.owner AND l.lease_until > r.now AND r.ttl > 0 AS wants
	FROM req r LEFT JOIN interlock_lock l ON l.key = r.key
), pick AS MATERIALIZED (
	SELECT s.i, s.owner, s.ttl, l.key, l.owner AS holder, l.lease_until, l.waiters, l.record IS NOT NULL AS recorded
	FROM seen s JOIN interlock_lock l ON l.key = s.key
	WHERE s.wants
	ORDER BY l.key
	FOR NO KEY UPDATE OF l
), extended AS (
	UPDATE interlock_lock l SET
		lease_until = greatest(p.lease_until, clock_timestamp() + p.ttl * interval '1 microsecond')
	FROM pick p
	WHERE l.key = p.key AND p.holder = p.owner AND p.lease_until > clock_timestamp()
	RETURNING p.i
)
SELECT s.i,
	CASE WHEN e.i IS NOT NULL THEN CASE WHEN cardinality(p.waiters) > 0 THEN 2 ELSE 1 END
		WHEN s.recorded OR p.recorded THEN 3
		WHEN s.wants THEN CASE WHEN p.holder <> p.owner AND p.lease_until > clock_timestamp() THEN -1 ELSE 0 END
		WHEN s.free THEN 0
		WHEN s.holder <> s.owner THEN -1
		WHEN cardinality(s.waiters) > 0 THEN 2
		ELSE 1 END AS code
FROM seen s LEFT JOIN pick p ON p.i = s.i LEFT JOIN extended e ON e.i = s.i
