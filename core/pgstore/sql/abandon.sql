-- Gives up a claim as if it had never been made, and tells the waiting requests. If it
-- had taken over from an earlier claim, the earlier claim is left, and has lapsed: a request
-- was begun before, and the next claim has to know. The statement waits for a transaction
-- that is just committing the record.
--
-- $1 id  $2 token  $3 channel of the announcement, or empty
-- $4 lock_timeout: for how many ms the statement waits for the lock of a row
WITH conf AS MATERIALIZED (
	SELECT set_config('lock_timeout', $4::text, true) AS bound
), gone AS (
	DELETE FROM interlock_record USING conf
	WHERE id = $1::text AND token = $2::text AND state = 'c' AND keep_until > clock_timestamp() AND generation = 1
	RETURNING waits
), left_over AS (
	UPDATE interlock_record SET token = '-', generation = generation - 1, lease_until = clock_timestamp()
	FROM conf
	WHERE id = $1::text AND token = $2::text AND state = 'c' AND keep_until > clock_timestamp() AND generation > 1
	RETURNING waits
), given_up AS (
	SELECT waits FROM gone UNION ALL SELECT waits FROM left_over
)
SELECT count(*), (SELECT count(pg_notify($3::text, 'record ' || $1::text)::text) FROM given_up WHERE waits AND $3::text <> '') FROM given_up
