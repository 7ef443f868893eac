package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core/memstore"
	_ "github.com/interlock-go/interlock/internal/bubble"
)

func TestOneWordSaysWhatTheNextMessageDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		if err := demonstrate(t.Context(), &out, memstore.New(), time.Second); err != nil {
			t.Fatal(err)
		}
		const want = `supersede
  first   you said hello and you said (superseded)
  second  you said stop and you said stop and you said stop and that is all (end)
queue
  first   you said hello and you said hello and you said hello and that is all (end)
  second  you said stop and you said stop and you said stop and that is all (end)
refuse
  first   you said hello and you said hello and you said hello and that is all (end)
  second  423 Locked
`
		if got := out.String(); got != want {
			t.Errorf("%s", got)
		}
	})
}
