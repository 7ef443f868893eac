-- Extends leases of claims, and the records' time with them; never shortens either. It
-- waits for no row: a row that is locked is being committed, or taken over.
--
-- $1 ids, $2 tokens, as texts of arrays  $3 lease, $4 retention, in µs, as texts of arrays
-- Returns for each claim its number, and o (owner, renewed), d (done), n (not the
-- owner) or l (locked).
WITH conf AS MATERIALIZED (
	SELECT CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END AS flush
), asked AS (
	SELECT a.* FROM conf, unnest($1::text::text[], $2::text::text[], $3::text::bigint[], $4::text::bigint[])
		WITH ORDINALITY AS a (id, token, lease, retention, number)
), open AS (
	SELECT r.id FROM interlock_record AS r JOIN asked AS a ON r.id = a.id AND r.token = a.token
	WHERE r.state = 'c' AND r.keep_until > clock_timestamp()
	ORDER BY r.id FOR UPDATE OF r SKIP LOCKED
), renewed AS (
	UPDATE interlock_record AS r SET
		lease_until = greatest(r.lease_until, clock_timestamp() + a.lease * interval '1 microsecond'),
		keep_until = greatest(r.keep_until, clock_timestamp() + a.retention * interval '1 microsecond'),
		sweep_hour = greatest(r.sweep_hour,
			floor(extract(epoch FROM clock_timestamp() + a.retention * interval '1 microsecond') / 3600)::integer + 1)
	FROM asked AS a, open AS o
	WHERE r.id = o.id AND a.id = o.id AND r.token = a.token AND r.state = 'c'
	RETURNING r.id, r.token
)
SELECT a.number, CASE
	WHEN n.id IS NOT NULL THEN 'o'
	WHEN r.token IS DISTINCT FROM a.token OR r.keep_until <= clock_timestamp() THEN 'n'
	WHEN r.state <> 'c' THEN 'd'
	ELSE 'l' END
FROM asked AS a LEFT JOIN renewed AS n ON n.id = a.id AND n.token = a.token
LEFT JOIN interlock_record AS r ON r.id = a.id
