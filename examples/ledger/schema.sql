-- The ledger: what each account has, and the payments that were made.

-- Processes that start at the same time run this file one after the other.
SELECT pg_advisory_xact_lock(hashtext('examples/ledger'));

CREATE TABLE IF NOT EXISTS account (
	id      text   NOT NULL PRIMARY KEY,
	balance bigint NOT NULL CHECK (balance >= 0)
);

-- No constraint keeps a payment from being made twice. The record does.
CREATE TABLE IF NOT EXISTS payment (
	id       bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	sender   text        NOT NULL REFERENCES account,
	receiver text        NOT NULL REFERENCES account,
	amount   bigint      NOT NULL CHECK (amount > 0),
	made     timestamptz NOT NULL DEFAULT now()
);

INSERT INTO account (id, balance) VALUES ('alice', 100), ('bob', 100), ('carol', 0) ON CONFLICT DO NOTHING;
