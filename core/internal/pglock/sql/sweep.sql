-- Deletes rows of locks that no owner has held for a while, from some pages of the table.
--
-- $1 the first page, $2 the page after the last one, both as (page,0)
-- $3 for how many µs the lock must have been free
-- $4 how many rows at the most
--
-- The next token of such a key begins at the clock. It is greater than the token that goes
-- with the row, which therefore has to be older than that time as well.
WITH conf AS MATERIALIZED (
	SELECT set_config('synchronous_commit', 'off', true) AS flush
), dead AS MATERIALIZED (
	SELECT l.key
	FROM interlock_lock l
	WHERE l.ctid >= $1::tid AND l.ctid < $2::tid
		AND l.lease_until < statement_timestamp() - $3::bigint * interval '1 microsecond'
		AND l.token < (extract(epoch FROM statement_timestamp()) * 1000000)::bigint - $3::bigint
	LIMIT $4::bigint
	FOR UPDATE SKIP LOCKED
)
DELETE FROM interlock_lock l USING dead d, conf WHERE l.key = d.key
