-- The accounts of the ledger, its bookings, and the messages of the gateway to the consumer.

-- Processes that start at the same time run this file one after the other.
SELECT pg_advisory_xact_lock(hashtext('examples/across'));

CREATE TABLE IF NOT EXISTS account (
	id      text   NOT NULL PRIMARY KEY,
	balance bigint NOT NULL CHECK (balance >= 0)
);

-- No constraint keeps a payment from being booked twice. The record of the call does.
CREATE TABLE IF NOT EXISTS booking (
	id      bigint NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	payment text   NOT NULL,
	account text   NOT NULL,
	amount  bigint NOT NULL
);

-- A message is deleted when its work is done. Until then it is delivered each time that it is due.
CREATE TABLE IF NOT EXISTS message (
	id   bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	body jsonb       NOT NULL,
	due  timestamptz NOT NULL DEFAULT now()
);

INSERT INTO account (id, balance) VALUES ('alice', 100), ('bob', 100) ON CONFLICT DO NOTHING;
