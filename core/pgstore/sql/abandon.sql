-- Gives up a claim as if it had never been made, and tells the waiting requests. It
-- waits for a transaction that is just committing the record.
--
-- $1 id  $2 token  $3 channel of the announcement, or empty
-- $4 lock_timeout: for how many ms the statement waits for the lock of a row
WITH conf AS MATERIALIZED (
	SELECT set_config('lock_timeout', $4::text, true) AS bound
), gone AS (
	DELETE FROM interlock_record USING conf WHERE id = $1::text AND token = $2::text AND state = 'c' AND keep_until > clock_timestamp()
	RETURNING waits
)
SELECT count(*), (SELECT count(pg_notify($3::text, 'record ' || $1::text)::text) FROM gone WHERE waits AND $3::text <> '') FROM gone
