package idemcases

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/interlock-go/interlock/core/adapter/adaptertest"
	"github.com/interlock-go/interlock/core/idempotency"
)

// ledger holds the effects that handlers have in their transactions against the answers
// that clients get. A ledger that is nil does nothing: the effects are elsewhere.
type ledger struct {
	Transactions
	mu      sync.Mutex
	answers []string // of each run of a handler: its answer, "" if nothing is kept
	told    map[told]bool
}

// told is an answer of a handler that a client has got: the first one, or its replay.
type told struct{ key, principal, answer string }

// enter makes the effect of a run, and returns its number.
func (l *ledger) enter(ctx context.Context) (int, error) {
	if l == nil {
		return 0, nil
	}
	number := l.begin()
	err := l.Enter(ctx, number)
	if errors.Is(err, idempotency.ErrNoAttempt) { // it has no key
		return number, nil
	}
	return number, err
}

// begin returns the number of a run without an effect yet.
func (l *ledger) begin() int {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers = append(l.answers, "")
	return len(l.answers) - 1
}

// answer notes the answer of a run.
func (l *ledger) answer(number int, answer string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers[number] = answer
}

// tell notes an answer that a client has got. "" is none that is kept.
func (l *ledger) tell(key, principal, answer string) {
	if l == nil || key == "" || answer == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told[told{strings.Trim(key, `"`), principal, answer}] = true
}

// kept is a result with its text, if the two are kept together with the effect.
func kept(result adaptertest.Result, text string) string {
	if result == adaptertest.OK || result == adaptertest.Declined {
		return fmt.Sprint(result, " ", text)
	}
	return ""
}

// keptStatus is a status as the answer to a key, if it is kept together with the effect.
func keptStatus(status int, key string) string {
	switch status {
	case 307, 308, 401, 402, 408, 409, 423, 425, 429, 499:
		return ""
	}
	if status >= 500 {
		return ""
	}
	return "of " + key
}

// wantEntered fails the test unless each answer that a client got stands for one effect,
// and each effect for such an answer.
func (f *fixture) wantEntered() {
	f.Helper()
	if f.ledger == nil {
		return
	}
	entered, want := make(map[string]int), make(map[string]int)
	for _, number := range f.ledger.Entered(f) {
		entered[f.ledger.answers[number]]++
	}
	for answer := range f.ledger.told {
		want[answer.answer]++
	}
	if !maps.Equal(entered, want) {
		f.Errorf("committed are the effects of the answers %v; clients were told %v", entered, want)
	}
}
