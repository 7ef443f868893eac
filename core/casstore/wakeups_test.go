package casstore_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/casstore"
	"github.com/interlock-go/interlock/core/casstore/castest"
	"github.com/interlock-go/interlock/core/driver"
)

// locker is a locker of another process, by its store.
type locker struct {
	*casstore.Store
	t  *testing.T
	id string
}

func (l locker) ask() driver.Reply {
	l.t.Helper()
	reply, err := l.Acquire(l.t.Context(), driver.AcquireRequest{
		Key: "k", Owner: l.id + ":1", TTL: lease, Waiter: driver.NewWaiter(l.id, driver.Exclusive, time.Millisecond),
	})
	if err != nil {
		l.t.Fatalf("%s: %v", l.id, err)
	}
	return reply
}

func (l locker) release() {
	l.t.Helper()
	if _, err := l.Release(l.t.Context(), driver.ReleaseRequest{Key: "k", Owner: l.id + ":1", TTL: lease}); err != nil {
		l.t.Fatalf("%s: %v", l.id, err)
	}
}

// called returns a channel with the calls of the locker.
func (l locker) called() chan driver.Call {
	calls := make(chan driver.Call, 10)
	l.t.Cleanup(l.Calls(l.id, func(c driver.Call) {
		if c.Key == "k" {
			calls <- c
		}
	}))
	return calls
}

// A locker comes into line without a look at earlier lockers. When it takes the lock, the turn of the first locker is
// over, and the first locker has to know: it asks again.
func TestALockerIsCalledAfterAStrangerHasTakenItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a, b, c := locker{open(t, server), t, "a"}, locker{open(t, server), t, "b"}, locker{open(t, server), t, "c"}
		a.ask()
		c.ask()
		b.ask() // it has not seen the locker before it
		calls := c.called()
		a.release()
		<-calls // and the locker does not come
		for !b.ask().Granted {
			time.Sleep(time.Millisecond)
		}
		select {
		case <-calls:
		case <-time.After(time.Second):
			t.Errorf("the locker was not called within a second after another has taken its turn; want that it asks again")
		}
	})
}

// A process that dies between the end of a lock and its place in line leaves an entry for an hour.
func TestAnEntryFromBeforeTheLockWasMadeDelaysNoLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		_, err := server.Commit(t.Context(), casstore.Txn{Then: []casstore.Op{
			{Name: "interlock/k/line/dead", Value: `{"name":"dead~Q","process":"0123456789abcdef01234567"}`},
			{Name: "interlock/k/line", Value: "0123456789abcdef01234567"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		a, b := start(t, server), start(t, server)
		held := a.lock(t, "k")
		had := make(chan time.Time, 1)
		go func() {
			_ = b.lock(t, "k").Release(t.Context())
			had <- time.Now()
		}()
		time.Sleep(time.Second)
		released := time.Now()
		_ = held.Release(t.Context())
		if took := (<-had).Sub(released); took > 20*time.Millisecond {
			t.Errorf("the only caller that waits has the lock %v after the release; want 20 ms at most", took)
		}
	})
}

// laterLists is a server with lists that are of a later moment than the other entries of an answer. With names, the
// names in them are of the same moment, and the values of the later one.
type laterLists struct {
	casstore.Server
	between func()
	names   bool
}

func (s *laterLists) Commit(ctx context.Context, txn casstore.Txn) (casstore.Answer, error) {
	lists := txn.List
	if len(lists) == 0 || s.between == nil {
		return s.Server.Commit(ctx, txn)
	}
	answer, err := s.Server.Commit(ctx, txn)
	if err != nil {
		return answer, err
	}
	s.between()
	txn = casstore.Txn{List: lists}
	if s.names {
		txn.List = nil
		for _, e := range answer.Lists[0] {
			txn.Read = append(txn.Read, e.Name)
		}
	}
	later, err := s.Server.Commit(ctx, txn)
	if answer.Lists = later.Lists; s.names {
		answer.Lists = [][]casstore.Entry{slices.DeleteFunc(later.Read, func(e casstore.Entry) bool { return !e.There() })}
	}
	return answer, err
}

// The locker is in the list, and the line is not as it was read. A release that finds no locker in line deletes the
// lock.
func TestALockerThatComesWhileTheLineIsListedIsCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := castest.NewMemory()
		server := &laterLists{Server: memory}
		a, b, c := locker{open(t, server), t, "a"}, locker{open(t, memory), t, "b"}, locker{open(t, memory), t, "c"}
		a.ask()
		b.ask()
		if err := b.Decline(t.Context(), "k", "b"); err != nil {
			t.Fatal(err)
		}
		var calls chan driver.Call
		server.between = func() {
			if server.between = nil; c.ask().Granted {
				t.Error("the lock was granted while it is held")
			}
			calls = c.called()
		}
		a.release()
		if calls == nil {
			t.Fatal("the release has not listed the line; want that it does where the line was written")
		}
		select {
		case <-calls:
		case <-time.After(time.Second):
			t.Error("the locker was not called within a second after the release")
		}
	})
}

// Processes that take offers die in line. The others have the lock after the time of one offer, however many have
// died.
func TestTheDeadInLineDelayTheOthersByOneOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a, last := start(t, server), start(t, server)
		held := a.lock(t, "k")
		waits := func(m *machine) { // from then on the process takes offers
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, _ = m.Lock(ctx, "k")
		}
		waits(last)
		ctx, cancel := context.WithCancel(t.Context())
		var all []*machine
		defer func() {
			for _, dead := range all {
				dead.cut.Store(false)
			}
			cancel()
			time.Sleep(time.Minute) // their requests end
		}()
		for range 8 {
			dead := start(t, server, core.Unlisted())
			all = append(all, dead)
			waits(dead)
			go func() { _, _ = dead.Lock(ctx, "k") }()
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			dead.cut.Store(true)
		}
		had := make(chan time.Time, 1)
		go func() {
			_ = last.lock(t, "k").Release(t.Context())
			had <- time.Now()
		}()
		time.Sleep(100 * time.Millisecond)
		released := time.Now()
		_ = held.Release(t.Context())
		took := (<-had).Sub(released)
		t.Logf("%v", took)
		if took > driver.OfferLasts+2*time.Second {
			t.Errorf("the living one has the lock after %v; want one offer and 2 s at most", took)
		}
	})
}

// A newest caller goes before all others, so its process writes the order of the line anew, with the locker in it. The
// locker does not know that when it leaves.
func TestALockerLeavesALineThatAnotherProcessHasWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a, b, c := locker{open(t, server), t, "a"}, locker{open(t, server), t, "b"}, locker{open(t, server), t, "c"}
		a.ask()
		locker{b.Store, t, "first"}.ask() // of the same process
		b.ask()
		newest, err := c.Acquire(t.Context(), driver.AcquireRequest{
			Key: "k", Owner: "c:1", TTL: lease, Line: driver.Newest, Waiter: driver.NewWaiter("c", driver.Exclusive, time.Millisecond),
		})
		if err != nil || !newest.Listed {
			t.Fatalf("%+v, %v; want the newest caller in line", newest, err)
		}
		if view, err := a.Look(t.Context(), "k"); err != nil || !strings.HasPrefix(string(view.Waiting), "c~") {
			t.Errorf("%q wait, %v; want the newest caller before the others", view.Waiting, err)
		}
		before := server.Commits()
		if err := b.Decline(t.Context(), "k", "b"); err != nil {
			t.Fatal(err)
		}
		if n := server.Commits() - before; n > 4 {
			t.Errorf("a locker left the line in %d transactions; want 4 at most", n)
		}
		view, err := a.Look(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		for w := range view.Waiting.All() {
			if w.ID() == "b" {
				t.Errorf("%q wait; want the others alone", view.Waiting)
			}
		}
	})
}

// A locker knows no locker that has come before it, and leaves.
func TestALockerThatLeavesTakesNoOtherOutOfTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a, b, c := locker{open(t, server), t, "a"}, locker{open(t, server), t, "b"}, locker{open(t, server), t, "c"}
		a.ask()
		c.ask()
		b.ask()
		if err := b.Decline(t.Context(), "k", "b"); err != nil {
			t.Fatal(err)
		}
		if view, err := a.Look(t.Context(), "k"); err != nil || view.Waiting != "c~a" {
			t.Errorf("%q wait, %v; want the first locker alone", view.Waiting, err)
		}
	})
}

// A locker that has come again meanwhile is in the list, a locker from before it is not. The call of the first locker
// has the line after it, and that must end before a gap.
func TestALockerThatAListHasMissedIsNotPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := castest.NewMemory()
		server := &laterLists{Server: memory, names: true}
		a := locker{open(t, server), t, "a"}
		first, missed, again := locker{open(t, memory), t, "first"}, locker{open(t, memory), t, "missed"}, locker{open(t, memory), t, "again"}
		a.ask()
		first.ask()
		again.ask()
		calls := []chan driver.Call{first.called(), missed.called(), again.called()}
		synctest.Wait()
		server.between = func() {
			server.between = nil
			missed.ask()
			if err := again.Decline(t.Context(), "k", "again"); err != nil {
				t.Error(err)
			}
			again.ask()
		}
		a.release()
		for i, l := range []locker{first, missed, again} {
			synctest.Wait() // no time passes: nothing but the release can have called it
			select {
			case <-calls[i]:
			default:
				t.Fatalf("the release has not called locker %q, which is the next one", l.id)
			}
			if !l.ask().Granted {
				t.Fatalf("locker %q has not got the lock in its turn", l.id)
			}
			l.release()
		}
		if server.between != nil {
			t.Error("the release has not listed the line; want that it does where the line was written")
		}
	})
}

// The process of a writer takes a lock for another's that is shared by now. The writer comes into line without a look,
// and then must keep new readers out.
func TestAWriterThatTakesASharedLockForAnotherKeepsNewReadersOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a, writer := locker{open(t, server), t, "a"}, locker{open(t, server), t, "writer"}
		a.ask()
		writer.ask()
		if err := writer.Decline(t.Context(), "k", "writer"); err != nil {
			t.Fatal(err)
		}
		a.release()
		read := func(id string) bool {
			l := locker{open(t, server), t, id}
			reply, err := l.Acquire(t.Context(), driver.AcquireRequest{
				Key: "k", Owner: id + ":1", Kind: driver.Shared, TTL: lease, Waiter: driver.NewWaiter(id, driver.Shared, time.Millisecond),
			})
			if err != nil {
				t.Fatal(err)
			}
			return reply.Granted
		}
		if !read("first") {
			t.Fatal("the lock is free; want that a reader has it")
		}
		if reply, err := writer.Acquire(t.Context(), driver.AcquireRequest{
			Key: "k", Owner: "writer:2", TTL: lease, Left: time.Minute, Waiter: driver.NewWaiter("writer", driver.Exclusive, time.Millisecond),
		}); err != nil || !reply.Listed {
			t.Fatalf("%+v, %v; want the writer in line", reply, err)
		}
		if read("second") {
			t.Error("a reader has passed the writer; want that it waits behind")
		}
	})
}

// The process of the holder knows the last locker in line, which is in the same process, and not the first.
func TestAReleaseCallsTheFirstLockerAlsoIfItKnowsALaterOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		store := open(t, server)
		a, first, own := locker{store, t, "a"}, locker{open(t, server), t, "first"}, locker{store, t, "own"}
		a.ask()
		first.ask()
		own.ask()
		store.Renew(t.Context(), []driver.Renewal{{Key: "k", Owner: "a:1", TTL: lease}}, func(_ int, contended bool, err error) {
			if err != nil || !contended {
				t.Errorf("Renew: %v, %v; want that others wait", contended, err)
			}
		})
		calls := first.called()
		a.release()
		synctest.Wait()
		select {
		case <-calls:
		default:
			t.Error("the release has not called the first locker in line")
		}
	})
}

// The call has the rest of the line and the version of the lock. So the process that takes an offer reads nothing to
// offer the lock to the next locker.
func TestALockIsOfferedOnByOneTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		a := start(t, server)
		held := a.lock(t, "k")
		all := make(chan *core.Lease, 2)
		for range cap(all) {
			m := start(t, server)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // from then on the process takes offers
			_, _ = m.Lock(ctx, "k")
			cancel()
			go func() { all <- m.lock(t, "k") }()
			time.Sleep(100 * time.Millisecond)
		}
		_ = held.Release(t.Context())
		first := <-all
		before := server.Commits()
		_ = first.Release(t.Context())
		second := <-all
		if n := server.Commits() - before; n != 1 {
			t.Errorf("%d transactions until the next process had the lock; want 1, the release", n)
		}
		_ = second.Release(t.Context())
	})
}

// A reader comes into line without a look at the writer before it, behind another reader of its process that has been
// called. It may join the readers that have the lock only if no writer is before it.
func TestAReaderDoesNotPassAWriterThatItDoesNotKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		ask := func(s *casstore.Store, id string, kind driver.Kind) driver.Reply { return askFor(t, s, id, kind) }
		holder, readers, other, writer := open(t, server), open(t, server), open(t, server), open(t, server)
		ask(holder, "holder", driver.Exclusive)
		ask(readers, "called", driver.Shared)
		ask(other, "reads", driver.Shared)
		ask(writer, "writer", driver.Exclusive)
		ask(readers, "late", driver.Shared)
		if _, err := holder.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: "holder:1", TTL: lease}); err != nil {
			t.Fatal(err)
		}
		if !ask(other, "reads", driver.Shared).Granted {
			t.Fatal("the lock was given up, and its reader was called; want that it has the lock")
		}
		ask(writer, "writer", driver.Exclusive) // from then on others wait after it
		if ask(readers, "late", driver.Shared).Granted {
			t.Error("a reader has passed a writer in line; want that it waits behind")
		}
	})
}

// The call of a reader has the line up to the next reader, and not the writer behind them.
func TestAReaderThatIsCalledKeepsOthersOutForAWriterThatItDoesNotKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := castest.NewMemory()
		ask := func(s *casstore.Store, id string, kind driver.Kind) driver.Reply { return askFor(t, s, id, kind) }
		holder, reader, writer, late := open(t, server), open(t, server), open(t, server), open(t, server)
		ask(holder, "holder", driver.Exclusive)
		ask(reader, "reader", driver.Shared)
		holder.Renew(t.Context(), []driver.Renewal{{Key: "k", Owner: "holder:1", TTL: lease}}, func(_ int, contended bool, err error) {
			if err != nil || !contended { // and so the line is known that far
				t.Errorf("Renew: %v, %v; want that others wait", contended, err)
			}
		})
		ask(writer, "writer", driver.Exclusive)
		called := locker{reader, t, "reader"}.called()
		if _, err := holder.Release(t.Context(), driver.ReleaseRequest{Key: "k", Owner: "holder:1", TTL: lease}); err != nil {
			t.Fatal(err)
		}
		<-called
		if !ask(reader, "reader", driver.Shared).Granted {
			t.Fatal("the lock was given up, and its reader was called; want that it has the lock")
		}
		if ask(late, "late", driver.Shared).Granted {
			t.Error("a reader has passed a writer in line; want that it waits behind")
		}
	})
}

// askFor has a locker that waits for a minute ask once.
func askFor(t *testing.T, s *casstore.Store, id string, kind driver.Kind) driver.Reply {
	t.Helper()
	reply, err := s.Acquire(t.Context(), driver.AcquireRequest{
		Key: "k", Owner: id + ":1", Kind: kind, TTL: lease, Left: time.Minute, Waiter: driver.NewWaiter(id, kind, time.Minute),
	})
	if err != nil {
		t.Fatalf("%s: %v", id, err)
	}
	return reply
}
