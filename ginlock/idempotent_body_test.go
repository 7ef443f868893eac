package ginlock_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/gin-gonic/gin/binding"

	"github.com/interlock-go/interlock/internal/testkit"
)

type payment struct {
	To     string `form:"to"     json:"to"`
	Amount string `form:"amount" json:"amount"`
}

func TestABodyThatAHandlerInFrontHasBoundIsInTheFingerprint(t *testing.T) {
	json := func(to, amount string) func(*http.Request) {
		return testkit.WithBody("application/json", `{"to":"`+to+`","amount":"`+amount+`"}`)
	}
	for name, c := range map[string]struct {
		front, handler gin.HandlerFunc
		body           func(to, amount string) func(*http.Request)
	}{
		"PostForm": {
			func(c *gin.Context) { c.PostForm("to") },
			func(c *gin.Context) { c.String(http.StatusOK, "paid %s to %s", c.PostForm("amount"), c.PostForm("to")) }, testkit.Form,
		},
		"PostForm of a multipart form": {
			func(c *gin.Context) { c.PostForm("to") },
			func(c *gin.Context) {
				file, err := c.FormFile("order")
				if err != nil {
					t.Error(err)
					return
				}
				f, err := file.Open()
				if err != nil {
					t.Error(err)
					return
				}
				amount, _ := io.ReadAll(f)
				c.String(http.StatusOK, "paid %s to %s", amount, c.PostForm("to"))
			}, func(to, amount string) func(*http.Request) { return testkit.Multipart(t, to, amount) },
		},
		"ShouldBindBodyWith": {
			func(c *gin.Context) { _ = c.ShouldBindBodyWith(&payment{}, binding.JSON) },
			func(c *gin.Context) {
				var p payment
				if err := c.ShouldBindBodyWith(&p, binding.JSON); err != nil {
					t.Error(err)
				}
				c.String(http.StatusOK, "paid %s to %s", p.Amount, p.To)
			}, json,
		},
		"ShouldBindBodyWith, and then the body itself": {
			func(c *gin.Context) { _ = c.ShouldBindBodyWith(&payment{}, binding.JSON) },
			func(c *gin.Context) {
				var p payment
				if err := c.ShouldBindJSON(&p); err != nil {
					t.Error(err)
				}
				c.String(http.StatusOK, "paid %s to %s", p.Amount, p.To)
			}, json,
		},
	} {
		t.Run(name, func(t *testing.T) {
			srv := serveChain(t, []gin.HandlerFunc{c.front}, c.handler)
			testkit.WantFingerprinted(t, srv, c.body)
		})
	}
}

func TestABodyThatAHandlerInFrontHasBoundForGoodIsTheServersMistake(t *testing.T) {
	testkit.LogTo(t)
	srv := serveChain(t, []gin.HandlerFunc{func(c *gin.Context) { _ = c.ShouldBindJSON(&payment{}) }},
		func(*gin.Context) { t.Error("the handler ran") })
	testkit.Post(t, srv, "/", testkit.WithBody("application/json", `{"to":"alice"}`)).
		WantProblem(t, 500, "misconfigured", "")
}
