package casstore

import (
	"context"
	"errors"
	"testing"
	"time"
)

// lossy is a server of which no answer arrives.
type lossy struct{ Server }

func (lossy) Commit(context.Context, Txn) (Answer, error) { return Answer{}, errors.New("broken pipe") }

// A transaction that only reads changes nothing, and leaves no doubt. A release that lost such an answer must not
// take "not the owner" for its own success.
func TestALostAnswerLeavesADoubtOnlyAfterAWrite(t *testing.T) {
	s, err := New(lossy{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for name, c := range map[string]struct {
		txn   Txn
		doubt bool
	}{
		"reads":  {Txn{Read: []string{"k"}}, false},
		"writes": {Txn{Then: []Op{{Name: "k", Value: "v"}}}, true},
	} {
		sent := tries{store: s, deadline: time.Now().Add(time.Minute)}
		if _, _, again, err := sent.send(c.txn); err == nil || !again || sent.unknown != c.doubt {
			t.Errorf("a transaction that %s ends with %v, again: %v, in doubt: %v; want an error, another try, and a doubt: %v",
				name, err, again, sent.unknown, c.doubt)
		}
	}
}
