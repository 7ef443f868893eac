-- Notes that the effect of a claim is about to happen, or that the claim is handed over, and
-- extends its lease.
--
-- $1 id  $2 token  $3 lease, $4 retention, in µs
-- $5 lock_timeout: for how many ms the statement waits for the lock of a row
-- $6 hand over, and do not mark
-- Returns whether it was marked; else whether the record is the token's, and done.
WITH conf AS MATERIALIZED (
	SELECT set_config('lock_timeout', $5::text, true) AS bound,
		CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END AS flush
), marked AS (
	UPDATE interlock_record AS r SET
		marked = r.marked OR NOT $6::boolean, ticket = CASE WHEN $6::boolean THEN r.token ELSE r.ticket END,
		ticket_until = CASE WHEN $6::boolean
			THEN greatest(r.lease_until, clock_timestamp() + $3::bigint * interval '1 microsecond') ELSE r.ticket_until END,
		earlier = CASE WHEN $6::boolean AND r.ticket <> r.token THEN r.ticket ELSE r.earlier END,
		earlier_until = CASE WHEN $6::boolean AND r.ticket <> r.token THEN r.ticket_until ELSE r.earlier_until END,
		lease_until = greatest(r.lease_until, clock_timestamp() + $3::bigint * interval '1 microsecond'),
		keep_until = greatest(r.keep_until, clock_timestamp() + $4::bigint * interval '1 microsecond'),
		sweep_hour = greatest(r.sweep_hour,
			floor(extract(epoch FROM clock_timestamp() + $4::bigint * interval '1 microsecond') / 3600)::integer + 1)
	FROM conf
	WHERE r.id = $1::text AND r.token = $2::text AND r.state = 'c' AND r.keep_until > clock_timestamp()
	RETURNING r.id
)
SELECT EXISTS (SELECT FROM marked),
	EXISTS (SELECT FROM interlock_record WHERE id = $1::text AND token = $2::text AND state <> 'c' AND keep_until > clock_timestamp())
