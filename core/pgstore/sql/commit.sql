-- Stores the response of a claim for good. Only the token matters, not the lease.
--
-- $1 id  $2 token  $3 fingerprint  $4 generation
-- $5 d, or x if there is no response to store  $6 response
-- $7 retention, in µs: an earlier promise is not shortened
-- $8 for how much longer the key is remembered, in µs; 0 is not
-- $9 a record that is gone is written anew, and so is a record without a claim, since the
--    claim that took over was given up
-- $10 lock_timeout: for how many ms the statement waits for the lock of a row; empty leaves
--     it as it is
WITH conf AS MATERIALIZED (
	SELECT CASE WHEN $10::text <> '' THEN set_config('lock_timeout', $10::text, true) END AS bound,
		CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END AS flush
), done AS (
	UPDATE interlock_record AS r SET
		token = $2::text, fingerprint = $3::bytea, generation = $4::bigint, state = $5::text, response = $6::bytea,
		steps = NULL, last_step = NULL, open_step = NULL,
		keep_until = greatest(r.keep_until, clock_timestamp() + $7::bigint * interval '1 microsecond'),
		stone_until = CASE WHEN $8::bigint > 0
			THEN greatest(r.stone_until, clock_timestamp() + ($7::bigint + $8::bigint) * interval '1 microsecond')
			ELSE r.stone_until END,
		sweep_hour = greatest(r.sweep_hour,
			floor(extract(epoch FROM clock_timestamp() + ($7::bigint + $8::bigint) * interval '1 microsecond') / 3600)::integer + 1)
	FROM conf
	WHERE r.id = $1::text AND (r.token = $2::text AND r.state = 'c'
		OR r.token <> $2::text AND (r.keep_until <= clock_timestamp() OR r.token = '-') AND $9::boolean)
	RETURNING r.waits
), made AS (
	INSERT INTO interlock_record
		(id, token, fingerprint, generation, state, marked, waits, lease_until, keep_until, stone_until, sweep_hour, response)
	SELECT $1::text, $2::text, $3::bytea, $4::bigint, $5::text, false, false, clock_timestamp(),
		clock_timestamp() + $7::bigint * interval '1 microsecond',
		CASE WHEN $8::bigint > 0 THEN clock_timestamp() + ($7::bigint + $8::bigint) * interval '1 microsecond' END,
		floor(extract(epoch FROM clock_timestamp() + ($7::bigint + $8::bigint) * interval '1 microsecond') / 3600)::integer + 1,
		$6::bytea
	FROM conf
	WHERE $9::boolean AND NOT EXISTS (SELECT FROM done) AND NOT EXISTS (SELECT FROM interlock_record WHERE id = $1::text)
	ON CONFLICT (id) DO NOTHING
	RETURNING waits
), stored AS (
	SELECT waits FROM done UNION ALL SELECT waits FROM made
)
-- stored; whether a duplicate waits; and without stored the record that there is.
SELECT s.stored, coalesce(s.waits, r.waits, false), r.token, r.state, r.fingerprint = $3::bytea,
	CASE WHEN r.state = 'd' AND r.fingerprint = $3::bytea THEN r.response END
FROM (SELECT EXISTS (SELECT FROM stored) AS stored,
	(SELECT bool_or(waits) FROM stored) AS waits) AS s
LEFT JOIN interlock_record AS r ON NOT s.stored AND r.id = $1::text
