-- Gives up a claim as if it had never been made. If it had taken over from an earlier
-- claim, the earlier claim is left, and has lapsed: a request was begun before, and the next
-- claim has to know. A claim that was taken with a ticket goes back to the ticket, for the
-- ticket's own time, also if it was handed over since; after its interim response the claim of a ticket
-- stays. A record with steps stays, too, and no step is open. The statement waits for a transaction that is just committing the record. A row that is
-- remembered for longer than its response was kept stays.
--
-- $1 id  $2 token
-- $3 lock_timeout: for how many ms the statement waits for the lock of a row
-- Returns how many claims were given up, and whether a duplicate waits.
WITH conf AS MATERIALIZED (
	SELECT set_config('lock_timeout', $3::text, true) AS bound,
		CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END AS flush
), gone AS (
	DELETE FROM interlock_record USING conf
	WHERE id = $1::text AND token = $2::text AND state = 'c' AND keep_until > clock_timestamp() AND generation = 1 AND steps IS NULL
		AND (ticket IS NULL OR ticket = token AND earlier IS NULL AND interim_by IS DISTINCT FROM token) AND coalesce(stone_until <= statement_timestamp(), true)
	RETURNING waits
), remembered AS (
	UPDATE interlock_record SET token = '-', keep_until = clock_timestamp(), lease_until = clock_timestamp()
	FROM conf
	WHERE id = $1::text AND token = $2::text AND state = 'c' AND keep_until > clock_timestamp() AND generation = 1 AND steps IS NULL
		AND (ticket IS NULL OR ticket = token AND earlier IS NULL AND interim_by IS DISTINCT FROM token) AND stone_until > statement_timestamp()
	RETURNING waits
), left_over AS (
	UPDATE interlock_record SET token = '-', generation = generation - 1, lease_until = clock_timestamp(),
		ticket = NULL, ticket_until = NULL, open_step = NULL
	FROM conf
	WHERE id = $1::text AND token = $2::text AND state = 'c' AND keep_until > clock_timestamp() AND (generation > 1 OR steps IS NOT NULL)
		AND (ticket IS NULL OR ticket = token AND earlier IS NULL AND interim_by IS DISTINCT FROM token)
	RETURNING waits
), given_back AS (
	UPDATE interlock_record SET token = '-', generation = generation - 1, open_step = NULL,
		ticket = CASE WHEN ticket = token THEN earlier ELSE ticket END,
		ticket_until = CASE WHEN ticket = token THEN earlier_until ELSE ticket_until END,
		lease_until = CASE WHEN ticket = token THEN earlier_until ELSE ticket_until END,
		earlier = CASE WHEN ticket <> token THEN earlier END,
		earlier_until = CASE WHEN ticket <> token THEN earlier_until END
	FROM conf
	WHERE id = $1::text AND token = $2::text AND state = 'c' AND keep_until > clock_timestamp()
		AND (ticket <> token OR earlier IS NOT NULL AND interim_by IS DISTINCT FROM token)
	RETURNING waits
), given_up AS (
	SELECT waits FROM gone UNION ALL SELECT waits FROM remembered UNION ALL SELECT waits FROM left_over
	UNION ALL SELECT waits FROM given_back
)
SELECT count(*), coalesce(bool_or(waits), false) FROM given_up
