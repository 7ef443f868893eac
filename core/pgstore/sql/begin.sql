-- Claims the record of a key that is new. Most are, so this is the only statement of
-- most claims; if it makes no row, claim.sql finds out the rest.
--
-- $1 to $6 as in claim.sql
-- $7 the claim need not be flushed
-- $8 lock_timeout: for how many ms the statement waits for the lock of a row.
--    It is set by a condition, before the row is made
INSERT INTO interlock_record
	(id, token, fingerprint, generation, state, marked, waits, lease_until, keep_until, sweep_hour)
SELECT $1::text, $2::text, $3::bytea, 1, 'c', $6::boolean, false,
	clock_timestamp() + $4::bigint * interval '1 microsecond',
	clock_timestamp() + $5::bigint * interval '1 microsecond',
	floor(extract(epoch FROM clock_timestamp() + $5::bigint * interval '1 microsecond') / 3600)::integer + 1
WHERE set_config('lock_timeout', $8::text, true) <> ''
ON CONFLICT (id) DO NOTHING
RETURNING set_config('synchronous_commit', CASE WHEN $7::boolean THEN 'off' ELSE coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on') END, true)
