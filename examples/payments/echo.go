package main

import (
	"errors"
	"net/http"
	"net/url"

	"github.com/labstack/echo/v4"

	"github.com/interlock-go/interlock/echolock"
)

// echoRoutes is the bank on echo. The lock is a middleware of a route, after the
// one that checks, since the first in the list is the outermost. Errors are
// returned, and rendered in one place.
func echoRoutes(s *service) http.Handler {
	account := echolock.Serialize(s.account)
	transfer := echolock.Serialize(s.transfer)
	reports := echolock.Guard(s.reports)
	ratings := echolock.Guard(s.ratings)
	once := echolock.Idempotent(s.payments)

	// check refuses an invalid request before it waits for a lock.
	check := func(check func(input) error) echo.MiddlewareFunc {
		return func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				if err := check(readEcho(c)); err != nil {
					return err
				}
				return next(c)
			}
		}
	}
	// admit is check for payments. It stores the order in the request's context.
	admit := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			r, err := s.restAdmit(c.Request())
			if err != nil {
				return err
			}
			c.SetRequest(r)
			return next(c)
		}
	}
	// do runs under the lock, whose lease is in the request's context. Its
	// errors pass the lock's middleware, which answers in their place if the
	// lease was lost.
	do := func(operation func(input) (any, error)) echo.HandlerFunc {
		return func(c echo.Context) error {
			result, err := operation(readEcho(c))
			if err != nil {
				return err
			}
			writeResult(c.Response(), result)
			return nil
		}
	}

	e := echo.New()
	e.HideBanner, e.HidePort = true, true // stdout has the lines of this program only
	e.HTTPErrorHandler = s.echoError
	// Outermost, so that the lock's spans are below the request's span.
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			ctx, end := s.telemetry.request(c.Request().Context(), "echo", c.Request().Method+" "+c.Path())
			defer end()
			c.SetRequest(c.Request().WithContext(ctx))
			return next(c)
		}
	})

	e.Match(reading, "/accounts/:id", do(s.restGet))
	e.PUT("/accounts/:id", do(s.restPut), check(checkPut), account)
	e.POST("/accounts/:id/debit", do(s.restDebit), check(checkDebit), account)
	e.POST("/accounts/:id/debit-unsafe", do(s.restDebitUnsafe), check(checkDebit))
	e.POST("/transfers/:from/:to", do(s.restTransfer), check(checkTransfer), transfer)
	e.Match(reading, "/reports/:first/:second", do(s.restReport), check(checkReport), reports)
	e.Match(reading, "/reports-unsafe/:first/:second", do(s.restReport), check(checkReport))
	e.Match(reading, "/accounts/:id/rating", do(s.restRate), check(checkRate), ratings)
	e.Match(reading, "/accounts/:id/rating-unsafe", do(s.restRate), check(checkRate))
	e.POST("/payments", do(s.restPay), admit, once)
	return e
}

// readEcho decodes parameters where echo does not: when the path as it was sent
// could not be told from the decoded one.
func readEcho(c echo.Context) input {
	return input{c.Request(), func(name string) string {
		raw := c.Param(name)
		if c.Request().URL.RawPath == "" {
			return raw
		}
		decoded, err := url.PathUnescape(raw)
		if err != nil {
			return raw // no account has this name
		}
		return decoded
	}, c.Response().Header()}
}

// echoError renders the errors of handlers and middleware: the lock's refusals, which
// carry their own type, echo's own errors, and the bank's.
func (s *service) echoError(err error, c echo.Context) {
	if c.Response().Committed {
		return
	}
	if refused := (*echolock.RefusalError)(nil); errors.As(err, &refused) {
		// As problem details of their own type; Retry-After is set already.
		c.Echo().DefaultHTTPErrorHandler(err, c)
		return
	}
	if own := (*echo.HTTPError)(nil); errors.As(err, &own) {
		writeNoRoute(c.Response(), own.Code)
		return
	}
	s.writeError(c.Request().Context(), c.Response(), c.Path(), err)
}
