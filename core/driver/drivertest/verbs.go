package drivertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/driver"
)

// verb is an action, with the words that are allowed before the arrow of a step and after it.
type verb struct {
	asks, wants string
	answers     bool // a step says which answer is expected
	keyless     bool
	run         func(s *stage, p *step) error
}

const (
	tries   = "ttl left shared permit kind wait newest only number order offer from above noted"
	replies = "granted refused listed full out config any lost passed revoked holder token number ttl"
	renewed = "kept contended lost taken revoked"
)

var verbs = map[string]*verb{
	"acquires": {asks: tries, wants: replies, answers: true, run: (*stage).acquires},
	"stands":   {asks: tries, wants: replies, answers: true, run: (*stage).stands},
	"renews": {asks: "ttl shared permit", wants: renewed, answers: true, run: func(s *stage, p *step) error {
		return s.renewed(p, cmp.Or(p.asks.get("ttl").d, lease))
	}},
	"checks":   {asks: "shared permit", wants: renewed, answers: true, run: func(s *stage, p *step) error { return s.renewed(p, 0) }},
	"releases": {asks: "shared permit token remember revoked wait gone", wants: "others free lost revoked", run: (*stage).releases},
	"passes":   {asks: "on times", run: (*stage).passes},
	"declines": {asks: "wait", run: func(s *stage, p *step) error {
		return s.store.(driver.Turns).Decline(s.Context(), s.key(p.key), cmp.Or(s.waiter(p).ID(), s.id(p.actor)))
	}},
	"announces": {keyless: true, run: (*stage).announces},
	"withdraws": {keyless: true, run: func(s *stage, p *step) error {
		return s.store.(driver.Registry).Withdraw(s.Context(), s.id(p.actor))
	}},
	"hears":   {wants: "in others alone anything nothing", answers: true, run: (*stage).hears},
	"listens": {keyless: true, asks: "late", run: (*stage).listens},
	"learns":  {wants: "owners displaced nothing", answers: true, run: (*stage).learns},
	"takes":   {keyless: true, asks: "offers", run: (*stage).takes},
	"gets":    {wants: "contended token", answers: true, run: (*stage).gets},
	"halts":   {keyless: true, run: (*stage).halts},
}

// kind is the kind of the hold that an action is about.
func (all words) kind() driver.Kind {
	switch {
	case all.has("shared"):
		return driver.Shared
	case all.has("permit"):
		return driver.Permit
	}
	return driver.Kind(all.get("kind").n)
}

func (s *stage) request(p *step) driver.AcquireRequest {
	req := driver.AcquireRequest{
		Key: s.key(p.key), Owner: s.owner(p.actor), Kind: p.asks.kind(), AtMost: p.asks.get("permit").n,
		TTL: cmp.Or(p.asks.get("ttl").d, lease), Left: p.asks.get("left").d,
		Waiter: s.waiter(p),
		Number: s.value(p, p.asks.get("number")), Offer: s.value(p, p.asks.get("offer")),
		Above: s.value(p, p.asks.get("above")), Noted: p.asks.get("noted").d,
	}
	if from := p.asks.get("from"); from.name != "" {
		req.From = s.owner(from.value)
	}
	if p.asks.has("newest") {
		s.came++
		req.Line, req.Order = driver.Newest, cmp.Or(s.value(p, p.asks.get("order")), s.came)
	} else if p.asks.has("only") {
		req.Line = driver.OneWaiter
	}
	return req
}

// try makes a request, and checks the fields that every answer has.
func (s *stage) try(req driver.AcquireRequest) (driver.Reply, error) {
	req.Late = func(rep driver.Reply, err error) {
		s.Errorf("Acquire(%q) called Late(%+v, %v), and had not returned ErrPending", req.Key, rep, err)
	}
	before := time.Now()
	rep, err := s.store.Acquire(s.Context(), req)
	if err == nil && (rep.Ambiguous || rep.Granted && rep.Token <= 0 || rep.Sent.Before(before.Add(-time.Second)) || rep.Sent.After(time.Now())) {
		err = fmt.Errorf("the answer to a call that began at %v is %+v; expected are an instant of the call, or shortly before it, in Sent, and a token above 0", before, rep)
	}
	return rep, err
}

func (s *stage) acquires(p *step) error {
	rep, err := s.try(s.request(p))
	switch {
	case p.wants.has("config") && errors.Is(err, driver.ErrConfig), p.wants.has("lost") && isLost(err):
		return nil
	case p.wants.has("passed") && errors.Is(err, driver.ErrPassedOn), p.wants.has("revoked") && errors.Is(err, driver.ErrRevoked):
		return nil
	case err == nil:
		err = s.replied(p, rep)
	}
	return err
}

// isLost reports whether an owner does not hold its lock, and nothing is noted about it.
func isLost(err error) bool {
	return errors.Is(err, driver.ErrNotOwner) && !errors.Is(err, driver.ErrPassedOn) && !errors.Is(err, driver.ErrRevoked)
}

// stands makes the request of a caller while its locker holds the lock.
func (s *stage) stands(p *step) error {
	req := s.request(p)
	req.Owner = ""
	rep, err := s.store.(driver.Turns).Stand(s.Context(), req)
	if err == nil {
		err = s.replied(p, rep)
	}
	return err
}

// replied compares an answer with the expected one. A refusal has to be listed, full or out
// exactly if the step says so.
func (s *stage) replied(p *step, rep driver.Reply) error {
	differs := p.wants.has("config") || p.wants.has("lost") || p.wants.has("passed") || p.wants.has("revoked") || rep.Granted != p.wants.has("granted") || !rep.Granted &&
		(rep.Listed != p.wants.has("listed") || rep.Full != p.wants.has("full") || rep.Out != p.wants.has("out"))
	if differs && !p.wants.has("any") {
		return fmt.Errorf("the answer is %s", shown(rep))
	}
	if err := s.compares(p, rep); err != nil {
		return fmt.Errorf("the answer is %s: %w", shown(rep), err)
	}
	if rep.Granted || rep.Number != 0 {
		s.answers[p.key+" "+p.actor] = rep
	}
	if rep.Granted {
		more := map[driver.Kind]int64{driver.Permit: driver.Tokens - 1}[p.asks.kind()]
		s.highest[p.key] = max(s.highest[p.key], rep.Token+more)
	}
	return nil
}

// shown returns an answer in the words of a scenario.
func shown(rep driver.Reply) string {
	text := map[bool]string{true: "granted", false: "refused"}[rep.Granted]
	text += map[bool]string{true: " listed"}[rep.Listed] + map[bool]string{true: " full"}[rep.Full] + map[bool]string{true: " out"}[rep.Out]
	return fmt.Sprintf("%s holder=%s token=%d number=%d ttl=%v", text, rep.Holder, rep.Token, rep.Number, rep.TTL)
}

// renewed renews a lease; a time of zero only finds out whether the actor has the lock.
func (s *stage) renewed(p *step, ttl time.Duration) (err error) {
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	calls, indices, contended := 0, 0, false
	batch := []driver.Renewal{{Key: s.key(p.key), Owner: s.owner(p.actor), Kind: p.asks.kind(), TTL: ttl}}
	s.store.Renew(ctx, batch, func(i int, c bool, e error) {
		calls, indices, contended, err = calls+1, indices+i, c, e
	})
	if calls != 1 || indices != 0 {
		return fmt.Errorf("done was called %d times before Renew returned, up to index %d; expected is once, with 0", calls, indices)
	}
	lost := isLost(err)
	is := map[string]bool{
		"kept": err == nil && !contended, "contended": err == nil && contended,
		"lost": lost, "taken": lost && !errors.Is(err, driver.ErrDeleted), "revoked": errors.Is(err, driver.ErrRevoked),
	}
	for _, w := range p.wants {
		if is[w.name] {
			return nil
		}
	}
	return fmt.Errorf("the answer is: contended %v, error %w", contended, err)
}

func (s *stage) releases(p *step) error {
	req := driver.ReleaseRequest{
		Key: s.key(p.key), Owner: s.owner(p.actor), Kind: p.asks.kind(), AtMost: p.asks.get("permit").n, TTL: lease,
		Token:    cmp.Or(s.value(p, p.asks.get("token")), s.answers[p.key+" "+p.actor].Token),
		Remember: p.asks.has("remember"), Revoked: p.asks.get("revoked").d, Waiter: s.waiter(p), Deadline: soon(),
	}
	s.highest[p.key] = max(s.highest[p.key], req.Token)
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	if p.asks.has("gone") {
		cancel()
	}
	found, err := s.store.Release(ctx, req)
	fits := err == nil
	switch {
	case p.wants.has("lost"):
		fits = isLost(err)
	case p.wants.has("revoked"):
		fits = errors.Is(err, driver.ErrRevoked)
	}
	others := p.wants.get("others")
	if !fits || found.Others > 0 && (err != nil || p.wants.has("free")) || others.name != "" && found.Others != others.n {
		return fmt.Errorf("the answer is: others=%d, error %w", found.Others, err)
	}
	return nil
}

// passes hands a lock on in the process, without a request to the store: as often as the grant has
// tokens or, without such a bound, as often as the step says.
func (s *stage) passes(p *step) error {
	answer := s.answers[p.key+" "+p.actor]
	answer.Token += cmp.Or(answer.Room, int64(p.asks.get("times").n))
	s.answers[p.key+" "+p.actor] = answer
	s.highest[p.key] = max(s.highest[p.key], answer.Token)
	return nil
}

func (s *stage) announces(p *step) error {
	return s.store.(driver.Registry).Announce(s.Context(), driver.Announcement{
		ID: s.id(p.actor), Host: "host", PID: 1, Service: "service\x00\xff", Version: "v1", Started: time.Now(),
		Protocol: driver.Protocol, TTL: lease,
	})
}
