-- Claims the record of an idempotency key, or tells what there is. One statement; it
-- waits for no other claim.
--
-- $1 id  $2 token  $3 fingerprint  $4 lease, $5 retention, in µs
-- $6 mark from the start, and take over nothing that lapsed
-- $7 an expired record may have left a trace to look for
-- $8 the claim need not be flushed
-- $9 lock_timeout: for how many ms the statement waits for the lock of a row
WITH conf AS MATERIALIZED (
	SELECT set_config('lock_timeout', $9::text, true) AS bound
), taken AS (
	-- An expired row, or a claim that lapsed. Every condition is checked
	-- again on the newest version of a row that another claim has just changed.
	UPDATE interlock_record AS r SET
		token = $2::text, fingerprint = $3::bytea, state = 'c', marked = $6::boolean, waits = false,
		ticket = NULL, ticket_until = NULL, earlier = NULL, earlier_until = NULL, interim_by = NULL, response = NULL,
		steps = CASE WHEN r.keep_until > clock_timestamp() THEN r.steps END,
		last_step = CASE WHEN r.keep_until > clock_timestamp() THEN r.last_step END, open_step = NULL,
		generation = CASE WHEN r.keep_until > clock_timestamp() THEN r.generation + 1 ELSE 1 END,
		lease_until = clock_timestamp() + $4::bigint * interval '1 microsecond',
		keep_until = greatest(r.keep_until, clock_timestamp() + $5::bigint * interval '1 microsecond'),
		sweep_hour = greatest(r.sweep_hour, floor(extract(epoch FROM
			greatest(r.keep_until, clock_timestamp() + $5::bigint * interval '1 microsecond')) / 3600)::integer + 1)
	FROM conf
	WHERE r.id = $1::text AND (
		r.keep_until <= clock_timestamp()
			AND NOT ($7::boolean AND coalesce(r.stone_until > clock_timestamp(), false))
		OR r.keep_until > clock_timestamp() AND greatest(r.lease_until, r.ticket_until) <= clock_timestamp() AND r.state = 'c'
			AND r.token <> $2::text AND r.fingerprint = $3::bytea AND NOT r.marked AND r.open_step IS NULL AND NOT $6::boolean)
	RETURNING r.generation, r.steps
), made AS (
	INSERT INTO interlock_record
		(id, token, fingerprint, generation, state, marked, waits, lease_until, keep_until, sweep_hour)
	SELECT $1::text, $2::text, $3::bytea, 1, 'c', $6::boolean, false,
		clock_timestamp() + $4::bigint * interval '1 microsecond',
		clock_timestamp() + $5::bigint * interval '1 microsecond',
		floor(extract(epoch FROM clock_timestamp() + $5::bigint * interval '1 microsecond') / 3600)::integer + 1
	FROM conf
	WHERE NOT EXISTS (SELECT FROM taken) AND NOT EXISTS (SELECT FROM interlock_record WHERE id = $1::text)
	ON CONFLICT (id) DO NOTHING
	RETURNING generation
), granted AS (
	SELECT generation, steps FROM taken UNION ALL SELECT generation, NULL FROM made
)
-- generation belongs to a grant. The rest is the earlier row, if there is no grant; and
-- whether there are synchronous standbys.
SELECT g.generation, r.token, r.state, r.fingerprint = $3::bytea, r.generation, r.marked OR r.open_step IS NOT NULL, r.waits,
	(extract(epoch FROM greatest(r.lease_until, CASE WHEN NOT r.marked AND r.open_step IS NULL AND NOT $6::boolean THEN r.ticket_until END)
		- clock_timestamp()) * 1000000)::bigint,
	r.keep_until <= clock_timestamp(), coalesce(r.stone_until > clock_timestamp(), false),
	CASE WHEN r.state IN ('c', 'd') AND r.fingerprint = $3::bytea THEN r.response END,
	coalesce(g.steps, CASE WHEN r.token = $2::text THEN r.steps END),
	current_setting('synchronous_standby_names') <> '',
	set_config('synchronous_commit', CASE WHEN $8::boolean THEN 'off' ELSE coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on') END, true)
FROM (SELECT (SELECT generation FROM granted) AS generation, (SELECT steps FROM granted) AS steps) AS g
LEFT JOIN interlock_record AS r ON g.generation IS NULL AND r.id = $1::text
