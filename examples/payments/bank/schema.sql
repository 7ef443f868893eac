-- The accounts, each with its balance and its fence, and the payments that were made.

-- Processes that start at the same time run this file one after the other.
SELECT pg_advisory_xact_lock(hashtext('examples/payments'));

CREATE TABLE IF NOT EXISTS payments_account (
	id      text   NOT NULL PRIMARY KEY,
	balance bigint NOT NULL,
	token   bigint NOT NULL
);

-- No constraint keeps a payment from being made twice. Its record does.
CREATE TABLE IF NOT EXISTS payments_payment (
	id      text        NOT NULL PRIMARY KEY,
	account text        NOT NULL,
	amount  bigint      NOT NULL,
	made    timestamptz NOT NULL DEFAULT now()
);
