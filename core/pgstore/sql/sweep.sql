-- Deletes up to $1 expired rows. It waits for no row.
--
-- clock_timestamp() may return another time for each row, so PostgreSQL would use no index for
-- a condition on it and read all rows that are kept. The rows are locked, so that their places
-- (ctid) stay; a join by id could read the whole table.
DELETE FROM interlock_record WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM interlock_record
	WHERE sweep_hour <= floor(extract(epoch FROM statement_timestamp()) / 3600)::integer
		AND keep_until <= statement_timestamp() AND coalesce(stone_until <= statement_timestamp(), true)
	ORDER BY sweep_hour LIMIT $1::integer FOR UPDATE SKIP LOCKED))
