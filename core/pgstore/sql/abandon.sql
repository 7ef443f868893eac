-- Gives up a claim as if it had never been made. If it had taken over from an earlier
-- claim, the earlier claim is left, and has lapsed: a request was begun before, and the next
-- claim has to know. A claim that was taken with a ticket goes back to the ticket, and its lease
-- stays; after an interim response the claim of the ticket itself stays. The statement waits for a transaction that is just committing the
-- record. A row that is remembered for longer than its response was kept stays.
--
-- $1 id  $2 token
-- $3 lock_timeout: for how many ms the statement waits for the lock of a row
-- Returns how many claims were given up, and whether a duplicate waits.
WITH conf AS MATERIALIZED (
	SELECT set_config('lock_timeout', $3::text, true) AS bound,
		CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END AS flush
), gone AS (
	DELETE FROM interlock_record USING conf
	WHERE id = $1::text AND token = $2::text AND state = 'c' AND keep_until > clock_timestamp() AND generation = 1
		AND (ticket IS NULL OR ticket = token AND response IS NULL) AND coalesce(stone_until <= statement_timestamp(), true)
	RETURNING waits
), remembered AS (
	UPDATE interlock_record SET token = '-', keep_until = clock_timestamp(), lease_until = clock_timestamp()
	FROM conf
	WHERE id = $1::text AND token = $2::text AND state = 'c' AND keep_until > clock_timestamp() AND generation = 1
		AND (ticket IS NULL OR ticket = token AND response IS NULL) AND stone_until > statement_timestamp()
	RETURNING waits
), left_over AS (
	UPDATE interlock_record SET token = '-', generation = generation - 1, lease_until = clock_timestamp(), ticket = NULL
	FROM conf
	WHERE id = $1::text AND token = $2::text AND state = 'c' AND keep_until > clock_timestamp() AND generation > 1
		AND (ticket IS NULL OR ticket = token AND response IS NULL)
	RETURNING waits
), given_back AS (
	UPDATE interlock_record SET token = '-', generation = generation - 1
	FROM conf
	WHERE id = $1::text AND token = $2::text AND state = 'c' AND keep_until > clock_timestamp() AND ticket <> token
	RETURNING waits
), given_up AS (
	SELECT waits FROM gone UNION ALL SELECT waits FROM remembered UNION ALL SELECT waits FROM left_over
	UNION ALL SELECT waits FROM given_back
)
SELECT count(*), coalesce(bool_or(waits), false) FROM given_up
