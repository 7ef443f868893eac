package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/idempotency/explore"
	"github.com/interlock-go/interlock/examples/payments/bank"
)

// Two payments of one account, on processes that die, stand still and lose answers at each step of the handler and of the
// bank.
func TestNoCrashMakesAPaymentTwiceOrLosesOne(t *testing.T) {
	var accounts *bank.Memory
	pay := explore.Request{Path: "/payments", Body: `{"account":"alice","amount":10}`, Header: http.Header{"Authorization": {"Bearer alice"}}}
	explore.Run(t, explore.Service{
		Requests: []explore.Request{pay, pay},
		Start:    func(*explore.World) { accounts = bank.NewMemory(map[string]int64{"alice": 100}) },
		Handler: func(p *explore.Process) http.Handler {
			s := &service{
				log: slog.New(slog.DiscardHandler), begin: mark, retention: time.Hour, bound: time.Minute, reporting: &gauge{},
				bank: accounts.Bank(explore.Around),
			}
			cfg := config{wait: time.Minute, ttl: 20 * time.Second, lease: 20 * time.Second, retention: time.Hour}
			if err := s.rules(cfg, p.Store, p.Store, nil); err != nil {
				panic(err)
			}
			p.Cleanup(func() { _ = s.close(context.Background()) })
			return httpRoutes(s)
		},
		Invariant: func(w *explore.World) error {
			balance, payments := accounts.Balance("alice")
			answered := 0
			for _, a := range w.Answers() {
				if a.Status == http.StatusCreated {
					answered++
				}
			}
			if balance != 100-10*int64(payments) || payments < answered || payments > len(w.Answers()) {
				return fmt.Errorf("balance %d after %d payments, of which %d were answered", balance, payments, answered)
			}
			return nil
		},
	})
}
