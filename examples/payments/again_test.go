package main

import (
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestARequestIsSentAgainUntilItsAnswerIsClear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy, slow := reply{reason: "held", err: errors.New("423")}, reply{reason: "ledger-unavailable", err: errors.New("503")}
		answers := []reply{slow, slow, busy}
		sent := 0
		request := func() reply { sent++; return answers[min(sent, len(answers))-1] }
		if a := settled(t.Context(), request); a.reason != "held" || sent != 3 {
			t.Errorf("sent %d times, and then %+v; want the third answer", sent, a)
		}

		begin := time.Now()
		until := begin.Add(time.Minute)
		sent = 0
		if a := persist(t.Context(), until, request, func(reply) bool { return true }); a.reason != "held" || sent < 20 {
			t.Errorf("sent %d times in a minute, and then %+v", sent, a)
		}
		if took := time.Since(begin); took < 55*time.Second || took > time.Minute {
			t.Errorf("it was sent again for %v, want a minute", took)
		}
		time.Sleep(time.Until(until))
		sent = 0
		if a := persist(t.Context(), until, request, reply.refused); sent > 0 || !a.unclear() {
			t.Errorf("sent %d times after a minute: %+v", sent, a)
		}
	})
}

// A request on a connection that the server was just closing was answered with
// "connection reset by peer". The connection had been opened, and never used.
func TestAConnectionThatIsNotUsedIsDroppedBeforeTheServerClosesIt(t *testing.T) {
	c, hangUp, err := dial("http", anyPort)
	if err != nil {
		t.Fatal(err)
	}
	defer hangUp()
	transport, _ := c.(*restClient).client.Transport.(*http.Transport)
	if d := transport.IdleConnTimeout; d <= 0 || d > readHeaderTimeout/2 {
		t.Errorf("an idle connection is kept for %v, and the server closes it after %v", d, readHeaderTimeout)
	}
}

func TestALatePaymentIsSentUntilItsOutcomeIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy, slow, made := reply{reason: "held", err: errors.New("423")}, reply{err: errors.New("reset"), silent: true}, reply{payment: "a"}
		var mu sync.Mutex
		sent := make(map[int]int)
		send := func(i int) reply {
			mu.Lock()
			defer mu.Unlock()
			sent[i]++
			return []reply{made, busy, slow, made}[(i%3+sent[i]-1)%4]
		}
		late(t.Context(), time.Now().Add(time.Minute), send)
		for i := range paid {
			if want := []int{1, 3, 2}[i%3]; sent[i] != want {
				t.Errorf("payment %d was sent %d times, want %d", i, sent[i], want)
			}
		}
		begin := time.Now()
		late(t.Context(), begin.Add(time.Minute), func(int) reply { return busy })
		if took := time.Since(begin); took < 55*time.Second || took > time.Minute {
			t.Errorf("payments that are refused were sent for %v, want a minute", took)
		}
	})
}
