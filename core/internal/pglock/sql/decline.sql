-- Takes lockers out of the lists of those waiting: their last callers have left. If a lock is
-- kept for such a locker, its turn goes to the lockers after it.
--
-- $1 keys, each once      $2 lockers
-- $3 lock_timeout: for how many ms the statement waits for the lock of one row
-- $4 in how many µs the lockers are called at the earliest, as in release.sql
--
-- Returns a row for each key: its index, from 1; 3 if the row has a record, else 0; the list of the lockers that are called now,
-- '' if there is nothing to announce; when that was, in µs since 1970.
WITH conf AS MATERIALIZED (
	SELECT set_config('lock_timeout', $3::text, true) AS bound, set_config('synchronous_commit', 'off', true) AS flush
), req AS MATERIALIZED (
	SELECT r.* FROM conf, unnest($1::bytea[], $2::text[]) WITH ORDINALITY AS r (key, waiter, i)
), pick AS MATERIALIZED (
	SELECT r.i, r.waiter, l.key, l.owner AS holder, l.lease_until, l.waiters, l.record IS NOT NULL AS recorded,
		clock_timestamp() AS now
	FROM req r JOIN interlock_lock l ON l.key = r.key
	ORDER BY l.key
	FOR NO KEY UPDATE OF l
), place AS MATERIALIZED (
	SELECT p.*, (SELECT min(w.i)::int FROM unnest(p.waiters) WITH ORDINALITY w (name, i)
		WHERE split_part(w.name, '~', 1) = split_part(p.waiter, '~', 1)) AS place
	FROM pick p
), turn AS MATERIALIZED (
	SELECT p.*, p.holder IS NULL AND p.lease_until + interval '1 millisecond' * (
			SELECT coalesce(sum(
				-- include patience.sql
			), 0) FROM unnest(p.waiters[1:p.place - 1]) name) <= greatest(p.now, p.lease_until) AS opened
	FROM place p WHERE p.place IS NOT NULL AND NOT p.recorded
), changed AS (
	UPDATE interlock_lock l SET
		lease_until = CASE WHEN t.opened THEN clock_timestamp() + $4::bigint * interval '1 microsecond' ELSE t.lease_until END,
		waiters = CASE WHEN NOT t.opened THEN t.waiters[:t.place - 1] ELSE '{}' END || t.waiters[t.place + 1:],
		called_at = CASE WHEN t.opened THEN clock_timestamp() ELSE l.called_at END
	FROM turn t
	WHERE l.key = t.key
	RETURNING t.i, CASE WHEN t.opened THEN array_to_string(l.waiters, ',') ELSE '' END AS list,
		coalesce((extract(epoch FROM l.called_at) * 1000000)::bigint, 0) AS called
)
SELECT r.i, CASE WHEN p.recorded THEN 3 ELSE 0 END AS code, coalesce(c.list, '') AS list, coalesce(c.called, 0) AS called
FROM req r LEFT JOIN pick p ON p.i = r.i LEFT JOIN changed c ON c.i = r.i
