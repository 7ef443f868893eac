package casstore

import (
	"slices"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/driver/keystate"
)

// comesFirst reports whether a request can come into line before it looks whether it can have the lock. That compares nothing,
// and so holds also where others change the lock all the time.
func (c *claim) comesFirst(v *view) bool {
	return c.ask.Waiter != "" && c.ask.From == "" && c.ask.Line == driver.InTurn && !v.listed(c.ask.Waiter)
}

// lineUp has the locker come into line, and then looks.
func (c *claim) lineUp(v *view) (reply driver.Reply, again bool, err error) {
	c.entered, c.lined = true, true
	w := listed{Name: c.ask.Waiter, Process: c.process}
	if c.ask.Kind.Place() {
		w.Name = w.Name.AtPlaces()
	}
	return c.enter(v, Txn{Then: []Op{
		{Name: c.names.waits(c.ask.Key, c.ask.Waiter.ID()), Value: w.text()}, {Name: c.names.line(c.ask.Key), Value: c.process},
	}}, driver.Reply{Listed: true})
}

// hints are the calls to owners that the locker waits: the transaction that took it into line did not know them.
func (c *claim) hints(v *view) []keystate.Call {
	rec := v.rec.Clone()
	rec.SetWaiting(names(slices.DeleteFunc(slices.Clone(v.line.since(v.gone)), func(w listed) bool { return w.Name.ID() == v.own })))
	_, notices := rec.Acquire(c.ask, v.now)
	return slices.DeleteFunc(notices.Calls, func(call keystate.Call) bool { return call.What != driver.Wanted })
}

// enter writes the changes of a request that is refused: its locker comes into line. Then it looks at the
// lock again. If that was given up before the locker came, its holder has not called the locker.
func (c *claim) enter(v *view, txn Txn, refused driver.Reply) (reply driver.Reply, again bool, err error) {
	defer func(unknown bool) { c.unknown = unknown }(c.unknown) // it takes no lock
	c.beats = v.beats()
	txn.Then = append(txn.Then, c.beat(whole(c.ask.TTL))...) // a sweep finds the locker by it
	txn.Read, txn.Else = c.reads(), c.reads()
	tick := slices.IndexFunc(txn.Then, func(op Op) bool { return op.Name == txn.Else[1] })
	if tick >= 0 {
		txn.Read = slices.Delete(txn.Read, 1, 2) // it is known
	}
	answer, received, again, err := c.send(txn)
	if err != nil {
		return reply, again, err
	}
	if answer.Done && tick >= 0 {
		answer.Read = slices.Insert(answer.Read, 1, Entry{Name: txn.Else[1], Value: c.process, Revision: answer.Written[tick]})
	}
	c.learn(answer.Read, received)
	if !answer.Done {
		c.missed++
		return reply, true, nil
	}
	c.wrote(whole(c.ask.TTL))
	c.at = c.came(c.ask.Key, c.at, txn, answer)
	if c.ask.Line == driver.Newest {
		c.ask.Number = refused.Number // it has come
	}
	if v, err = c.open(c.ask.Key, c.at, received); err != nil {
		return reply, false, err
	}
	if v.Places && !v.at.allTaken && (refused.Full && c.few() == 0 || !c.ask.Kind.Place()) { // one may be free since
		return afresh(c.listPlaces())
	}
	in := v.listed(c.ask.Waiter)
	if v.own, v.place, v.atMost = c.ask.Waiter.ID(), c.ask.Kind.Place(), c.ask.AtMost; v.place {
		v.setPlaces(c.ask.Kind == driver.Permit)
	}
	reply, _ = v.rec.Acquire(c.ask, v.now)
	switch {
	case reply.Granted, refused.Listed && !in: // the lock was given up, and may have been taken anew
		if !reply.Granted {
			c.ask.Waiter = c.patient(c.ask.Waiter, c.ask.Kind)
		}
		return reply, true, nil
	case c.lined && len(c.hints(v)) > 0: // the next look sends them
		return reply, true, nil
	case !v.ordered && v.rec.Ordered(v.now): // it is shared by now, and the lock has to say that a writer waits
		return reply, true, nil
	}
	c.lined = false
	reply.Listed = reply.Listed && refused.Listed
	return v.refusal(reply), false, nil
}
