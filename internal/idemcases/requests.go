package idemcases

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/testkit"
)

// chunked sends a body without saying how long it is.
func chunked(r *http.Request) { r.ContentLength = -1 }

// paid answers with the amount and the payee, as far as the handler finds out.
func paid(w http.ResponseWriter, r *http.Request) {
	amount := r.FormValue("amount")
	if file, _, err := r.FormFile("order"); err == nil {
		b, _ := io.ReadAll(file)
		amount = string(b)
	}
	_, _ = fmt.Fprintf(w, "paid %s to %s", amount, r.FormValue("to"))
}

// bodyCases are the cases of bodies that middleware in front reads.
var bodyCases = []row{
	{name: "a form that was parsed in front is another request if it differs", http: true, run: func(f *fixture) {
		for i, parse := range []http.HandlerFunc{
			func(_ http.ResponseWriter, r *http.Request) { r.FormValue("to") },
			func(_ http.ResponseWriter, r *http.Request) { _ = r.ParseForm() },
			func(_ http.ResponseWriter, r *http.Request) { _ = r.ParseMultipartForm(1) }, // files go to the disk
			func(_ http.ResponseWriter, r *http.Request) { _, _, _ = r.FormFile("order"); _ = r.Body.Close() },
		} {
			for kind, form := range map[string]func(to, amount string) func(*http.Request){
				"form": testkit.Form, "multipart": func(to, amount string) func(*http.Request) { return testkit.Multipart(f, to, amount) },
			} {
				s := f.behind(parse, f.engine(), paid)
				key := key(kind, i)
				for range 2 {
					s.send(http.MethodPost, path, "", form("alice", "5"), key).Want(f, 200, "paid 5 to alice")
				}
				s.send(http.MethodPost, path, "", form("alice", "5"), key, chunked).Want(f, 200, "paid 5 to alice")
				for _, other := range [][2]string{{"mallory", "900"}, {"alice", "900"}, {"mallory", "5"}} {
					for _, how := range []func(*http.Request){func(*http.Request) {}, chunked} {
						s.send(http.MethodPost, path, "", form(other[0], other[1]), key, how).
							WantProblem(f, 422, string(reason.KeyReused), "")
					}
				}
				if n := s.Runs(); n != 1 {
					f.Errorf("%s %d: %d runs", kind, i, n)
				}
			}
		}
	}},
	{name: "a body that was read in front and put back", http: true, run: func(f *fixture) {
		s := f.behind(func(_ http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(b))
		}, f.engine(), func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
		for _, how := range []func(*http.Request){func(*http.Request) {}, chunked} {
			s.send(http.MethodPost, path, "5 to alice", how).Want(f, 200, "5 to alice")
			s.send(http.MethodPost, path, "900 to mallory", how).WantProblem(f, 422, string(reason.KeyReused), "")
		}
	}},
	{name: "a body that was read in front and is gone is the server's mistake", http: true, logs: true, run: func(f *fixture) {
		for what, read := range map[string]func(r *http.Request){
			"all":    func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
			"closed": func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); _ = r.Body.Close() },
			"none":   func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); r.Body = http.NoBody },
			"parts":  func(r *http.Request) { _, _ = r.MultipartReader(); _, _ = io.Copy(io.Discard, r.Body) },
			"some":   func(r *http.Request) { _, _ = io.ReadFull(r.Body, make([]byte, 4)) },
		} {
			logged := testkit.LogTo(f)
			s := f.behind(func(_ http.ResponseWriter, r *http.Request) { read(r) }, f.engine(), paid)
			s.send(http.MethodPost, path, "", testkit.Multipart(f, "alice", "5")).WantProblem(f, 500, string(reason.Misconfigured), "")
			s.send(http.MethodPost, path, "", testkit.Multipart(f, "alice", "5"), chunked).
				WantProblem(f, 500, string(reason.Misconfigured), "")
			if n := s.Runs() + int64(f.Count(f, "interlock")); n != 0 {
				f.Errorf("%s: %d runs and records", what, n)
			}
			if text := logged.String(); !strings.Contains(text, "put the middleware that reads it behind") || strings.Contains(text, "alice") {
				f.Errorf("%s: logged is %q", what, text)
			}
		}
	}},
	{name: "a body that does not come whole, or in time", http: true, run: func(f *fixture) {
		impatient := func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Body") == "slow" {
				_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			}
		}
		s := f.behind(impatient, f.engine(), func(http.ResponseWriter, *http.Request) { f.Error("the handler ran") })
		for what, want := range map[string]struct {
			status int
			reason reason.Reason
		}{
			"slow":   {408, reason.BodyTimeout},
			"broken": {400, reason.BodyIncomplete},
		} {
			conn, err := (&net.Dialer{}).DialContext(f.Context(), "tcp", s.srv.Listener.Addr().String())
			if err != nil {
				f.Fatal(err)
			}
			_, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nAuthorization: alice\r\nIdempotency-Key: k\r\n"+
				"X-Body: %s\r\nContent-Length: 100\r\n\r\nabc", path, what)
			if what == "broken" {
				_ = conn.(*net.TCPConn).CloseWrite()
			}
			_ = conn.SetReadDeadline(time.Now().Add(testkit.Patience))
			answer, _ := io.ReadAll(conn)
			_ = conn.Close()
			if !strings.HasPrefix(string(answer), fmt.Sprint("HTTP/1.1 ", want.status)) ||
				!strings.Contains(string(answer), "urn:interlock:problem:"+string(want.reason)+`"`) {
				f.Errorf("%s: %s; want %+v", what, answer, want)
			}
		}
	}},
	{name: "a body is not read twice", http: true, run: func(f *fixture) {
		locker := f.locker()
		read := core.KeyFunc(func(_ context.Context, r core.Request) ([]string, error) {
			b, err := r.Body(100)
			return []string{"key/" + string(b)}, err
		})
		s := f.site(f.engine(idempotency.Under(core.Serialize(locker, "", read))), func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(w, r.Body)
		})
		s.send(http.MethodPost, path, "abc").Want(f, 200, "abc")
	}},
}

// onHost asks for a host, over the same connection.
func onHost(host string) func(*http.Request) { return func(r *http.Request) { r.Host = host } }

// selectCases are the cases of other parts of a request that select the resource, next to
// path and body.
var selectCases = []row{
	{name: "a path that a router in front has stripped is another request", http: true, run: func(f *fixture) {
		s := f.behind(func(_ http.ResponseWriter, r *http.Request) { // as http.StripPrefix does it
			r.URL.Path, r.URL.RawPath = r.URL.Path[len("/eu"):], ""
		}, f.engine(), func(w http.ResponseWriter, r *http.Request) { text(w, r.RequestURI[:3]) })
		s.send(http.MethodPost, "/eu"+path, "").Want(f, 200, "/eu")
		s.send(http.MethodPost, "/us"+path, "").WantProblem(f, 422, string(reason.KeyReused), "")
		s.send(http.MethodPost, "/%65u"+path, "").Want(f, 200, "/eu")
		if n := s.Runs(); n != 1 {
			f.Errorf("%d runs", n)
		}
	}},
	{name: "another host is another request", http: true, run: func(f *fixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, r *http.Request) { text(w, r.Host) })
		s.send(http.MethodPost, path, "", onHost("eu.bank.example")).Want(f, 200, "eu.bank.example")
		s.send(http.MethodPost, path, "", onHost("EU.bank.example")).Want(f, 200, "eu.bank.example")
		for _, other := range []string{"us.bank.example", "eu.bank.example:8080", "127.0.0.1"} {
			s.send(http.MethodPost, path, "", onHost(other)).WantProblem(f, 422, string(reason.KeyReused), "")
		}
	}},
	{name: "an address selects a server and no resource", http: true, run: func(f *fixture) {
		s := f.site(f.engine(), func(w http.ResponseWriter, r *http.Request) { text(w, r.Host) })
		for _, host := range []string{"127.0.0.1:8080", "10.0.0.2", "[::1]:80", "[::1]", "localhost:8081"} {
			s.send(http.MethodPost, path, "", onHost(host)).Want(f, 200, "127.0.0.1:8080")
		}
	}},
	{name: "Fingerprint adds and replaces", http: true, run: func(f *fixture) {
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
		s := f.site(f.engine(parts), func(w http.ResponseWriter, _ *http.Request) { text(w, "a") })
		s.send(http.MethodPost, path+"?signature=1", "Body", testkit.WithHeader("Api-Version", "1")).Want(f, 200, "a")
		s.send(http.MethodPost, path+"?signature=2", "body", testkit.WithHeader("Api-Version", "1"), onHost("b.example")).Want(f, 200, "a")
		for _, other := range []testkit.Answer{
			s.send(http.MethodPost, path, "body", testkit.WithHeader("Api-Version", "2")),
			s.send(http.MethodPost, path, "body"),
			s.send(http.MethodPost, path, "other", testkit.WithHeader("Api-Version", "1")),
		} {
			other.WantProblem(f, 422, string(reason.KeyReused), "")
		}
		s.send(http.MethodPost, path, "body", testkit.WithHeader("Api-Version", "bad")).WantProblem(f, 400, string(reason.BadKey), "")
		s.send(http.MethodPost, path, "body", testkit.WithHeader("Api-Version", "broken")).WantProblem(f, 500, string(reason.Internal), "")
		if n := s.Runs(); n != 1 {
			f.Errorf("%d runs", n)
		}
	}},
}
