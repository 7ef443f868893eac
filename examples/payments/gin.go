package main

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/interlock-go/interlock/ginlock"
)

// In its default mode gin prints to stdout, where this program prints the addresses
// and the table. The mode applies to the whole package, so no server sets it.
func init() { gin.SetMode(gin.ReleaseMode) }

// ginRoutes is the bank on gin. The lock is one more handler of a route, behind
// those that check and before the one that works.
func ginRoutes(s *service) http.Handler {
	account := ginlock.Serialize(s.account)
	transfer := ginlock.Serialize(s.transfer)
	reports := ginlock.Guard(s.reports)
	ratings := ginlock.Guard(s.ratings)
	once := ginlock.Idempotent(s.payments)

	// gin has decoded the parameters.
	read := func(c *gin.Context) input { return input{c.Request, c.Param, c.Writer.Header()} }
	// check ends the chain of an invalid request before it waits for a lock.
	check := func(check func(input) error) gin.HandlerFunc {
		return func(c *gin.Context) {
			if err := check(read(c)); err != nil {
				c.Abort()
				s.writeError(c.Request.Context(), c.Writer, c.FullPath(), err)
			}
		}
	}
	// admit is check for payments. It stores the order in the request's context.
	admit := func(c *gin.Context) {
		r, err := s.restAdmit(c.Request)
		if err != nil {
			c.Abort()
			s.writeError(c.Request.Context(), c.Writer, c.FullPath(), err)
			return
		}
		c.Request = r
	}
	// do runs under the lock, whose lease is in the request's context.
	do := func(operation func(input) (any, error)) gin.HandlerFunc {
		return func(c *gin.Context) {
			result, err := operation(read(c))
			s.respond(c.Request.Context(), c.Writer, c.FullPath(), result, err)
		}
	}

	r := gin.New()
	r.UseRawPath = true             // a %2F is part of a value, as it is elsewhere
	r.RedirectTrailingSlash = false // no account is called ""
	r.HandleMethodNotAllowed = true
	// Outermost, so that the lock's spans are below the request's span.
	r.Use(func(c *gin.Context) {
		ctx, end := s.telemetry.request(c.Request.Context(), "gin", c.Request.Method+" "+c.FullPath())
		defer end()
		c.Request = c.Request.WithContext(ctx)
		c.Next()
	})
	r.NoRoute(func(c *gin.Context) { writeNoRoute(c.Writer, http.StatusNotFound) })
	r.NoMethod(func(c *gin.Context) { writeNoRoute(c.Writer, http.StatusMethodNotAllowed) })

	r.Match(reading, "/accounts/:id", do(s.restGet))
	r.PUT("/accounts/:id", check(checkPut), account, do(s.restPut))
	r.POST("/accounts/:id/debit", check(checkDebit), account, do(s.restDebit))
	r.POST("/accounts/:id/debit-unsafe", check(checkDebit), do(s.restDebitUnsafe))
	r.POST("/transfers/:from/:to", check(checkTransfer), transfer, do(s.restTransfer))
	r.Match(reading, "/reports/:first/:second", check(checkReport), reports, do(s.restReport))
	r.Match(reading, "/reports-unsafe/:first/:second", check(checkReport), do(s.restReport))
	r.Match(reading, "/accounts/:id/rating", check(checkRate), ratings, do(s.restRate))
	r.Match(reading, "/accounts/:id/rating-unsafe", check(checkRate), do(s.restRate))
	r.POST("/payments", admit, once, do(s.restPay))
	return r
}

// reading lists the methods that a GET pattern matches in net/http.
var reading = []string{http.MethodGet, http.MethodHead}
