-- Settles a record with an unknown outcome, by the findings of an operator.
--
-- $1 id  $2 token, a new one: the request that had the claim can change nothing any more
-- $3 response; NULL: there was no effect, and the record goes; with steps it stays, lapsed. A row that is remembered for
--    longer than its response was kept stays
-- $4 a claim that lapsed is unknown also if it is not marked
-- $5 retention, $6 for how much longer the key is remembered, in µs
-- $7 lock_timeout: for how many ms the statement waits for the lock of a row
-- $8 name of the step that must be open; empty: any, or none  $9 its outcome, which is appended to the steps
WITH conf AS MATERIALIZED (
	SELECT set_config('lock_timeout', $7::text, true) AS bound,
		CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END AS flush
), gone AS (
	DELETE FROM interlock_record AS r USING conf WHERE $3::bytea IS NULL AND r.id = $1::text AND r.state = 'c'
		AND r.keep_until > clock_timestamp() AND r.lease_until <= clock_timestamp() AND (r.marked OR r.open_step IS NOT NULL OR $4::boolean)
		AND coalesce(r.stone_until <= statement_timestamp(), true) AND r.steps IS NULL AND $8::text = ''
	RETURNING r.id
), remembered AS (
	UPDATE interlock_record AS r SET token = '-', keep_until = clock_timestamp()
	FROM conf
	WHERE $3::bytea IS NULL AND r.id = $1::text AND r.state = 'c'
		AND r.keep_until > clock_timestamp() AND r.lease_until <= clock_timestamp() AND (r.marked OR r.open_step IS NOT NULL OR $4::boolean)
		AND r.stone_until > statement_timestamp() AND r.steps IS NULL AND $8::text = ''
	RETURNING r.id
), freed AS (
	UPDATE interlock_record AS r SET token = '-', marked = false, open_step = NULL, lease_until = clock_timestamp(),
		steps = CASE WHEN $8::text <> '' THEN coalesce(r.steps, '') || $9::bytea ELSE r.steps END,
		last_step = CASE WHEN $8::text <> '' THEN $8::text ELSE r.last_step END
	FROM conf
	WHERE $3::bytea IS NULL AND r.id = $1::text AND r.state = 'c' AND r.steps IS NOT NULL
		AND r.keep_until > clock_timestamp() AND r.lease_until <= clock_timestamp()
		AND (r.marked OR r.open_step IS NOT NULL OR $4::boolean) AND ($8::text = '' OR r.open_step = $8::text)
	RETURNING r.id
), answered AS (
	UPDATE interlock_record AS r SET token = $2::text, state = 'd', response = $3::bytea,
		steps = NULL, last_step = NULL, open_step = NULL,
		keep_until = greatest(r.keep_until, clock_timestamp() + $5::bigint * interval '1 microsecond'),
		stone_until = CASE WHEN $6::bigint > 0
			THEN greatest(r.stone_until, clock_timestamp() + ($5::bigint + $6::bigint) * interval '1 microsecond')
			ELSE r.stone_until END,
		sweep_hour = greatest(r.sweep_hour,
			floor(extract(epoch FROM clock_timestamp() + ($5::bigint + $6::bigint) * interval '1 microsecond') / 3600)::integer + 1)
	FROM conf
	WHERE $3::bytea IS NOT NULL AND r.id = $1::text AND r.state = 'c'
		AND r.keep_until > clock_timestamp() AND r.lease_until <= clock_timestamp() AND (r.marked OR r.open_step IS NOT NULL OR $4::boolean)
	RETURNING r.id
)
-- Whether it was resolved: now, or by an earlier try with the same token.
SELECT EXISTS (SELECT FROM gone) OR EXISTS (SELECT FROM remembered) OR EXISTS (SELECT FROM freed) OR EXISTS (SELECT FROM answered)
	OR EXISTS (SELECT FROM interlock_record WHERE id = $1::text AND token = $2::text AND state = 'd')
