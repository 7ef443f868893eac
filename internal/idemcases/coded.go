package idemcases

import (
	"compress/gzip"
	"net/http"
	"strings"

	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/adaptertest"
)

// codedCases are the cases of responses that were compressed behind the middleware.
var codedCases = []row{
	{name: "a compressed response is not replayed to a client that does not accept it", http: true, run: func(f *fixture) {
		for what, e := range map[string]*idempotency.Engine{
			"all": f.engine(), "some": f.engine(idempotency.ReplayHeaders("X-Other")),
		} {
			s := f.site(e, func(w http.ResponseWriter, r *http.Request) {
				if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
					text(w, "paid")
					return
				}
				w.Header().Set("Content-Encoding", "gzip")
				zipped := gzip.NewWriter(w)
				text(zipped, "paid")
				_ = zipped.Close()
			})
			// The client of the tests asks for gzip and unzips, unless it is told otherwise.
			plain := adaptertest.WithHeader("Accept-Encoding", "identity")
			s.send(http.MethodPost, path, "", key(what)).WantOwn(f, 200, "paid")
			s.send(http.MethodPost, path, "", key(what)).WantReplay(f, 200, "paid")
			s.send(http.MethodPost, path, "", key(what), plain).WantProblem(f, 406, string(reason.NotAcceptable), "")
			s.send(http.MethodPost, path, "", key(what)).WantReplay(f, 200, "paid")
			s.send(http.MethodPost, path, "", key(what+"-plain"), plain).WantOwn(f, 200, "paid")
			s.send(http.MethodPost, path, "", key(what+"-plain")).WantReplay(f, 200, "paid")
			if n := s.Runs(); n != 2 {
				f.Errorf("%s: %d runs", what, n)
			}
		}
	}},
}
