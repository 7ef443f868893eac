-- Stores the steps of a claim, and extends its lease.
--
-- $1 id  $2 token  $3 lease, $4 retention, in µs
-- $5 lock_timeout, as in store.sql; empty: the statement is in the transaction of a step
-- $6 all steps so far; the longer of two texts counts, so that a try that is late changes nothing
-- $7 name of the last step with an outcome
-- $8 name of the step that is under way and must not run twice, or empty
-- Returns no row if the record is not the token's, or is done.
UPDATE interlock_record AS r SET
	steps = CASE WHEN length($6::bytea) > coalesce(length(r.steps), 0) THEN $6::bytea ELSE r.steps END,
	last_step = CASE WHEN length($6::bytea) > coalesce(length(r.steps), 0) THEN $7::text ELSE r.last_step END,
	open_step = CASE WHEN length($6::bytea) > coalesce(length(r.steps), 0) THEN nullif($8::text, '') ELSE r.open_step END,
	lease_until = greatest(r.lease_until, clock_timestamp() + $3::bigint * interval '1 microsecond'),
	keep_until = greatest(r.keep_until, clock_timestamp() + $4::bigint * interval '1 microsecond'),
	sweep_hour = greatest(r.sweep_hour,
		floor(extract(epoch FROM clock_timestamp() + $4::bigint * interval '1 microsecond') / 3600)::integer + 1)
WHERE r.id = $1::text AND r.token = $2::text AND r.state = 'c' AND r.keep_until > clock_timestamp()
	AND coalesce(substring(r.steps FOR length($6::bytea)), '') = substring($6::bytea FOR coalesce(length(r.steps), 0))
	AND CASE WHEN $5::text = '' THEN current_setting('interlock.attempt', true) = $2::text
		ELSE set_config('lock_timeout', $5::text, true) <> '' END
	AND CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) <> '' ELSE true END
RETURNING true
