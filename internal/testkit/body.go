package testkit

import (
	"bytes"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
)

// Form is a payment as a form, and the change of a request that sends it.
func Form(to, amount string) func(*http.Request) {
	return WithBody("application/x-www-form-urlencoded", url.Values{"to": {to}, "amount": {amount}}.Encode())
}

// Multipart is the same as a form with a file, the amount in the file.
func Multipart(tb testing.TB, to, amount string) func(*http.Request) {
	tb.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	err := errors.Join(w.SetBoundary("the-same-each-time"), w.WriteField("to", to))
	file, err2 := w.CreateFormFile("order", "order.txt")
	if err = errors.Join(err, err2); err == nil {
		_, err = io.WriteString(file, amount)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		tb.Fatal(err)
	}
	return WithBody(w.FormDataContentType(), b.String())
}

// WantFingerprinted sends a payment of 5 to alice twice, and another with the same
// key, to a handler that answers with both values: the first is made once and
// replayed, the other is refused.
func WantFingerprinted(tb testing.TB, srv *httptest.Server, body func(to, amount string) func(*http.Request)) {
	tb.Helper()
	Post(tb, srv, "/", body("alice", "5")).WantOwn(tb, 200, "paid 5 to alice")
	Post(tb, srv, "/", body("alice", "5")).WantReplay(tb, 200, "paid 5 to alice")
	Post(tb, srv, "/", body("mallory", "900")).WantProblem(tb, 422, "idempotency-key-reused", "")
}

// Upload posts a file of 11 MiB, too long for a server to keep in memory.
func Upload(tb testing.TB, srv *httptest.Server, path string) {
	tb.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("f", "f.bin")
	if err != nil {
		tb.Fatal(err)
	}
	_, err = part.Write(bytes.Repeat([]byte("x"), 11<<20))
	if err := errors.Join(err, form.Close()); err != nil {
		tb.Fatal(err)
	}
	Do(tb, srv, http.MethodPost, path, WithBody(form.FormDataContentType(), body.String()))
}

// OnDisk parses the upload in a handler and returns the name of its temporary
// file.
func OnDisk(r *http.Request) (string, error) {
	if err := r.ParseMultipartForm(1); err != nil {
		return "", err
	}
	f, err := r.MultipartForm.File["f"][0].Open()
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	file, ok := f.(*os.File)
	if !ok {
		return "", errors.New("kept in memory")
	}
	return file.Name(), nil
}

// ReadIn is middleware after MeasureBody: it wraps the body, so that nothing shows how much
// of it was read, and reads a part if the client asks it to.
func ReadIn(r *http.Request) {
	r.Body = struct{ io.ReadCloser }{r.Body}
	if r.Header.Get("X-Read") != "" {
		_, _ = io.ReadFull(r.Body, make([]byte, 4))
	}
}

// WantMeasured sends bodies of unknown length to an endpoint with MeasureBody and [ReadIn]
// that answers with the body: a body that was read in part is refused, others are not.
func WantMeasured(tb testing.TB, srv *httptest.Server) {
	tb.Helper()
	LogTo(tb)
	chunked := func(body string) func(*http.Request) {
		return func(r *http.Request) { r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), -1 }
	}
	read := WithHeader("X-Read", "some")
	Post(tb, srv, "/", chunked("pay 900"), read).WantProblem(tb, 500, "misconfigured", "")
	Post(tb, srv, "/", chunked("pay 900")).WantOwn(tb, 200, "pay 900")
	Post(tb, srv, "/", chunked("pay 900")).WantReplay(tb, 200, "pay 900")
	Post(tb, srv, "/", chunked("pay 5")).WantProblem(tb, 422, "idempotency-key-reused", "")
	Post(tb, srv, "/", chunked("not 900"), read).WantProblem(tb, 500, "misconfigured", "")
}
