-- Reads a page of the table, in the order of the keys. It writes nothing.
--
-- $1 the first key of the page      $2 how many rows at the most
--
-- Returns the rows of locks that are held or may be kept, and the last row of a full page: the
-- key; the record; the clock, in µs since 1970; the number of the row in its page.
WITH page AS MATERIALIZED (
	SELECT l.*, row_number() OVER (ORDER BY l.key) AS n
	FROM (SELECT * FROM interlock_lock WHERE key >= $1::bytea ORDER BY key LIMIT $2::int) l
)
SELECT p.key, p.record, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now, p.n
FROM page p
WHERE p.lease_until > clock_timestamp() - interval '5 seconds' AND p.record <> '' OR p.n = $2::int
ORDER BY p.n
