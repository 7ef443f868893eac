package main

import (
	"context"
	"net/http"

	"github.com/interlock-go/interlock/interlockdebug"
)

// debugPath is where the debug page is.
const debugPath = "/debug/interlock"

// debugFrontend serves the debug page at an address of its own. The page is for
// operators: none of the addresses that clients use has it.
func (s *service) debugFrontend(ctx context.Context, addr string, seen *interlockdebug.Observer) (*frontend, error) {
	mux := http.NewServeMux()
	mux.Handle(debugPath, interlockdebug.Handler(s.locker, interlockdebug.Observed(seen), interlockdebug.Engines(s.payments),
		interlockdebug.ShowKeys())) // these accounts are nobody's; a real bank leaves this out
	f, err := s.restFrontend(ctx, "debug", addr, mux)
	if err != nil {
		return nil, err
	}
	f.path = debugPath
	return f, nil
}
