package ginlock_test

import (
	"io"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/interlock-go/interlock/ginlock"
	"github.com/interlock-go/interlock/internal/testkit"
)

func TestMeasureBodyTellsABodyThatWasReadInPart(t *testing.T) {
	r := gin.New()
	r.Use(ginlock.MeasureBody, func(c *gin.Context) { testkit.ReadIn(c.Request) })
	r.POST("/", ginlock.Idempotent(testkit.Engine(t)), func(c *gin.Context) { _, _ = io.Copy(c.Writer, c.Request.Body) })
	testkit.WantMeasured(t, testkit.Serve(t, r))
}
