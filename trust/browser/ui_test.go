//go:build long

package browser

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// eventWithin is how long the page may take to show a change. docs/tool.md#the-page-in-a-browser promises about a
// second; the rest is for a busy machine.
const eventWithin = 10 * time.Second

// tool is a running `interlock ui`.
type tool struct {
	*testing.T
	cmd     *exec.Cmd
	address string
}

// build builds the tool.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "interlock")
	cmd := exec.Command("go", "build", "-o", path, ".")
	cmd.Dir = "../../cmd/interlock" // the module of the tool
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// serve starts the tool.
func serve(t *testing.T, program string, args ...string) *tool {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the tool prints no address: %v", err)
	}
	return &tool{T: t, cmd: cmd, address: strings.TrimSpace(line)}
}

// end ends the tool, which must end well.
func (u *tool) end() {
	u.Helper()
	if err := u.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		u.Fatal(err)
	}
	timer := time.AfterFunc(patience, func() { _ = u.cmd.Process.Kill() })
	defer timer.Stop()
	if err := u.cmd.Wait(); err != nil {
		u.Errorf("the tool ends with %v", err)
	}
}

// locker makes a locker with its own store, as another process has.
func locker(t *testing.T, rdb redis.UniversalClient, opts ...core.LockerOption) *core.Locker {
	t.Helper()
	store, err := redisstore.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	l, err := core.New(store, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // locks that a test leaves held are lost
		_, _ = l.Close(ctx), store.Close()
	})
	return l
}

// lock takes locks.
func lock(t *testing.T, l *core.Locker, keys ...string) (last *core.Lease) {
	t.Helper()
	for _, key := range keys {
		lease, err := l.Lock(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		last = lease
	}
	return last
}

// waits has a locker wait for a lock, and returns the lease once it has it.
func waits(t *testing.T, l *core.Locker, key string) <-chan *core.Lease {
	t.Helper()
	granted := make(chan *core.Lease, 1)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if lease, err := l.Lock(ctx, key, core.Wait(time.Hour)); err == nil {
			granted <- lease
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return granted
}

const contested, hostileKey = "account/42", "<img src=x onerror=alert(1)>\x1b[31m\u202e"

// row is the expression of the table's row with a key, given as shown.
func row(key string) string {
	return fmt.Sprintf(`[...document.querySelectorAll('#locks tr')].find(r => r.querySelector('.key').textContent === %q)`, key)
}

func TestThePageInABrowser(t *testing.T) {
	program := build(t)
	srv := redistest.Start(t)
	rdb := srv.Client(t)
	payments := locker(t, rdb, core.Service("payments", "v1.4.2"))
	billing := locker(t, rdb, core.Service("billing", "v2.0.0"))
	reports := locker(t, rdb, core.Service("reports", ""))
	lock(t, payments, contested, "account/7", "invoice/2026-11", "tenant/größe", hostileKey)
	lock(t, billing, "invoice/2026-10", "deploy/web")
	for range 3 {
		if _, err := reports.Permit(t.Context(), "partner/acme", 5); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := payments.Permit(t.Context(), "partner/acme", 5); err != nil {
		t.Fatal(err)
	}
	first := waits(t, billing, contested)
	u := serve(t, program, "-addr", srv.Addr(), "ui")
	b := start(t)

	b.do(chromedp.EmulateViewport(1280, 800), chromedp.Navigate(u.address))
	b.until("8 locks are in the table", `document.querySelectorAll('#locks tr').length === 8`)
	b.until("the page is live", `document.getElementById('live').classList.contains('on')`)
	b.until("a waiter is there", row(contested)+`.lastElementChild.textContent.trim() === '1'`)
	if got := is[string](b, `document.querySelector('#locks .key').textContent`); got != contested {
		t.Errorf("the first lock is %q; want %q, which is waited for", got, contested)
	}
	if !is[bool](b, row(`<img src=x onerror=alert(1)>\x1b[31m\u202e`)+` !== undefined`) {
		t.Error("the hostile key is not shown escaped")
	}

	// A reload of the page would remove the mark and the focus.
	is[chromedp.Void](b, `window.mark = 1; `+row(contested)+`.querySelector('a').focus()`)
	began := time.Now()
	fresh := lock(t, billing, "fresh/1")
	b.until("the new lock is in the table", row("fresh/1")+` !== undefined`)
	took := time.Since(began)
	second := waits(t, reports, contested)
	b.until("the second waiter is counted", row(contested)+`.lastElementChild.textContent.trim() === '2'`)
	if err := fresh.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.until("the lock that was released has gone", row("fresh/1")+` === undefined`)
	t.Logf("a new lock was in the table after %v", took.Round(time.Millisecond))
	if took > eventWithin {
		t.Errorf("a new lock was in the table after %v; want %v", took, eventWithin)
	}
	if !is[bool](b, `window.mark === 1`) {
		t.Error("the page was loaded again")
	}
	if !is[bool](b, row(contested)+`.contains(document.activeElement)`) {
		t.Error("the row that has changed has lost the focus")
	}
	b.looks("locks")
	b.console()

	// With the keyboard alone to the page of the lock.
	b.do(chromedp.EmulateViewport(1280, 800), chromedp.Navigate(u.address+"?q=account/4&sort=key"))
	b.until("the search finds one", `document.querySelectorAll('#locks tr').length === 1`)
	for tabs := 0; !is[bool](b, `document.activeElement.matches('#locks a')`); tabs++ {
		if tabs > 20 {
			t.Fatal("20 times Tab, and the link of the lock has no focus")
		}
		b.do(chromedp.KeyEvent(kb.Tab))
	}
	b.do(chromedp.KeyEvent(kb.Enter))
	b.until("the page of the lock shows its holder", `document.querySelectorAll('#holders tr').length === 1`)
	b.until("and the waiters in order", `(t => t.indexOf('billing') >= 0 && t.indexOf('reports') > t.indexOf('billing'))(document.getElementById('waiters').textContent)`)
	b.until("it is live", `document.getElementById('live').classList.contains('on')`)
	b.looks("lock")
	b.console()

	// A release, with the wrong key and with the right one.
	b.do(chromedp.EmulateViewport(1280, 800), chromedp.Click(chromedp.CSS(`#holders a.button`)), chromedp.WaitVisible(chromedp.CSS(`#confirm`)))
	b.looks("release")
	b.do(chromedp.EmulateViewport(1280, 800), chromedp.SendKeys(chromedp.CSS(`#confirm`), "account/4"+kb.Enter))
	b.until("the wrong key is refused", `document.getElementById('wrong')?.textContent.includes('not the key')`)
	b.usable("refused")
	b.console("status of 422")
	if len(first) > 0 || len(second) > 0 || rdb.Exists(t.Context(), "interlock:{"+contested+"}").Val() != 1 {
		t.Fatal("the lock was released with the wrong key")
	}
	is[chromedp.Void](b, `document.getElementById('confirm').value = ''`)
	b.do(chromedp.EmulateViewport(1280, 800), chromedp.SendKeys(chromedp.CSS(`#confirm`), contested+kb.Enter))
	b.until("it says what was released", `document.querySelector('.note.good')?.textContent.startsWith('Released')`)
	select {
	case <-first:
	case <-time.After(patience):
		t.Fatal("the first waiter did not get the lock that was released")
	}
	b.until("the next holder is shown", `document.getElementById('holders').textContent.includes('billing')`)

	// Without JavaScript.
	command(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.do(chromedp.Navigate(u.address))
	if n := is[int](b, `document.querySelectorAll('#locks tr').length`); n != 8 {
		t.Errorf("without JavaScript the table has %d rows; want 8", n)
	}
	command(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{})
	b.do(chromedp.Navigate(u.address))
	b.until("the page is live", `document.getElementById('live').classList.contains('on')`)
	b.console()

	// Redis has gone, and the tool ends while its page is open.
	srv.Kill()
	b.until("the page says so", `!document.getElementById('problem').hidden && document.getElementById('problem').textContent.startsWith('Redis')`)
	b.until("and that it is out of date", `document.getElementById('live').textContent === 'out of date'`)
	if n := is[int](b, `document.querySelectorAll('#locks tr').length`); n != 8 {
		t.Errorf("the table has %d rows; want the 8 that were read last", n)
	}
	b.looks("problem")
	u.end()
	b.until("the page says that it is not connected", `document.getElementById('live').textContent.startsWith('not connected')`)

	t.Run("axe-core", func(t *testing.T) {
		if b.axe == "" {
			t.Skip("it is not there, and has not looked at the pages: run scripts/axe.sh, which says why it cannot be had")
		}
	})
}
