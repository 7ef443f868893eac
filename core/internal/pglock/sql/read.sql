-- Reads the rows of some locks, before their records are changed.
--
-- $1 keys, each once, in their order
-- $2 lock_timeout: for how many ms the statement waits for the lock of one row, where it locks rows
-- $3 for how many ms the transaction may be idle, where there is one
--
-- Returns a row for each key: its index, from 1; the version of the row, '' if there is none; the
-- columns; when that was, in µs since 1970, after the row was read or locked.
--
-- The version is a hash of all that the rules decide by. The number of the transaction that wrote the
-- row (xmin) comes again after a crash, when it was not yet on the disk; what was decided by such a row
-- must not be written over another one. A request outlives the crash where a pooler of connections is in between.
WITH conf AS MATERIALIZED (
	SELECT set_config('lock_timeout', $2::text, true) AS bound, set_config('idle_in_transaction_session_timeout', $3::text, true) AS idle
)
SELECT r.i, coalesce(l.version, '') AS version, coalesce(l.owner, '') AS owner, coalesce(l.token, 0) AS token,
	coalesce((extract(epoch FROM l.lease_until) * 1000000)::bigint, 0) AS ends,
	coalesce(array_to_string(l.waiters, ','), '') AS list, coalesce(l.record, '') AS record,
	(extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
FROM conf, unnest($1::bytea[]) WITH ORDINALITY AS r (key, i)
	LEFT JOIN LATERAL (
		SELECT
			-- include version.sql
			AS version, owner, token, lease_until, waiters, record FROM interlock_lock l WHERE key = r.key
		-- lock the rows
	) l ON true
