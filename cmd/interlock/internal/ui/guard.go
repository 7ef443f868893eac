package ui

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/interlock-go/interlock/internal/display"
)

// policy lets nothing into a page that is not embedded in this program.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// manyBytes bounds the body of a request.
const manyBytes = 64 << 10

// guarded refuses requests that other sites' pages make a browser send, and sets the headers
// of all responses.
func (u *UI) guarded(next http.Handler) http.Handler {
	var crossOrigin http.CrossOriginProtection
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Not "no-referrer": a form would then come without its origin, which is all that
		// tells it from other sites' where a browser sends no Sec-Fetch-Site, as over plain
		// HTTP to another machine.
		display.Protect(w.Header(), policy, "same-origin")
		switch {
		case !u.isOurs(r.Host):
			// A name that another site's owner has pointed here (DNS rebinding).
			http.Error(w, "This server does not answer to the name in the address. Use the address that interlock ui printed.",
				http.StatusMisdirectedRequest)
		case crossOrigin.Check(r) != nil || !mayFetch(r):
			http.Error(w, "Requests of other sites are refused.", http.StatusForbidden)
		default:
			r.Body = http.MaxBytesReader(w, r.Body, manyBytes)
			next.ServeHTTP(w, r)
		}
	})
}

// isOurs reports whether the Host of a request names this server.
func (u *UI) isOurs(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	host = strings.ToLower(host)
	ip := net.ParseIP(host)
	switch {
	case host == "localhost" || host == "127.0.0.1" || host == "::1":
		return true
	case ip != nil && slices.Contains(u.config.Hosts, "*"):
		return true // no name leads to an address that is given as a number
	}
	return host != "*" && slices.Contains(u.config.Hosts, host)
}

// mayFetch reports whether a request that changes nothing comes from a page of this
// server, from the user, or follows a link. Other sites' pages may not have this server
// read Redis for them.
func mayFetch(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return true
	}
	return r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// Hosts returns [Config.Hosts] for a server that listens on a host.
func Hosts(listen string) []string {
	ip := net.ParseIP(listen)
	if listen != "" && (ip == nil || !ip.IsUnspecified()) {
		return []string{strings.ToLower(listen)}
	}
	hosts := []string{"*"}
	if name, err := os.Hostname(); err == nil {
		hosts = append(hosts, strings.ToLower(name))
	}
	return hosts
}

// Local reports whether only processes of this machine reach a server that listens on a
// host.
func Local(listen string) bool {
	ip := net.ParseIP(listen)
	return listen == "localhost" || ip != nil && ip.IsLoopback()
}

// same compares two secrets in a time that tells nothing of them.
func same(a, b string) bool {
	one, other := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(one[:], other[:]) == 1
}

// cookieName differs between servers on the ports of one host, which share the cookies.
func cookieName(r *http.Request) string {
	_, port, _ := net.SplitHostPort(r.Host)
	for _, c := range port {
		if c < '0' || c > '9' {
			return "interlock_ui"
		}
	}
	return "interlock_ui" + port
}

// authenticated asks for the token, if there is one.
func (u *UI) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u.config.Token == "" {
			next.ServeHTTP(w, r)
			return
		}
		cookie, err := r.Cookie(cookieName(r))
		known := err == nil && same(cookie.Value, u.session)
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		// On the first page only: on the page of a release the token is a grant's.
		q, given := r.URL.Query(), ""
		if r.URL.Path == "/" {
			given = q.Get("token")
			q.Del("token") // out of the address, before anything else sees it
		}
		switch here := local(r.URL.Path + "?" + q.Encode()); {
		case reads && given != "" && same(given, u.config.Token):
			u.admit(w, r)
			seeOther(w, here)
		case known:
			next.ServeHTTP(w, r)
		case !reads || r.URL.Path == "/events":
			http.Error(w, "Open the page and give the token first.", http.StatusUnauthorized)
		default:
			u.askToken(w, here, given != "")
		}
	})
}

// admit gives the browser the cookie. It has no path: the browser takes the path of the page, so
// that two servers behind one proxy, each under a path, do not get each other's cookies.
func (u *UI) admit(w http.ResponseWriter, r *http.Request) {
	//nolint:gosec // without Secure: the server speaks plain HTTP
	http.SetCookie(w, &http.Cookie{
		Name: cookieName(r), Value: u.session, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
}

// login takes the token from the form.
func (u *UI) login(w http.ResponseWriter, r *http.Request) {
	next := local(r.URL.Query().Get("next"))
	if u.config.Token != "" && !same(r.PostFormValue("token"), u.config.Token) {
		u.askToken(w, next, true)
		return
	}
	u.admit(w, r)
	seeOther(w, next)
}

// seeOther redirects to a page of this server. The address is relative, like all addresses
// here: a proxy may have put a path in front, which only the browser knows.
func seeOther(w http.ResponseWriter, to string) {
	w.Header().Set("Location", "./"+strings.TrimPrefix(to, "/"))
	w.WriteHeader(http.StatusSeeOther)
}

// askToken shows the form.
func (u *UI) askToken(w http.ResponseWriter, next string, wrong bool) {
	u.render(w, http.StatusUnauthorized, "login", page{
		Title: "Log in", Action: "login?" + url.Values{"next": {local(next)}}.Encode(), Wrong: wrong,
	})
}

// local returns where to go on this server, and nowhere else.
func local(to string) string {
	if !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.ContainsAny(to, "\\\r\n\t") {
		return "/"
	}
	return strings.TrimSuffix(to, "?")
}
