package tuslock_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/tuslock"
)

// A server of resumable uploads. Its processes share a store of locks and a store of files.
func Example() {
	if err := example(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// POST 201 Created
	// PATCH 204 No Content
	// HEAD 404 Not Found
}

func example() error {
	dir, err := os.MkdirTemp("", "uploads")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	files := filestore.New(dir)             // in place of s3store.New
	locker, err := core.New(memstore.New()) // in place of redisstore.New or pgstore.New
	if err != nil {
		return err
	}
	defer locker.Close(context.Background())

	uploads, err := tuslock.New(locker, "upload/{id}", core.Watchdog(10*time.Second))
	if err != nil {
		return err
	}
	composer := handler.NewStoreComposer()
	files.UseIn(composer)
	uploads.UseIn(composer)
	tus, err := handler.NewHandler(handler.Config{BasePath: "/files/", StoreComposer: composer, DisableDownload: true})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/files/", http.StripPrefix("/files/", tus))
	server := httptest.NewServer(mux)
	defer server.Close()

	send := func(method, url, body string, headers ...string) (location string) {
		req, err := http.NewRequest(method, url, strings.NewReader(body))
		if err != nil {
			log.Fatal(err)
		}
		req.Header.Set("Tus-Resumable", "1.0.0")
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := server.Client().Do(req)
		if err != nil {
			log.Fatal(err)
		}
		defer resp.Body.Close()
		fmt.Println(method, resp.Status)
		return resp.Header.Get("Location")
	}
	url := send("POST", server.URL+"/files/", "", "Upload-Length", "5")
	send("PATCH", url, "hello", "Upload-Offset", "0", "Content-Type", "application/offset+octet-stream")
	send("HEAD", server.URL+"/files/no-such-upload", "")
	return nil
}
