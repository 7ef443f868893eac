package echolock_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/echolock"
	"github.com/interlock-go/interlock/internal/adaptertest"
)

func TestErrorsForEchosLoggersHaveNoKeyAndNoAddress(t *testing.T) {
	up := adaptertest.Locker(t)
	nowhere := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = nowhere.Close() })
	down := adaptertest.LockerOn(t, nowhere)
	lease, err := up.Lock(t.Context(), "account/42")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release(t.Context()) }()

	var logged bytes.Buffer
	e := echo.New()
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		fmt.Fprintf(&logged, "%v %+v", err, err)
		e.DefaultHTTPErrorHandler(err, c)
	}
	never := func(echo.Context) error { t.Error("the handler ran"); return nil }
	e.POST("/held/:id", never, echolock.Serialize(core.Serialize(up, "account/{id}", core.Wait(0))))
	e.POST("/down/:id", never, echolock.Serialize(core.Serialize(down, "account/{id}", core.Wait(100*time.Millisecond))))
	srv := adaptertest.Serve(t, e)
	for path, status := range map[string]int{"/held/42": 423, "/down/42": 503} {
		logged.Reset()
		if a := adaptertest.Do(t, srv, "POST", path); a.Status != status {
			t.Errorf("%s: %d", path, a.Status)
		}
		text := logged.String()
		if !strings.Contains(text, core.KeyHash("account/42")) {
			t.Errorf("%s logs no hash: %s", path, text)
		}
		if strings.Contains(text, "account/42") || strings.Contains(text, "127.0.0.1:1") {
			t.Errorf("%s logs a key or an address: %s", path, text)
		}
	}
}
