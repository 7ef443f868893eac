package interlockdebug_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/interlockdebug"
)

// The page has its own mux, for operators alone.
func Example() {
	debug, store := http.NewServeMux(), memstore.New()
	observer := interlockdebug.NewObserver()
	locker, err := core.New(store, core.WithObserver(observer))
	if err != nil {
		fmt.Println(err)
		return
	}
	debug.Handle("/debug/interlock", interlockdebug.Handler(locker, interlockdebug.Observed(observer)))

	ctx := context.Background()
	defer locker.Close(ctx)
	lease, err := locker.Lock(ctx, "account/42", core.Name("account/{id}"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Release(ctx)
	w := httptest.NewRecorder()
	debug.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/interlock", nil))
	fmt.Println(w.Code, w.Header().Get("Content-Type"))
	// Output: 200 text/html; charset=utf-8
}
