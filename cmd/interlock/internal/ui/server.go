package ui

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"time"
)

// endWithin bounds the wait of the server for requests when it ends.
const endWithin = 5 * time.Second

// Serve serves the pages on a listener until ctx ends, and closes it. Requests that are
// under way then have some seconds to end.
func (u *UI) Serve(ctx context.Context, ln net.Listener) error {
	s := &http.Server{
		Handler:           u,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second, // events.go lifts it for streams
		WriteTimeout:      40 * time.Second, // more than a release takes
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    manyBytes,
		ErrorLog:          log.New(io.Discard, "", 0), // broken connections of browsers
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ln) }()
	select {
	case err := <-ended:
		u.Close()
		return err
	case <-ctx.Done():
	}
	u.Close() // which ends the connections for events
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	if err := s.Shutdown(bound); err != nil {
		_ = s.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
