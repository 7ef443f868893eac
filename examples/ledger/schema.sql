-- The ledger. What a payment takes from one account it gives to another one: the
-- entries of each payment add up to 0.

-- Processes that start at the same time run this file one after the other.
SELECT pg_advisory_xact_lock(hashtext('examples/ledger'));

CREATE TABLE IF NOT EXISTS account (
	id      text   NOT NULL PRIMARY KEY,
	balance bigint NOT NULL CHECK (balance >= 0)
);

-- No constraint keeps a payment from being made twice. The record does.
CREATE TABLE IF NOT EXISTS payment (
	id   bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	made timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS entry (
	payment bigint NOT NULL REFERENCES payment,
	account text   NOT NULL REFERENCES account,
	amount  bigint NOT NULL, -- below 0: taken from the account
	PRIMARY KEY (payment, account)
);

INSERT INTO account (id, balance) VALUES ('alice', 100), ('bob', 100), ('carol', 0) ON CONFLICT DO NOTHING;
