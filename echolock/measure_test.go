package echolock_test

import (
	"net/http"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/interlock-go/interlock/echolock"
	"github.com/interlock-go/interlock/internal/testkit"
)

func TestMeasureBodyTellsABodyThatWasReadInPart(t *testing.T) {
	e := echo.New()
	e.Pre(echolock.MeasureBody)
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error { testkit.ReadIn(c.Request()); return next(c) }
	})
	e.POST("/", func(c echo.Context) error { return c.Stream(http.StatusOK, "text/plain", c.Request().Body) },
		echolock.Idempotent(testkit.Engine(t)))
	testkit.WantMeasured(t, testkit.Serve(t, e))
}
