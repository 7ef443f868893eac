-- The version of a row l. It depends on no setting of the session.
encode(sha256(convert_to(ROW(l.owner, l.token, extract(epoch FROM l.lease_until), l.waiters, l.record)::text, 'UTF8')), 'hex')
