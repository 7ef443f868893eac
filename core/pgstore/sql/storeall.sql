-- Stores the responses of several claims, in the transaction of the batch that has carried
-- them out: store.sql for many.
--
-- $1 ids, $2 tokens, $3 states (d, or x if there is no response to store), $4 responses, as in
--    hexadecimal digits, $5 retentions, $6 for how much longer the keys are remembered, in µs:
--    all as texts of arrays  $7 the token of the batch
-- Returns the number of each claim that was the token's, and whether a duplicate waits.
WITH asked AS (
	SELECT * FROM unnest($1::text::text[], $2::text::text[], $3::text::text[], $4::text::text[], $5::text::bigint[], $6::text::bigint[])
		WITH ORDINALITY AS a (id, token, state, response, retention, stone, number)
), open AS MATERIALIZED (
	SELECT r.id FROM interlock_record AS r JOIN asked AS a ON r.id = a.id AND r.token = a.token
	WHERE r.state = 'c' AND current_setting('interlock.attempt', true) = $7::text
		AND CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) <> '' ELSE true END
	ORDER BY r.id FOR UPDATE OF r
)
UPDATE interlock_record AS r SET state = a.state, response = CASE a.state WHEN 'd' THEN decode(a.response, 'hex') END,
	steps = NULL, last_step = NULL, open_step = NULL,
	keep_until = greatest(r.keep_until, clock_timestamp() + a.retention * interval '1 microsecond'),
	stone_until = CASE WHEN a.stone > 0
		THEN greatest(r.stone_until, clock_timestamp() + (a.retention + a.stone) * interval '1 microsecond')
		ELSE r.stone_until END,
	sweep_hour = greatest(r.sweep_hour,
		floor(extract(epoch FROM clock_timestamp() + (a.retention + a.stone) * interval '1 microsecond') / 3600)::integer + 1)
FROM asked AS a, open AS o
WHERE r.id = o.id AND a.id = o.id AND r.token = a.token AND r.state = 'c'
RETURNING a.number, r.waits
