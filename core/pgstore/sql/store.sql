-- Stores the response of a claim that is the token's. Most are, so this is the only
-- statement of most commits; if it changes no row, commit.sql finds out the rest.
--
-- $1 id  $2 token  $3 d, or x if there is no response to store  $4 response
-- $5 retention, $6 for how much longer the key is remembered, in µs
-- $7 lock_timeout: for how many ms the statement waits for the lock of a row. It is set by a
--    condition on the row that was found, before the lock is asked for: a table to join
--    costs a tenth of the statement. Empty: the statement is in the transaction of a handler,
--    which has its own limit, and which the handler must not have ended
-- The answer waits for the disk, also where the role, the database or a handler has
-- synchronous_commit off: the client acts on it.
-- Returns whether a duplicate waits.
UPDATE interlock_record AS r SET state = $3::text, response = $4::bytea, steps = NULL, last_step = NULL, open_step = NULL,
	keep_until = greatest(r.keep_until, clock_timestamp() + $5::bigint * interval '1 microsecond'),
	stone_until = CASE WHEN $6::bigint > 0
		THEN greatest(r.stone_until, clock_timestamp() + ($5::bigint + $6::bigint) * interval '1 microsecond')
		ELSE r.stone_until END,
	sweep_hour = greatest(r.sweep_hour,
		floor(extract(epoch FROM clock_timestamp() + ($5::bigint + $6::bigint) * interval '1 microsecond') / 3600)::integer + 1)
WHERE r.id = $1::text AND r.token = $2::text AND r.state = 'c'
	AND CASE WHEN $7::text = '' THEN current_setting('interlock.attempt', true) = $2::text
		ELSE set_config('lock_timeout', $7::text, true) <> '' END
	AND CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) <> '' ELSE true END
RETURNING r.waits
