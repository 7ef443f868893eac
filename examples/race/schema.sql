-- One account for each approach. Only Interlock uses the fence.
CREATE TABLE account (
	id      text   NOT NULL PRIMARY KEY,
	balance bigint NOT NULL,
	fence   bigint NOT NULL DEFAULT 0
);

-- Every write of a balance, with the balance that it replaced. A trigger notes it, so the
-- count of lost updates does not depend on the processes that write.
CREATE TABLE change (
	account text   NOT NULL,
	before  bigint NOT NULL,
	after   bigint NOT NULL
);

CREATE FUNCTION note_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO change (account, before, after) VALUES (NEW.id, OLD.balance, NEW.balance);
	RETURN NULL;
END $$;

CREATE TRIGGER note_change AFTER UPDATE OF balance ON account
	FOR EACH ROW EXECUTE FUNCTION note_change();

-- How many holders an account has now, and how many began while it had another one (met).
CREATE TABLE holding (
	account text NOT NULL PRIMARY KEY,
	holders int  NOT NULL DEFAULT 0,
	met     int  NOT NULL DEFAULT 0
);
