package httpx

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"

	"github.com/interlock-go/interlock/core/adapter"
)

// parsed reports whether there is a form that was read from the body.
func parsed(r *http.Request) bool {
	return r.MultipartForm != nil || len(r.PostForm) > 0
}

// restored returns a body that was read before, from its parsed form. A form is
// written anew: the same fields, values and files are the same bytes. Nothing else
// of the body has been kept, so nothing else can tell two requests apart in the
// handler either. Where there is nothing, the error is gone.
func (l looked) restored(limit int64, kept []byte, gone error) ([]byte, error) {
	r, b, err := l.request, []byte(nil), error(nil)
	switch form := r.MultipartForm; {
	case len(kept) > 0 && l.hasLength(kept):
		b = kept
	case form != nil && len(form.Value)+len(form.File) > 0:
		b, err = writeMultipart(r, limit)
	case form == nil && len(r.PostForm) > 0:
		b = []byte(r.PostForm.Encode())
	case form == nil && r.PostForm != nil && isForm(r):
		// It was parsed, and had not one field that can be read: the client's mistake.
		err = fmt.Errorf("%w: a form without a field", adapter.ErrBody)
	default: // http.Request.MultipartReader leaves an empty MultipartForm
		err = gone
	}
	if err == nil && int64(len(b)) > limit {
		b, err = nil, adapter.ErrBodyLimit
	}
	return b, err
}

// isForm reports whether the body was announced as a form with escaped fields.
func isForm(r *http.Request) bool {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && kind == "application/x-www-form-urlencoded"
}

// writeMultipart writes a form that was parsed, with the boundary of the request. Names are
// sorted; values of one name keep their order.
func writeMultipart(r *http.Request, limit int64) ([]byte, error) {
	_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return nil, errRead // the form is not of this request
	}
	b := &bounded{limit: limit}
	w := multipart.NewWriter(b)
	if w.SetBoundary(params["boundary"]) != nil {
		return nil, errRead
	}
	form := r.MultipartForm
	for _, name := range slices.Sorted(maps.Keys(form.Value)) {
		for _, value := range form.Value[name] {
			if err := w.WriteField(name, value); err != nil {
				return nil, err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(form.File)) {
		for _, file := range form.File[name] {
			if err := writeFile(w, file); err != nil {
				return nil, err
			}
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func writeFile(w *multipart.Writer, file *multipart.FileHeader) error {
	part, err := w.CreatePart(file.Header)
	if err != nil {
		return err
	}
	content, err := file.Open()
	if err != nil {
		return fmt.Errorf("interlock: a file of the form: %w", err)
	}
	_, err = io.Copy(part, content)
	_ = content.Close() // it was only read
	return err
}

// bounded is a buffer with a limit.
type bounded struct {
	bytes.Buffer
	limit int64
}

func (b *bounded) Write(p []byte) (int, error) {
	if int64(b.Len()+len(p)) > b.limit {
		return 0, adapter.ErrBodyLimit
	}
	return b.Buffer.Write(p)
}
