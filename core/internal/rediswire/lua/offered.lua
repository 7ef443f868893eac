-- Statements that lengthen the turn of the locker that is offered the lock. The time is
-- driver.OfferLasts. All processes that share locks count on it: it stays as it is.

patience = math.max(patience, 3000)
