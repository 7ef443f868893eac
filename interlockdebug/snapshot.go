package interlockdebug

import (
	"cmp"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency/admin"
	"github.com/interlock-go/interlock/core/observe"
)

// maxRows bounds the locks, and the claims, that are listed.
const maxRows = 1000

// Snapshot is the content of the page, and its JSON. Times are in UTC, durations in seconds.
// Fields may be added to it.
type Snapshot struct {
	Time    time.Time `json:"time"`
	Host    string    `json:"host"`
	Process int       `json:"pid"`
	// KeysShown says that keys are shown in addition to their hashes ([ShowKeys]).
	KeysShown bool `json:"keys_shown"`
	// Observed says that there is an [Observer]. Without one Rules and Losses are
	// empty, and no waiting times are known.
	Observed bool `json:"observed"`

	// Held is how many locks this process holds, Waiting how many of its callers wait
	// for one or ask for it.
	Held    int `json:"held"`
	Waiting int `json:"waiting"`
	// Locks are these locks, the oldest first, then the locks that are only waited for: 1,000
	// at most.
	Locks []Lock `json:"locks"`
	Rules []Rule `json:"rules"`
	// Losses are the last 20, the newest first.
	Losses []Loss `json:"losses"`
	// Pending is how many claims of idempotent endpoints are not settled; Claims are
	// these claims, the oldest first, 1,000 at most.
	Pending int     `json:"pending"`
	Claims  []Claim `json:"claims"`
}

// Lock is a lock that the process holds or waits for.
type Lock struct {
	KeyHash string `json:"key_hash"`
	Key     string `json:"key,omitempty"` // with ShowKeys alone
	Held    bool   `json:"held"`
	Kind    string `json:"kind,omitempty"`
	AtMost  int    `json:"at_most,omitempty"`
	Rule    string `json:"rule,omitempty"`
	Token   int64  `json:"token,omitempty"`
	Holds   int    `json:"holds,omitempty"`
	// AgeSeconds is since when the present holder has it, LeftSeconds the time to
	// the deadline of its lease; negative when it has passed.
	AgeSeconds  float64 `json:"age_seconds,omitempty"`
	LeftSeconds float64 `json:"left_seconds,omitempty"`
	Renewals    int     `json:"renewals,omitempty"`
	LastError   string  `json:"last_error,omitempty"`
	Waiters     int     `json:"waiters"`
	// OldestWaitSeconds is how long the oldest of the waiters waits; 0 if that is not
	// known.
	OldestWaitSeconds float64 `json:"oldest_wait_seconds,omitempty"`
}

// Rule has the counts of one rule since the process began.
type Rule struct {
	Rule           string           `json:"rule"`
	Waiting        int              `json:"waiting"` // now
	Holding        int              `json:"holding"` // now
	Granted        int64            `json:"granted"`
	Reentered      int64            `json:"reentered"`
	Contended      int64            `json:"contended"`
	HandedOver     int64            `json:"handed_over"`
	Refused        map[string]int64 `json:"refused"` // by reason (reason.Reason)
	Lost           map[string]int64 `json:"lost"`    // by reason (observe.LossReason)
	Renewals       int64            `json:"renewals"`
	RenewalsFailed int64            `json:"renewals_failed"`
	Rejected       int64            `json:"rejected"` // before the lock was asked for
	Bypassed       int64            `json:"bypassed"` // FailOpen
	Decided        map[string]int64 `json:"decided"`  // requests of an idempotent endpoint, by outcome
	Wait           Latency          `json:"wait"`     // of acquisitions that were granted
	Hold           Latency          `json:"hold"`
	// Batches counts the sections of package gather, and Items the items in them. LargestBatch is the
	// number of items of the largest.
	Batches      int64 `json:"batches,omitempty"`
	Items        int64 `json:"items,omitempty"`
	LargestBatch int   `json:"largest_batch,omitempty"`
}

// Latency is a histogram of durations.
type Latency struct {
	Count      int64    `json:"count"`
	SumSeconds float64  `json:"sum_seconds"`
	Buckets    []Bucket `json:"buckets"`
}

// Bucket counts the durations above the bucket before it.
type Bucket struct {
	// UpToSeconds is the upper bound; the last bucket has none, and 0 here.
	UpToSeconds float64 `json:"up_to_seconds,omitempty"`
	Count       int64   `json:"count"`
}

// Loss is a lost lease.
type Loss struct {
	Time        time.Time `json:"time"`
	KeyHash     string    `json:"key_hash"`
	Key         string    `json:"key,omitempty"`
	Rule        string    `json:"rule,omitempty"`
	Route       string    `json:"route,omitempty"`
	Token       int64     `json:"token"`
	HeldSeconds float64   `json:"held_seconds"`
	Reason      string    `json:"reason"`
	Error       string    `json:"error,omitempty"`
}

// Claim is a claim of an idempotent endpoint that is not settled.
type Claim struct {
	Rule       string `json:"rule,omitempty"`
	Record     string `json:"record"`
	State      string `json:"state"` // admin.State
	Generation int64  `json:"generation,omitempty"`
	// AgeSeconds is since when, and LeftSeconds the time to its deadline; 0 if it has
	// none.
	AgeSeconds  float64 `json:"age_seconds,omitempty"`
	LeftSeconds float64 `json:"left_seconds,omitempty"`
}

// snapshot reads everything, one after the other: the parts may differ by events in between.
func (p *page) snapshot() *Snapshot {
	now := time.Now()
	s := &Snapshot{
		Time: now.UTC(), Process: os.Getpid(), KeysShown: p.showKeys, Observed: p.observer != nil,
		Locks: []Lock{}, Rules: []Rule{}, Losses: []Loss{}, Claims: []Claim{},
	}
	s.Host, _ = os.Hostname() // empty if it has none
	p.locks(s, now)
	p.claims(s, now)
	if p.observer != nil {
		p.counts(s)
	}
	return s
}

func (p *page) locks(s *Snapshot, now time.Time) {
	all := p.locker.Held()
	for _, h := range all {
		if h.Held {
			s.Held++
		}
		s.Waiting += h.Waiters
	}
	slices.SortStableFunc(all, func(a, b core.Holding) int {
		switch {
		case a.Held && !b.Held:
			return -1
		case b.Held && !a.Held:
			return 1
		}
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(b.Waiters, a.Waiters))
	})
	since := p.observer.waiting()
	for _, h := range all[:min(len(all), maxRows)] {
		l := Lock{
			KeyHash: core.Hashed(h.Key).Hash(), Key: p.key(h.Key), Held: h.Held, Kind: h.Kind, AtMost: h.AtMost, Rule: h.Rule,
			Token: h.Token, Holds: h.Holds, Renewals: h.Renewals, LastError: p.errorText(h.LastError, h.Key), Waiters: h.Waiters,
		}
		if h.Held {
			l.AgeSeconds, l.LeftSeconds = now.Sub(h.Since).Seconds(), h.Deadline.Sub(now).Seconds()
		}
		if begin, known := since[h.Key]; known && h.Waiters > 0 {
			l.OldestWaitSeconds = max(0, now.Sub(begin).Seconds())
		}
		s.Locks = append(s.Locks, l)
	}
}

func (p *page) claims(s *Snapshot, now time.Time) {
	var all []admin.Claim
	for _, e := range p.engines {
		all = append(all, e.PendingClaims()...)
	}
	slices.SortStableFunc(all, func(a, b admin.Claim) int { return a.Since.Compare(b.Since) })
	s.Pending = len(all)
	for _, c := range all[:min(len(all), maxRows)] {
		claim := Claim{Rule: c.Rule, Record: c.Record, State: string(c.State), Generation: c.Generation}
		if !c.Since.IsZero() {
			claim.AgeSeconds = now.Sub(c.Since).Seconds()
		}
		if !c.Deadline.IsZero() {
			claim.LeftSeconds = c.Deadline.Sub(now).Seconds()
		}
		s.Claims = append(s.Claims, claim)
	}
}

func (p *page) counts(s *Snapshot) {
	o := p.observer
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, r := range o.rules {
		s.Rules = append(s.Rules, Rule{
			Rule: name, Waiting: r.waiting, Holding: r.holding,
			Granted: r.granted, Reentered: r.reentered, Contended: r.contended, HandedOver: r.handedOver,
			Refused: copied(r.refused), Lost: copied(r.lost), Decided: copied(r.decided),
			Renewals: r.renewed, RenewalsFailed: r.renewalsFailed, Rejected: r.rejected, Bypassed: r.bypassed,
			Wait: r.wait.snapshot(), Hold: r.hold.snapshot(), Batches: r.batches, Items: r.items, LargestBatch: r.largest,
		})
	}
	slices.SortFunc(s.Rules, func(a, b Rule) int { return strings.Compare(a.Rule, b.Rule) })
	for i, l := range slices.Backward(o.losses) {
		s.Losses = append(s.Losses, Loss{
			Time: o.lostAt[i].UTC(), KeyHash: l.Key.Hash(), Key: p.key(string(l.Key)), Rule: l.Rule, Route: l.Route, Token: l.Token,
			HeldSeconds: l.Held.Seconds(), Reason: string(l.Reason), Error: p.errorText(l.Err, string(l.Key)),
		})
	}
}

// copied is a copy that is an object in JSON also where it is empty.
func copied(counts map[string]int64) map[string]int64 {
	c := make(map[string]int64, len(counts))
	maps.Copy(c, counts)
	return c
}

// key is a key where keys are shown.
func (p *page) key(key string) string {
	if p.showKeys {
		return key
	}
	return ""
}

// errorText is the shown text of an error: its root cause, unless that contains a hidden key.
func (p *page) errorText(err error, key string) string {
	if err == nil {
		return ""
	}
	text := observe.RootCause(err).Error()
	if !p.showKeys && strings.Contains(text, key) {
		return "(an error whose text has the key)"
	}
	return text
}
