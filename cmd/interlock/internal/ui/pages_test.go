package ui

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/fleet"
	"github.com/interlock-go/interlock/core/memstore"
)

// hostile are texts as an attacker chooses keys and names.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, "\x1b[31mred\x1b[0m",
	"\u202egnp.exe", "a\x00b\r\nc", "\xff\xfe", `javascript:alert(1)`, `{{.}}`, "</td></tr><tr>", "&lt;", `a\x1bb`, strings.Repeat("x", 5000),
}

// The browser does not learn the internal error.
func TestAPageThatCannotBeShownIsLogged(t *testing.T) {
	var logged bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
	defer slog.SetDefault(old)
	w := httptest.NewRecorder()
	newUI(t, Config{Fleet: &fakeFleet{}}).render(w, http.StatusOK, "nonesuch", page{})
	if w.Code != http.StatusInternalServerError || !strings.Contains(logged.String(), `level=ERROR msg="interlock: a page cannot be shown" page=nonesuch error=`) ||
		strings.Contains(w.Body.String(), "nonesuch") {
		t.Errorf("%d %q, logged %q", w.Code, w.Body, &logged)
	}
}

func TestHostileKeysAndNamesAreShownEscaped(t *testing.T) {
	bad := regexp.MustCompile("<script>alert|<img src=x|onmouseover='|[\x00-\x08\x0b-\x1f\x7f\u202e\ufffd]|href=\"javascript")
	for _, text := range hostile {
		f := &fakeFleet{}
		l := heldLock(text, 5, 1)
		for _, locker := range []*fleet.Locker{&l.Holders[0].Locker, &l.Waiters[0].Locker} {
			locker.Host, locker.Service, locker.Version = text, text, text
		}
		l.Holders = append(l.Holders, fleet.Holder{Owner: text, Token: 6, Locker: fleet.Locker{ID: text}})
		f.put(l)
		u := newUI(t, Config{Fleet: f})
		pages := map[string]string{
			"table":   status(t, get(u, "/"), http.StatusOK),
			"search":  status(t, get(u, "/?"+url.Values{"q": {text}}.Encode()), http.StatusOK),
			"lock":    status(t, get(u, linkTo("/lock", text)), http.StatusOK),
			"form":    status(t, get(u, linkTo("/release", text, "token", "5")), http.StatusOK),
			"refused": status(t, do(u, request("POST", linkTo("/release", text, "token", "5"), url.Values{"confirm": {"<script>alert(2)</script>\x1b"}})), http.StatusUnprocessableEntity),
		}
		known := pageNews{rows: map[string]map[string]row{}}
		event, err := known.event(u.lockContent(query{key: text}, u.readLock(t.Context(), text)))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(string(event), "\n") != 2 {
			t.Errorf("%q: an event of several lines: %q", text, event)
		}
		pages["event"] = strings.ReplaceAll(string(event), "\n", "")
		for name, page := range pages {
			page = strings.ReplaceAll(page, "\n", "")
			if found := bad.FindString(page); found != "" {
				t.Errorf("%q: the %s has %q:\n%s", text, name, found, page)
			}
		}
		// The link of the row leads to this very key.
		m := regexp.MustCompile(`class="key" href="([^"]+)"`).FindStringSubmatch(pages["table"])
		if m == nil {
			t.Fatalf("%q: no link in the table", text)
		}
		to, err := url.Parse(html.UnescapeString(m[1]))
		if err != nil || to.Query().Get("key") != text {
			t.Errorf("%q: the link is %q", text, m[1])
		}
	}
}

func TestTheKeyIsTypedAsItIsShown(t *testing.T) {
	for _, text := range hostile {
		f := &fakeFleet{}
		f.put(heldLock(text, 5, 0))
		u := newUI(t, Config{Fleet: f})
		page := status(t, get(u, linkTo("/release", text, "token", "5")), http.StatusOK)
		m := regexp.MustCompile(`<span id="key" class="key">([^<]*)</span>`).FindStringSubmatch(page)
		if m == nil {
			t.Fatalf("%q: the form shows no key", text)
		}
		w := do(u, request("POST", linkTo("/release", text, "token", "5"), url.Values{"confirm": {html.UnescapeString(m[1])}}))
		if status(t, w, http.StatusSeeOther); len(f.released) != 1 || f.released[0] != fmt.Sprintf("%q 5", text) {
			t.Errorf("%q: released %q", text, f.released)
		}
	}
}

func TestTheFormSaysWhenTheHolderNotices(t *testing.T) {
	for attentive, says := range map[bool]string{false: "at its next renewal", true: "at once"} {
		f, l := &fakeFleet{}, heldLock("k", 5, 0)
		l.Holders[0].Attentive = attentive
		f.put(l)
		page := status(t, get(newUI(t, Config{Fleet: f}), linkTo("/release", "k", "token", "5")), http.StatusOK)
		if !strings.Contains(page, "told about the loss "+says) {
			t.Errorf("attentive %v: the form does not say %q", attentive, says)
		}
	}
}

func TestAReleaseNeedsTheKeyAndTheToken(t *testing.T) {
	f := &fakeFleet{}
	f.put(heldLock("account/1", 5, 2), heldLock("account/10", 6, 0))
	u := newUI(t, Config{Fleet: f})
	for _, c := range []struct {
		target, typed string
		status        int
		says          string
	}{
		{"/release?key=account/1&token=5", "", http.StatusUnprocessableEntity, "not the key"},
		{"/release?key=account/1&token=5", "account/", http.StatusUnprocessableEntity, "not the key"},
		{"/release?key=account/1&token=5", "account/10", http.StatusUnprocessableEntity, "not the key"},
		{"/release?key=account/1&token=5", "ACCOUNT/1", http.StatusUnprocessableEntity, "not the key"},
		{"/release?key=account/1&token=6", "account/1", http.StatusConflict, "No holder of this lock has this token"},
		{"/release?key=free&token=5", "free", http.StatusConflict, "No holder of this lock has this token"},
		{"/release?key=account/1", "account/1", http.StatusBadRequest, "no lock and token"},
		{"/release?key=account/1&token=x", "account/1", http.StatusBadRequest, "no lock and token"},
		{"/release?token=5", "", http.StatusBadRequest, "no lock and token"},
	} {
		w := do(u, request("POST", c.target, url.Values{"confirm": {c.typed}}))
		contains(t, status(t, w, c.status), c.says)
	}
	if len(f.released) > 0 {
		t.Fatalf("released: %q", f.released)
	}
	status(t, get(u, "/release?key=account/1&token=5"), http.StatusOK)
	status(t, get(u, "/release?key=account/1&token=7"), http.StatusConflict)
	w := do(u, request("POST", "/release?key=account/1&token=5", url.Values{"confirm": {"account/1"}}))
	status(t, w, http.StatusSeeOther)
	page := status(t, get(u, w.Header().Get("Location")), http.StatusOK)
	contains(t, page, "Released: the grant with token 5", "No process holds this lock")
	if len(f.released) != 1 {
		t.Errorf("released: %q", f.released)
	}
}

// A proxy may put a path in front: all addresses on the pages are relative.
func TestNoAddressOfAPageBeginsAtTheRoot(t *testing.T) {
	f := &fakeFleet{}
	f.put(heldLock("a", 5, 1))
	u, closed := newUI(t, Config{Fleet: f}), newUI(t, Config{Fleet: f, Token: aToken})
	for name, page := range map[string]string{
		"table": status(t, get(u, "/"), http.StatusOK), "lock": status(t, get(u, "/lock?key=a"), http.StatusOK),
		"form": status(t, get(u, "/release?key=a&token=5"), http.StatusOK), "login": status(t, get(closed, "/lock?key=a"), http.StatusUnauthorized),
	} {
		if absolute := regexp.MustCompile(`(href|src|action|data-events)="/[^"]*"`).FindString(page); absolute != "" {
			t.Errorf("%s: %s", name, absolute)
		}
	}
}

func TestAReadOnlyPageReleasesNothing(t *testing.T) {
	f := &fakeFleet{}
	f.put(heldLock("a", 5, 0))
	u := newUI(t, Config{Fleet: f, ReadOnly: true})
	contains(t, status(t, get(u, "/lock?key=a"), http.StatusOK), "read only", "web-1", "!/release")
	contains(t, status(t, get(u, "/release?key=a&token=5"), http.StatusForbidden), "-read-only", "!<form")
	contains(t, status(t, do(u, request("POST", "/release?key=a&token=5", url.Values{"confirm": {"a"}})), http.StatusForbidden), "-read-only")
	if len(f.released) > 0 {
		t.Errorf("released: %q", f.released)
	}
}

func TestALocksPageShowsItsHoldersAndWaitersInOrder(t *testing.T) {
	f := &fakeFleet{}
	l := heldLock("a", 5, 2)
	l.Waiters[1].Place = true
	l.Waiters = append(l.Waiters, fleet.Waiter{Locker: fleet.Locker{ID: "old"}})
	f.put(l)
	page := status(t, get(newUI(t, Config{Fleet: f}), "/lock?key=a"), http.StatusOK)
	contains(t, page, "web-1", "4711", "payments v1.2", "held by one, exclusively", "1 min 5 s", "3 processes", "unlisted locker old", "no, silent", "not known")
	at := 0
	for _, next := range []string{"web-2", "the lock alone", "web-3", "a place beside others", "unlisted locker old"} {
		i := strings.Index(page[at:], next)
		if i < 0 {
			t.Fatalf("no %q behind what comes before it:\n%s", next, page)
		}
		at += i
	}
	contains(t, status(t, get(newUI(t, Config{}), "/lock?key=gone"), http.StatusOK), "No process holds this lock", "No process waits", ">free<")
}

// It has no holder, and is not free: Redis refuses it to all but those for whom it is kept.
func TestALockThatIsKeptForProcessesThatWaitIsNotShownAsFree(t *testing.T) {
	f := &fakeFleet{}
	l := heldLock("k", 5, 2)
	l.Kind, l.Held, l.Holders, l.Kept, l.Waiters[0].Kept = "", 0, nil, 3*time.Second, true
	f.put(l)
	page := status(t, get(newUI(t, Config{Fleet: f}), "/lock?key=k"), http.StatusOK)
	contains(t, page, "kept for processes that wait, without a holder", "the lock alone; the lock is kept for it")
	r := lockRowOf(&l, time.Now())
	if r.Kind != "kept for" || r.Process.Host != "web-2" || r.Times.End == 0 {
		t.Errorf("%+v; want a lock that is kept for web-2", r)
	}
}

func TestTheTableShowsTheFirstLocksOfAnOrder(t *testing.T) {
	f := &fakeFleet{}
	for i := range 1100 {
		f.put(heldLock(fmt.Sprintf("lock/%04d", i), int64(1e15)+int64(1100-i), 0))
	}
	f.put(heldLock("waited", 9e15, 3))
	u := newUI(t, Config{Fleet: f})
	rows := regexp.MustCompile(`class="key" href="[^"]*">([^<]+)<`)
	for target, want := range map[string]struct {
		rows    int
		first   string
		summary string
	}{
		"/":                      {500, "waited", "1101 locks are held, 1 waited for. The first 500 are shown"},
		"/?sort=nonsense":        {500, "waited", "1101 locks"},
		"/?sort=key":             {500, "lock/0000", "1101 locks"},
		"/?sort=age":             {500, "lock/1099", "1101 locks"},
		"/?sort=key&q=lock/109*": {10, "lock/1090", "10 locks are held."},
		"/?q=wait":               {1, "waited", "1 lock is held, 1 waited for."},
		"/?q=none":               {0, "", "0 locks are held."},
	} {
		page := status(t, get(u, target), http.StatusOK)
		found := rows.FindAllStringSubmatch(page, -1)
		if len(found) != want.rows || len(found) > 0 && found[0][1] != want.first {
			t.Errorf("%s: %d rows, the first %q; want %d and %q", target, len(found), found[:min(1, len(found))], want.rows, want.first)
		}
		contains(t, page, want.summary)
	}
}

func TestErrorsOfRedisAreShownInPlainWords(t *testing.T) {
	f := &fakeFleet{}
	f.put(heldLock("a", 5, 0))
	u := newUI(t, Config{Fleet: f})
	for _, c := range []struct {
		err  error
		says []string
	}{
		{fmt.Errorf("%w: dial tcp 10.0.0.1:6379: connection refused", driver.ErrUnavailable), []string{"The server was not reached", "connection refused", "!interlock:"}},
		{fmt.Errorf("%w: LOADING", driver.ErrNotReady), []string{"The server is not ready"}},
		{fmt.Errorf("%w: WRONGTYPE", driver.ErrKeyOccupied), []string{"a value in the store that is no lock"}},
		{fleet.ErrVoted, []string{"quorum"}},
		{errors.New("\x1b<b>\ngoroutine 1 [running]"), []string{`\x1b&lt;b&gt;`, "!goroutine"}},
	} {
		f.fail(c.err)
		contains(t, status(t, get(u, "/lock?key=a"), http.StatusOK), c.says...)
		contains(t, status(t, get(u, "/?q="+url.QueryEscape(c.err.Error())), http.StatusOK), c.says[0], "!0 locks")
		contains(t, status(t, do(u, request("POST", "/release?key=a&token=5", url.Values{"confirm": {"a"}})), http.StatusConflict), c.says[0])
	}
}

// A link can name any release.
func TestThePageConfirmsOnlyAReleaseThatHappened(t *testing.T) {
	f := &fakeFleet{}
	f.put(heldLock("k", 5, 0))
	u := newUI(t, Config{Fleet: f})
	confirmed := linkTo("/lock", "k", "released", "5")
	if got := status(t, get(u, confirmed), http.StatusOK); strings.Contains(got, "Released:") {
		t.Errorf("a link without a release is confirmed: %q", got)
	}
	release := func() *httptest.ResponseRecorder {
		return do(u, request("POST", linkTo("/release", "k", "token", "5"), url.Values{"confirm": {"k"}}))
	}
	// A refusal was shown as an unknown outcome, as if an operator had to look.
	for _, c := range []struct {
		err      error
		says, no string
	}{
		{fmt.Errorf("%w: %w", fleet.ErrOutcomeUnknown, driver.ErrUnavailable), "unknown whether the lock was released", "Nothing was released"},
		{fmt.Errorf("%w: NOPERM", driver.ErrUnavailable), "Nothing was released", "unknown whether"},
		{driver.ErrKeyOccupied, "Nothing was released", "unknown whether"},
		{fleet.ErrVoted, "Nothing was released", "unknown whether"},
	} {
		f.err = c.err
		if got := status(t, release(), http.StatusConflict); !strings.Contains(got, c.says) || strings.Contains(got, c.no) {
			t.Errorf("a release with the error %v says %q; want %q", c.err, got, c.says)
		}
	}
	f.err = nil
	status(t, release(), http.StatusSeeOther)
	if got := status(t, get(u, confirmed), http.StatusOK); !strings.Contains(got, "Released: the grant with token 5") {
		t.Errorf("a release is not confirmed: %q", got)
	}
}

// Each release by the page had the same name in the logs: the process that serves the page.
func TestAReleaseByThePageNamesWhoAskedForIt(t *testing.T) {
	store, logged := memstore.New(), &bytes.Buffer{}
	f, err := fleet.On(store, fleet.Logger(slog.New(slog.NewTextHandler(logged, nil))))
	if err != nil {
		t.Fatal(err)
	}
	rep, err := store.Acquire(t.Context(), driver.AcquireRequest{Key: "k", Owner: "a:1", TTL: time.Minute})
	if err != nil || !rep.Granted {
		t.Fatalf("%+v, %v; want the lock", rep, err)
	}
	u := newUI(t, Config{Fleet: f})
	r := request("POST", linkTo("/release", "k", "token", fmt.Sprint(rep.Token)), url.Values{"confirm": {"k"}})
	r.RemoteAddr = "10.1.2.3:4567"
	r.Header.Set("X-Forwarded-User", "ann\n")
	status(t, do(u, r), http.StatusSeeOther)
	for _, want := range []string{"an operator has released a lock", "10.1.2.3:4567", "X-Forwarded-User", `ann`} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("the log is %q; want %s", logged, want)
		}
	}
}
