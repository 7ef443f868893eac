-- Gives up the locks of some owners.
--
-- $1 keys, each once      $2 owners      $3 the last tokens given out under these owners
-- $4 lockers that want the lock again, after the others; '' for none. They do not get
--    into a full list, which those in it would keep for themselves
-- $5 lock_timeout: for how many ms the statement waits for the lock of one row
-- $6 in how many µs the lockers are called at the earliest. The time for which the lock is
--    kept for them begins then, with lease_until; see acquire.sql
--
-- Returns a row for each key: its index, from 1; 1 if the lock was released, 0 if no
-- owner held it, -1 if another one did, 3 if the row has a record; the list of the lockers that wait; when the
-- release was, in µs since 1970, 0 if there was none.
--
-- The row stays, with the token and the list. The statement does not wait for the disk:
-- a release that a crash of the server undoes leaves the lock to its lease.
WITH conf AS MATERIALIZED (
	SELECT set_config('lock_timeout', $5::text, true) AS bound, set_config('synchronous_commit', 'off', true) AS flush
), req AS MATERIALIZED (
	SELECT r.*, clock_timestamp() AS now
	FROM conf, unnest($1::bytea[], $2::text[], $3::bigint[], $4::text[])
		WITH ORDINALITY AS r (key, owner, token, waiter, i)
), seen AS MATERIALIZED (
	SELECT r.*, l.owner AS holder, l.lease_until, l.record IS NOT NULL AS recorded
	FROM req r LEFT JOIN interlock_lock l ON l.key = r.key
), pick AS MATERIALIZED (
	SELECT s.i, s.owner, s.token AS last, s.waiter, l.key, l.owner AS holder, l.token, l.lease_until, l.waiters,
		l.record IS NOT NULL AS recorded, clock_timestamp() AS now
	FROM seen s JOIN interlock_lock l ON l.key = s.key
	WHERE s.holder = s.owner
	ORDER BY l.key
	FOR NO KEY UPDATE OF l
), freed AS (
	-- A lease that has ended is freed, too, so that its token and its end are noted.
	UPDATE interlock_lock l SET
		owner = NULL,
		token = greatest(p.token, p.last),
		lease_until = least(p.lease_until, clock_timestamp() + $6::bigint * interval '1 microsecond'),
		-- A room stays for the lockers that a full list has left out, and that ask now.
		waiters = CASE WHEN p.waiter <> '' AND cardinality(p.waiters) < 62 AND NOT EXISTS (
				SELECT FROM unnest(p.waiters) name WHERE split_part(name, '~', 1) = split_part(p.waiter, '~', 1))
			THEN p.waiters || p.waiter ELSE p.waiters END,
		called_at = clock_timestamp()
	FROM pick p
	WHERE l.key = p.key AND p.holder = p.owner
	RETURNING p.i, p.lease_until > p.now AS live, array_to_string(l.waiters, ',') AS list,
		(extract(epoch FROM l.called_at) * 1000000)::bigint AS called
)
SELECT s.i,
	CASE WHEN f.i IS NOT NULL THEN f.live::int
		WHEN s.recorded OR p.recorded THEN 3
		WHEN p.i IS NOT NULL THEN CASE WHEN p.holder IS NULL OR p.lease_until <= p.now THEN 0 ELSE -1 END
		WHEN s.holder IS NULL OR s.lease_until <= s.now OR s.holder = s.owner THEN 0
		ELSE -1 END AS code,
	coalesce(f.list, '') AS list, coalesce(f.called, 0) AS called
FROM seen s LEFT JOIN pick p ON p.i = s.i LEFT JOIN freed f ON f.i = s.i
