-- Stores an interim response with the claim of a request that was handed over.
--
-- $1 id  $2 token: the ticket  $3 response  $4 retention, in µs
-- $5 lock_timeout, as in store.sql; empty: the statement is in the transaction of a handler
-- $6 for how long the claim is handed over with it, in µs, as by mark.sql; 0: it was before
-- Returns whether a duplicate waits.
UPDATE interlock_record AS r SET response = $3::bytea, interim_by = $2::text, ticket = $2::text,
	lease_until = CASE WHEN $6::bigint > 0
		THEN greatest(r.lease_until, clock_timestamp() + $6::bigint * interval '1 microsecond') ELSE r.lease_until END,
	ticket_until = CASE WHEN $6::bigint > 0
		THEN greatest(r.lease_until, clock_timestamp() + $6::bigint * interval '1 microsecond') ELSE r.ticket_until END,
	earlier = CASE WHEN r.ticket <> $2::text THEN r.ticket ELSE r.earlier END,
	earlier_until = CASE WHEN r.ticket <> $2::text THEN r.ticket_until ELSE r.earlier_until END,
	keep_until = greatest(r.keep_until, clock_timestamp() + $4::bigint * interval '1 microsecond'),
	sweep_hour = greatest(r.sweep_hour,
		floor(extract(epoch FROM clock_timestamp() + $4::bigint * interval '1 microsecond') / 3600)::integer + 1)
WHERE r.id = $1::text AND CASE WHEN $6::bigint > 0 THEN r.token ELSE r.ticket END = $2::text AND r.state = 'c' AND r.keep_until > clock_timestamp()
	AND CASE WHEN $5::text = '' THEN current_setting('interlock.attempt', true) = $2::text
		ELSE set_config('lock_timeout', $5::text, true) <> '' END
	AND CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) <> '' ELSE true END
RETURNING r.waits
