-- Takes locks that are free, each for one owner. Enters lockers into the lists of those
-- waiting where the lock is held.
--
-- $1 keys, each once      $2 owners      $3 leases, in µs
-- $4 the lockers that will wait if the lock is held; '' for none
-- $5 lock_timeout: for how many ms the statement waits for the lock of one row
--
-- Returns a row for each key: its index, from 1; 1 if the owner holds the lock, 0 if it does not,
-- 3 if the row has a record; the token; else the holder, '' where there is none; after how many µs to ask again, or of a grant
-- how many tokens are left out after it, 0 for no bound; whether the locker is in the list. A key
-- without a row was in a change of another transaction that this one could not see: ask again.
--
-- The first read (seen) selects the rows to lock, in the order of their keys, so that two of
-- these statements do not wait for each other. The locked rows (pick) decide the result. A row
-- that has nothing to change is only read, and the transaction then writes nothing. The row of a
-- lock that the owner has already is locked nevertheless: an earlier try may have ended its wait
-- for a synchronous standby without the standby, and a transaction that locks a row waits for the
-- standby as well.
--
-- A token is the last one plus 16 where the clock lags that. Then 15 are left out for hand-offs,
-- which the row never gets if the holder dies. Else the clock is ahead of all hand-offs.
--
-- A lock that was released is kept for the first four lockers of its list: for the first as
-- long as that locker may take to ask (patience.sql), from lease_until on, then also for the
-- second, and so on. Lockers notice a release at different times, some only when they look.
-- Without that time the lock would always go to the process that released it, or to the
-- nearest. Where the first locker does not say how long it may take, a request without a
-- locker takes the lock nevertheless. Where that time begins in the future, the clock was set
-- back (late), and the time begins anew.
WITH conf AS MATERIALIZED (
	SELECT set_config('lock_timeout', $5::text, true) AS bound,
		CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END AS flush
), req AS MATERIALIZED (
	SELECT r.*, clock_timestamp() AS now
	FROM conf, unnest($1::bytea[], $2::text[], $3::bigint[], $4::text[])
		WITH ORDINALITY AS r (key, owner, ttl, waiter, i)
), seen AS MATERIALIZED (
	SELECT r.*, l.key IS NOT NULL AS there, l.owner AS holder, l.token, l.lease_until, l.waiters, l.record IS NOT NULL AS recorded,
		l.record IS NULL AND (l.owner IS NULL OR l.lease_until <= r.now OR l.owner = r.owner OR r.waiter <> '' AND array_position(l.waiters, r.waiter) IS NULL
			AND (cardinality(l.waiters) < 63 OR EXISTS (
				SELECT FROM unnest(l.waiters) name WHERE split_part(name, '~', 1) = split_part(r.waiter, '~', 1)))) AS wants
	FROM req r LEFT JOIN interlock_lock l ON l.key = r.key
), pick AS MATERIALIZED (
	SELECT s.i, s.owner, s.ttl, s.waiter, l.key, l.owner AS holder, l.token, l.lease_until, l.waiters, l.called_at, l.record IS NOT NULL AS recorded,
		clock_timestamp() AS now
	FROM seen s JOIN interlock_lock l ON l.key = s.key
	WHERE s.there AND s.wants
	ORDER BY l.key
	FOR NO KEY UPDATE OF l
), place AS MATERIALIZED (
	SELECT p.*, p.holder IS NULL OR p.lease_until <= p.now AS free,
		p.holder IS NULL AND p.lease_until > p.now + interval '1 second' AS late,
		(SELECT min(w.i)::int FROM unnest(p.waiters) WITH ORDINALITY w (name, i)
			WHERE p.waiter <> '' AND split_part(w.name, '~', 1) = split_part(p.waiter, '~', 1)) AS place,
		cardinality(p.waiters) AS n
	FROM pick p
), turn AS MATERIALIZED (
	-- opens is when this request may have the lock.
	SELECT p.*, NOT p.free AND p.holder = p.owner AS mine,
		CASE WHEN p.holder IS NOT NULL OR p.n = 0 OR p.place = 1 OR p.waiter = '' AND p.waiters[1] !~ '~[a-z]$' THEN p.now
			ELSE CASE WHEN p.late THEN p.now ELSE p.lease_until END + interval '1 millisecond' * (
				SELECT sum(
					-- include patience.sql
				) FROM unnest(p.waiters[1:least(coalesce(p.place, 5) - 1, 4)]) name)
			END AS opens
	FROM place p
), verdict AS MATERIALIZED (
	SELECT t.*, t.mine OR t.free AND t.opens <= t.now AND NOT t.recorded AS granted,
		t.waiter <> '' AND CASE WHEN t.place IS NULL THEN t.n < 63 ELSE t.waiters[t.place] <> t.waiter END AS enters
	FROM turn t
), changed AS (
	-- A locker before the new owner in the list loses its place there. called_at
	-- says that such lockers have to look.
	UPDATE interlock_lock l SET
		owner = CASE WHEN v.granted THEN v.owner ELSE v.holder END,
		token = CASE WHEN v.granted THEN greatest(v.token + 16, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) ELSE v.token END,
		lease_until = CASE WHEN v.granted THEN clock_timestamp() + v.ttl * interval '1 microsecond'
			WHEN v.late THEN v.now ELSE v.lease_until END,
		waiters = CASE WHEN NOT v.granted AND NOT v.enters THEN v.waiters
			WHEN NOT v.granted AND v.place IS NULL THEN v.waiters || v.waiter
			WHEN NOT v.granted THEN v.waiters[:v.place - 1] || v.waiter || v.waiters[v.place + 1:]
			WHEN v.place IS NOT NULL THEN v.waiters[v.place + 1:]
			ELSE '{}' END,
		called_at = CASE WHEN NOT v.granted THEN v.called_at
			WHEN v.n > 0 AND v.place IS DISTINCT FROM 1 THEN clock_timestamp() END
	FROM verdict v
	WHERE l.key = v.key AND NOT v.recorded AND CASE WHEN v.granted THEN NOT v.mine ELSE v.enters OR v.late END
	RETURNING v.i, l.token
), added AS (
	-- After the rows are locked, and in the order of the keys, for the reason above.
	INSERT INTO interlock_lock (key, owner, token, lease_until)
	SELECT s.key, s.owner, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
		clock_timestamp() + s.ttl * interval '1 microsecond'
	FROM seen s
	WHERE NOT s.there AND (SELECT count(*) FROM pick) >= 0
	ORDER BY s.key
	ON CONFLICT (key) DO NOTHING
	RETURNING key, token
)
SELECT v.i, CASE WHEN v.recorded THEN 3 ELSE v.granted::int END AS code, CASE WHEN v.mine THEN v.token ELSE coalesce(c.token, 0) END AS token,
	CASE WHEN v.free THEN '' ELSE v.holder END AS holder,
	CASE WHEN NOT v.granted THEN (extract(epoch FROM CASE WHEN v.free THEN v.opens ELSE v.lease_until END - v.now) * 1000000)::bigint
		WHEN coalesce(c.token, v.token) > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint THEN 15 ELSE 0 END AS remains,
	v.waiter <> '' AND (v.place IS NOT NULL OR c.i IS NOT NULL AND v.enters) AS listed
FROM verdict v LEFT JOIN changed c ON c.i = v.i
WHERE v.mine OR NOT v.granted OR c.i IS NOT NULL
UNION ALL
SELECT s.i, 1, a.token, '', 0, false
FROM added a JOIN seen s ON s.key = a.key
UNION ALL
SELECT s.i, CASE WHEN s.recorded THEN 3 ELSE 0 END, s.token, coalesce(s.holder, ''),
	(extract(epoch FROM s.lease_until - s.now) * 1000000)::bigint,
	s.waiter <> '' AND array_position(s.waiters, s.waiter) IS NOT NULL
FROM seen s
WHERE s.there AND NOT s.wants
