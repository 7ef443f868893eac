-- Deletes up to $1 rows whose time has ended. It waits for no row.
DELETE FROM interlock_record WHERE id IN (
	SELECT id FROM interlock_record
	WHERE sweep_hour <= floor(extract(epoch FROM clock_timestamp()) / 3600)::integer
		AND keep_until <= clock_timestamp() AND coalesce(stone_until <= clock_timestamp(), true)
	ORDER BY sweep_hour LIMIT $1::integer FOR UPDATE SKIP LOCKED)
