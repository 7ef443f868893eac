-- Takes the claim of a request that was handed over, or only looks at the record.
--
-- $1 id  $2 token  $3 fingerprint  $4 lease, $5 retention, in µs
-- $6 take over nothing that lapsed
-- $7 ticket: the token of the attempt that handed over
-- $8 look, and change nothing
-- $9 lock_timeout: for how many ms the statement waits for the lock of a row; empty leaves it
--    as it is
WITH conf AS MATERIALIZED (
	SELECT CASE WHEN $9::text <> '' THEN set_config('lock_timeout', $9::text, true) END AS bound,
		CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END AS flush
), taken AS (
	UPDATE interlock_record AS r SET
		token = $2::text,
		generation = CASE WHEN r.token = r.ticket THEN r.generation ELSE r.generation + 1 END,
		lease_until = clock_timestamp() + $4::bigint * interval '1 microsecond',
		keep_until = greatest(r.keep_until, clock_timestamp() + $5::bigint * interval '1 microsecond'),
		sweep_hour = greatest(r.sweep_hour,
			floor(extract(epoch FROM clock_timestamp() + $5::bigint * interval '1 microsecond') / 3600)::integer + 1)
	FROM conf
	WHERE r.id = $1::text AND NOT $8::boolean AND r.ticket = $7::text AND r.state = 'c' AND r.fingerprint = $3::bytea
		AND r.keep_until > clock_timestamp() AND r.token <> $2::text
		AND (r.token = r.ticket OR r.token = '-'
			OR r.lease_until <= clock_timestamp() AND NOT r.marked AND r.open_step IS NULL AND NOT $6::boolean)
	RETURNING r.generation, r.steps
)
-- generation belongs to a grant. The rest is the row, if there is no grant.
SELECT g.generation, r.token, r.state, r.fingerprint = $3::bytea, r.generation, r.marked OR r.open_step IS NOT NULL,
	(extract(epoch FROM greatest(r.lease_until, CASE WHEN $8::boolean AND NOT r.marked AND r.open_step IS NULL AND NOT $6::boolean THEN r.ticket_until END)
		- clock_timestamp()) * 1000000)::bigint,
	r.keep_until <= clock_timestamp(),
	CASE WHEN $8::boolean OR r.state = 'd' AND r.fingerprint = $3::bytea THEN r.response END,
	current_setting('synchronous_standby_names') <> '',
	coalesce(r.ticket = $7::text, false),
	coalesce(g.steps, CASE WHEN r.token = $2::text THEN r.steps END)
FROM (SELECT (SELECT generation FROM taken) AS generation, (SELECT steps FROM taken) AS steps) AS g
LEFT JOIN interlock_record AS r ON g.generation IS NULL AND r.id = $1::text
