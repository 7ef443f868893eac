-- The tables of idempotency records, of fences and of locks. pgstore.Store.Migrate runs this
-- file; a migration tool can run it instead.

-- The versions of the tables. Each file notes its own.
CREATE TABLE interlock_version (
	version integer     NOT NULL PRIMARY KEY,
	made    timestamptz NOT NULL DEFAULT now()
);
INSERT INTO interlock_version (version) VALUES (1);

-- One row for each idempotency key.
CREATE TABLE interlock_record (
	id          text        NOT NULL PRIMARY KEY, -- a hash of principal and key
	token       text        NOT NULL, -- of the claim
	fingerprint bytea       NOT NULL, -- tells requests with one key apart
	generation  bigint      NOT NULL, -- 1, and one more with each take-over
	state       text        NOT NULL CHECK (state IN ('c', 'd', 'x')), -- claimed, done, done without its response
	marked      boolean     NOT NULL, -- an effect outside of the transaction may have happened
	waits       boolean     NOT NULL, -- a duplicate waits for the response
	lease_until timestamptz NOT NULL, -- of the claim
	keep_until  timestamptz NOT NULL, -- after it the record does not count
	stone_until timestamptz,          -- until when it is remembered that there was a response
	sweep_hour  integer     NOT NULL, -- the hour since 1970 when the row can be deleted
	ticket        text,               -- the token of the attempt that handed the claim over
	ticket_until  timestamptz,        -- its own end: until then no duplicate takes the claim
	earlier       text,               -- the ticket that this attempt had taken
	earlier_until timestamptz,        -- its end
	interim_by    text,               -- the token of the attempt with the interim response
	steps       bytea,                -- of a claim: the outcomes of its steps, until the response
	last_step   text,                 -- the last of them with an outcome
	open_step   text,                 -- the step that is under way and must not run twice
	response    bytea                 -- of a claim: the interim response, until the final one
) WITH (fillfactor = 70); -- room for the commit's version of a row on the same page

-- The only index that is not the key. Its column keeps its value when a record is
-- claimed and committed within an hour, so these updates touch no index.
CREATE INDEX ON interlock_record (sweep_hour);

-- The greatest fencing token of each lock key; see package core/fencing.
CREATE TABLE interlock_fence (
	key   text   NOT NULL PRIMARY KEY,
	token bigint NOT NULL
) WITH (fillfactor = 70);

-- One row for each lock, and for two hours one for each ticket that was taken over. A page is filled to a half only: the other half is for new
-- versions of its rows. An update that finds room on its page, and changes no column that
-- has an index, touches no index and leaves nothing for VACUUM.
CREATE TABLE interlock_lock (
	key         bytea       NOT NULL PRIMARY KEY,
	record      text        NOT NULL, -- JSON: who holds the lock, and who waits; as package keystate writes it
	token       bigint      NOT NULL, -- the last fencing token, as in the record
	lease_until timestamptz NOT NULL, -- when the last lease ends, or the time for which the lock is kept
	called      bigint      NOT NULL DEFAULT 0, -- the number of the last call of lockers that wait
	names       text        NOT NULL DEFAULT '' -- and the lockers that were called
) WITH (fillfactor = 50);
