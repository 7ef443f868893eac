-- Reads a page of the records, in the order of their ids. It writes nothing.
--
-- $1 the id with which the page begins, or after which  $2 after which
-- $3 how many rows at the most  $4 only claims  $5 how many bytes of the responses
--
-- Returns the rows, and the last row of a full page in any case: the id; the state; whether it is over, and
-- whether that is remembered; the generation; whether it is marked, and handed over; the rest of the
-- lease and of the retention, in µs; the beginning of the response, and its length; the number of
-- the row in its page; the last step, the open step, and unless $5 is 0 all steps.
WITH page AS MATERIALIZED (
	SELECT r.*, row_number() OVER (ORDER BY r.id) AS n
	FROM (SELECT * FROM interlock_record WHERE id >= $1::text AND (id > $1::text OR NOT $2::boolean) ORDER BY id LIMIT $3::int) r
)
SELECT p.id, p.state, p.keep_until <= clock_timestamp() AS over, coalesce(p.stone_until > clock_timestamp(), false) AS remembered,
	p.generation, p.marked, p.ticket IS NOT NULL AND (p.token IN (p.ticket, '-') OR p.lease_until <= clock_timestamp()) AS handed,
	(extract(epoch FROM greatest(p.lease_until, CASE WHEN NOT p.marked AND p.open_step IS NULL THEN p.ticket_until END)
		- clock_timestamp()) * 1000000)::bigint AS left_over,
	(extract(epoch FROM p.keep_until - clock_timestamp()) * 1000000)::bigint AS kept,
	substring(p.response FROM 1 FOR $5::int) AS response, coalesce(length(p.response), 0) AS size, p.n,
	coalesce(p.last_step, ''), coalesce(p.open_step, ''), CASE WHEN $5::int > 0 THEN p.steps END
FROM page p
WHERE NOT $4::boolean OR p.state = 'c' OR p.n = $3::int
ORDER BY p.n
