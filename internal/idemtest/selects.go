package idemtest

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
)

// onHost asks for a host, over the same connection.
func onHost(host string) func(*http.Request) { return func(r *http.Request) { r.Host = host } }

func withHeader(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// selectTable are the cases of what selects the resource, beside path and body.
var selectTable = []httpCase{
	{"a path that a router in front has stripped is another request", func(f *httpFixture) {
		s := f.behind(func(_ http.ResponseWriter, r *http.Request) { // as http.StripPrefix does it
			r.URL.Path, r.URL.RawPath = r.URL.Path[len("/eu"):], ""
		}, f.engine(), func(w http.ResponseWriter, r *http.Request) { text(w, r.RequestURI[:3]) })
		s.send(http.MethodPost, "/eu"+path, "").Want(f, 200, "/eu")
		s.send(http.MethodPost, "/us"+path, "").WantProblem(f, 422, string(core.ReasonKeyReused), "")
		s.send(http.MethodPost, "/%65u"+path, "").Want(f, 200, "/eu")
		if n := s.runs.Load(); n != 1 {
			f.Errorf("%d runs", n)
		}
	}},
	{"another host is another request", func(f *httpFixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, r *http.Request) { text(w, r.Host) })
		s.send(http.MethodPost, path, "", onHost("eu.bank.example")).Want(f, 200, "eu.bank.example")
		s.send(http.MethodPost, path, "", onHost("EU.bank.example")).Want(f, 200, "eu.bank.example")
		for _, other := range []string{"us.bank.example", "eu.bank.example:8080", "127.0.0.1"} {
			s.send(http.MethodPost, path, "", onHost(other)).WantProblem(f, 422, string(core.ReasonKeyReused), "")
		}
	}},
	{"an address selects a server and no resource", func(f *httpFixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, r *http.Request) { text(w, r.Host) })
		for _, host := range []string{"127.0.0.1:8080", "10.0.0.2", "[::1]:80", "[::1]", "localhost:8081"} {
			s.send(http.MethodPost, path, "", onHost(host)).Want(f, 200, "127.0.0.1:8080")
		}
	}},
	{"another lock key is another request", func(f *httpFixture) {
		rule := core.Serialize(f.locker(), "tenant/{header.X-Tenant}/account/{id}")
		s := f.site(f.engine(idempotency.Under(rule)), func(w http.ResponseWriter, r *http.Request) {
			text(w, core.LeaseFromContext(r.Context()).Key())
		})
		for range 2 {
			s.send(http.MethodPost, path, "", withHeader("X-Tenant", "a")).Want(f, 200, "tenant/a/account/42")
		}
		s.send(http.MethodPost, path, "", withHeader("X-Tenant", "b")).WantProblem(f, 422, string(core.ReasonKeyReused), "")
		s.post().WantProblem(f, 400, string(core.ReasonBadKey), "")
		if n := s.runs.Load(); n != 1 {
			f.Errorf("%d runs", n)
		}
	}},
	{"Fingerprint adds and replaces", func(f *httpFixture) {
		parts := idempotency.Fingerprint(func(_ context.Context, r core.Request, p *idempotency.Parts) error {
			switch v := r.Header("Api-Version"); strings.Join(v, "") {
			case "bad":
				return core.ErrKey
			case "broken":
				return errors.New("no versions at the moment")
			default:
				p.More = append(p.More, v...)
			}
			p.Query, p.Host = "", ""
			p.Body = []byte(strings.ToLower(string(p.Body)))
			return nil
		})
		Logged(f)
		s := f.site(f.engine(parts), func(w http.ResponseWriter, _ *http.Request) { text(w, "a") })
		s.send(http.MethodPost, path+"?signature=1", "Body", withHeader("Api-Version", "1")).Want(f, 200, "a")
		s.send(http.MethodPost, path+"?signature=2", "body", withHeader("Api-Version", "1"), onHost("b.example")).Want(f, 200, "a")
		for _, other := range []response{
			s.send(http.MethodPost, path, "body", withHeader("Api-Version", "2")),
			s.send(http.MethodPost, path, "body"),
			s.send(http.MethodPost, path, "other", withHeader("Api-Version", "1")),
		} {
			other.WantProblem(f, 422, string(core.ReasonKeyReused), "")
		}
		s.send(http.MethodPost, path, "body", withHeader("Api-Version", "bad")).WantProblem(f, 400, string(core.ReasonBadKey), "")
		s.send(http.MethodPost, path, "body", withHeader("Api-Version", "broken")).WantProblem(f, 500, string(core.ReasonInternal), "")
		if n := s.runs.Load(); n != 1 {
			f.Errorf("%d runs", n)
		}
	}},
}
