-- Gives up one lock where that is simple: the owner holds it, and no locker waits for it.
-- It does what release.sql does, for a part of its price.
--
-- $1 key      $2 owner      $3 the last token given out under the owner
-- $4 lock_timeout: for how many ms the statement waits for the lock of the row
--
-- Returns when the release was, in µs since 1970; no row says to ask release.sql.
UPDATE interlock_lock l SET
	owner = NULL,
	token = greatest(l.token, $3::bigint),
	lease_until = least(l.lease_until, clock_timestamp()),
	called_at = clock_timestamp()
FROM (SELECT set_config('lock_timeout', $4::text, true) AS bound, set_config('synchronous_commit', 'off', true) AS flush) conf
WHERE l.key = $1::bytea AND l.owner = $2::text AND l.lease_until > clock_timestamp() AND l.waiters = '{}'
RETURNING (extract(epoch FROM l.called_at) * 1000000)::bigint AS called
