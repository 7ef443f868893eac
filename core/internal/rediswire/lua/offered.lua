-- Statements that lengthen the turn of the locker to which the lock is offered. The time is
-- driver.OfferLasts, on which all processes that share locks count: it stays as it is.

patience = math.max(patience, 3000)
