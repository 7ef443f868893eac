-- The version of the row l. It depends on no setting of the session.
encode(sha256(convert_to(l.record, 'UTF8')), 'hex')
