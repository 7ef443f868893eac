-- Locks the rows of some locks, and reads them, before their records are changed in the same transaction.
--
-- $1 keys, each once, in their order
-- $2 lock_timeout: for how many ms the statement waits for the lock of one row
-- $3 for how many ms the transaction may be idle
--
-- Returns a row for each key, as write.sql does.
WITH conf AS MATERIALIZED (
	SELECT set_config('lock_timeout', $2::text, true) AS bound, set_config('idle_in_transaction_session_timeout', $3::text, true) AS idle
)
SELECT r.i, false AS done, coalesce(l.record, '') AS record, coalesce(l.called, 0) AS called, coalesce(l.names, '') AS names,
	(extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
FROM conf, unnest($1::bytea[]) WITH ORDINALITY AS r (key, i)
	LEFT JOIN LATERAL (SELECT record, called, names FROM interlock_lock WHERE key = r.key FOR NO KEY UPDATE) l ON true
