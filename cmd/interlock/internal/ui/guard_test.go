package ui

import (
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

const aToken = "0123456789abcdef"

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func host(name string) func(*http.Request) {
	return func(r *http.Request) { r.Host = name }
}

func TestEachResponseHasTheHeadersThatProtectAPage(t *testing.T) {
	f := &fakeFleet{}
	f.put(heldLock("a", 5, 0))
	u, closed := newUI(t, Config{Fleet: f}), newUI(t, Config{Fleet: f, Token: aToken})
	wrong := url.Values{"confirm": {"b"}}
	for name, h := range map[string]http.Header{
		"table":         get(u, "/").Header(),
		"lock":          get(u, "/lock?key=a").Header(),
		"no key":        get(u, "/lock").Header(),
		"form":          get(u, "/release?key=a&token=5").Header(),
		"refused":       do(u, request("POST", "/release?key=a&token=5", wrong)).Header(),
		"style":         get(u, "/static/ui.css").Header(),
		"not found":     get(u, "/nothing").Header(),
		"no such style": get(u, "/static/nothing").Header(),
		"wrong method":  do(u, request("DELETE", "/lock", nil)).Header(),
		"wrong host":    get(u, "/", host("evil.example")).Header(),
		"cross-site":    get(u, "/", header("Sec-Fetch-Site", "cross-site")).Header(),
		"login":         get(closed, "/").Header(),
		"no events":     get(closed, "/events").Header(),
	} {
		for header, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; " +
				"form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
			"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store",
		} {
			if got := h.Get(header); got != want {
				t.Errorf("%s: %s is %q; want %q", name, header, got, want)
			}
		}
	}
}

func TestOnlyItsOwnNamesReachTheServer(t *testing.T) {
	here := newUI(t, Config{Hosts: Hosts("127.0.0.1")})
	wide := newUI(t, Config{Hosts: Hosts("0.0.0.0")})
	named := newUI(t, Config{Hosts: Hosts("Bastion.internal")})
	for _, c := range []struct {
		u    *UI
		host string
		ok   bool
	}{
		{here, "127.0.0.1:7070", true},
		{here, "localhost:7070", true},
		{here, "LOCALHOST", true},
		{here, "[::1]:7070", true},
		{here, "[::1]", true},
		{here, "", false},
		{here, "evil.example", false},
		{here, "evil.example:7070", false},
		{here, "127.0.0.1.evil.example:7070", false},
		{here, "localhost.evil.example", false},
		{here, "10.0.0.5:7070", false},
		{here, "*", false},
		{wide, "10.0.0.5:7070", true},
		{wide, "[fe80::1]:7070", true},
		{wide, "evil.example:7070", false},
		{wide, "*:7070", false},
		{named, "bastion.internal:7070", true},
		{named, "localhost:7070", true},
		{named, "10.0.0.5:7070", false},
	} {
		want := map[bool]int{true: http.StatusOK, false: http.StatusMisdirectedRequest}[c.ok]
		if w := get(c.u, "/static/ui.css", host(c.host)); w.Code != want {
			t.Errorf("%q: status %d; want %d", c.host, w.Code, want)
		}
	}
}

func TestRequestsOfOtherSitesAreRefused(t *testing.T) {
	f := &fakeFleet{}
	u := newUI(t, Config{Fleet: f})
	right := url.Values{"confirm": {"a"}}
	post := func(edits ...func(*http.Request)) int {
		f.put(heldLock("a", 5, 0))
		return do(u, request("POST", "/release?key=a&token=5", right), edits...).Code
	}
	for _, site := range []string{"cross-site", "same-site", "anything"} {
		if code := post(header("Sec-Fetch-Site", site)); code != http.StatusForbidden {
			t.Errorf("a release from %s: status %d", site, code)
		}
		if code := post(header("Sec-Fetch-Site", site), header("Sec-Fetch-Mode", "navigate"), header("Sec-Fetch-Dest", "document")); code != http.StatusForbidden {
			t.Errorf("a form of %s: status %d", site, code)
		}
		if w := get(u, "/events", header("Sec-Fetch-Site", site), header("Sec-Fetch-Mode", "cors")); w.Code != http.StatusForbidden {
			t.Errorf("events for %s: status %d", site, w.Code)
		}
		if w := get(u, "/", header("Sec-Fetch-Site", site), header("Sec-Fetch-Mode", "navigate"), header("Sec-Fetch-Dest", "iframe")); w.Code != http.StatusForbidden {
			t.Errorf("a frame of %s: status %d", site, w.Code)
		}
		if w := get(u, "/lock?key=a", header("Sec-Fetch-Site", site), header("Sec-Fetch-Mode", "navigate"), header("Sec-Fetch-Dest", "document")); w.Code != http.StatusOK {
			t.Errorf("a link of %s: status %d", site, w.Code)
		}
	}
	// Over plain HTTP to another machine browsers send no Sec-Fetch-Site, but say where a
	// form comes from.
	old := func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Set("Origin", "http://evil.example") }
	if code := post(old); code != http.StatusForbidden {
		t.Errorf("a release from another origin: status %d", code)
	}
	null := func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Set("Origin", "null") }
	if code := post(null); code != http.StatusForbidden {
		t.Errorf("a release from no origin: status %d", code)
	}
	if len(f.released) > 0 {
		t.Errorf("released: %q", f.released)
	}
	own := func(r *http.Request) { r.Header.Del("Sec-Fetch-Site"); r.Header.Set("Origin", "http://127.0.0.1:7070") }
	if code := post(own); code != http.StatusSeeOther || len(f.released) != 1 {
		t.Errorf("the page's own release over plain HTTP: status %d, released %q", code, f.released)
	}
	f.released = nil
	if code := post(); code != http.StatusSeeOther || len(f.released) != 1 {
		t.Errorf("the page's own release: status %d, released %q", code, f.released)
	}
}

func TestNothingIsShownWithoutTheToken(t *testing.T) {
	f := &fakeFleet{}
	f.put(heldLock("secret/1", 5, 0))
	u := newUI(t, Config{Fleet: f, Token: aToken, Source: "redis-of-secrets", ReadOnly: true})
	for _, target := range []string{"/", "/lock?key=secret/1", "/release?key=secret/1&token=5", "/nothing"} {
		contains(t, status(t, get(u, target), http.StatusUnauthorized), `type="password"`, "!web-1", "!payments", "!redis-of-secrets", "!read only")
	}
	status(t, get(u, "/events"), http.StatusUnauthorized)
	status(t, do(u, request("POST", "/release?key=secret/1&token=5", url.Values{"confirm": {"secret/1"}})), http.StatusUnauthorized)
	for _, wrong := range []string{"", "0123456789abcdeg", aToken + "x", aToken[:15]} {
		w := do(u, request("POST", "/login?next=/", url.Values{"token": {wrong}}))
		contains(t, status(t, w, http.StatusUnauthorized), "That is not the token")
		if len(w.Result().Cookies()) > 0 {
			t.Errorf("%q gets a cookie", wrong)
		}
		w = get(u, "/?token="+wrong)
		if status(t, w, http.StatusUnauthorized); len(w.Result().Cookies()) > 0 {
			t.Errorf("?token=%q gets a cookie", wrong)
		}
	}
	for _, forged := range []string{"", "x", aToken} {
		w := get(u, "/", func(r *http.Request) { r.AddCookie(&http.Cookie{Name: "interlock_ui7070", Value: forged}) })
		status(t, w, http.StatusUnauthorized)
	}
	if f.count() > 0 || len(f.released) > 0 {
		t.Errorf("Redis was read %d times, and released %q", f.count(), f.released)
	}
}

func TestTheTokenIsGivenOnce(t *testing.T) {
	u := newUI(t, Config{Token: aToken})
	for name, w := range map[string]struct {
		status int
		where  string
		got    func() (code int, where string, cookies []*http.Cookie)
	}{
		"in the address": {http.StatusSeeOther, "./?q=a", func() (int, string, []*http.Cookie) {
			w := get(u, "/?q=a&token="+aToken)
			return w.Code, w.Header().Get("Location"), w.Result().Cookies()
		}},
		"in the form": {http.StatusSeeOther, "./lock?key=a", func() (int, string, []*http.Cookie) {
			w := do(u, request("POST", "/login?next="+url.QueryEscape("/lock?key=a"), url.Values{"token": {aToken}}))
			return w.Code, w.Header().Get("Location"), w.Result().Cookies()
		}},
	} {
		code, where, cookies := w.got()
		if code != w.status || where != w.where || len(cookies) != 1 {
			t.Fatalf("%s: status %d, to %q, cookies %v", name, code, where, cookies)
		}
		c := cookies[0]
		if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "" || strings.Contains(c.Value, aToken) {
			t.Errorf("%s: cookie %+v", name, c)
		}
		status(t, get(u, "/", func(r *http.Request) { r.AddCookie(c) }), http.StatusOK)
		// Another process with the same token knows nothing of it.
		status(t, get(newUI(t, Config{Token: aToken}), "/", func(r *http.Request) { r.AddCookie(c) }), http.StatusUnauthorized)
	}
}

// The cookies of both had one name and one path: a login at one server was the end of a login at
// the other.
func TestTwoServersBehindOneProxyKeepTheirLogins(t *testing.T) {
	proxy := http.NewServeMux()
	for _, path := range []string{"/staging", "/prod"} {
		proxy.Handle(path+"/", http.StripPrefix(path, newUI(t, Config{Token: aToken})))
	}
	srv := httptest.NewServer(proxy)
	defer srv.Close()
	jar, _ := cookiejar.New(nil) // it never fails
	browser := &http.Client{Jar: jar}
	for _, page := range []string{"/staging/?token=" + aToken, "/prod/?token=" + aToken, "/staging/", "/prod/lock?key=a"} {
		resp, err := browser.Get(srv.URL + page)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%.9s: status %d; want the page, since the browser has logged in at both servers", page, resp.StatusCode)
		}
	}
}

func TestALoginLeadsNowhereElse(t *testing.T) {
	u := newUI(t, Config{Token: aToken})
	for _, next := range []string{"", "//evil.example", "https://evil.example", `/\evil.example`, "/\t/evil.example", "javascript:alert(1)"} {
		w := do(u, request("POST", "/login?"+url.Values{"next": {next}}.Encode(), url.Values{"token": {aToken}}))
		if status(t, w, http.StatusSeeOther); w.Header().Get("Location") != "./" {
			t.Errorf("%q leads to %q", next, w.Header().Get("Location"))
		}
	}
}

func TestAShortTokenIsRefused(t *testing.T) {
	if _, err := New(Config{Fleet: &fakeFleet{}, Token: "short"}); err == nil || !strings.Contains(err.Error(), "at least 16") {
		t.Errorf("%v", err)
	}
}

func TestLocalIsWhatOtherMachinesDoNotReach(t *testing.T) {
	for listen, want := range map[string]bool{
		"127.0.0.1": true, "localhost": true, "::1": true, "127.8.8.8": true,
		"": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "bastion": false,
	} {
		if Local(listen) != want {
			t.Errorf("Local(%q) is %v", listen, !want)
		}
	}
}
