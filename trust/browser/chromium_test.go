//go:build long

package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// patience bounds how long a test waits for an event that must happen.
const patience = 20 * time.Second

// browser is one Chromium with one page.
type browser struct {
	*testing.T
	ctx context.Context
	axe string // the source of axe-core; empty if it is not there

	mu    sync.Mutex
	wrong []string // errors on the console
}

// chromium returns the path of the program.
func chromium() (string, error) {
	if path := os.Getenv("INTERLOCK_CHROMIUM"); path != "" {
		return path, nil
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("no chromium on PATH: run ./scripts/test.sh, which installs one, or apt-get install chromium")
}

// start starts Chromium. The test's cleanup ends it.
func start(t *testing.T) *browser {
	t.Helper()
	path, err := chromium()
	if err != nil {
		t.Fatal(err)
	}
	opts := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(path), chromedp.DisableGPU,
		chromedp.WSURLReadTimeout(time.Minute),
		chromedp.Flag("renderer-process-limit", "1"), chromedp.Flag("js-flags", "--max-old-space-size=128"),
		chromedp.Flag("hide-scrollbars", true))
	if os.Geteuid() == 0 {
		t.Log("running Chromium without its sandbox, since it refuses to have one as root")
		opts = append(opts, chromedp.NoSandbox)
	}
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), opts...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Logf("ending Chromium: %v", err)
		}
		cancel()
	})
	b := &browser{T: t, ctx: ctx}
	if err := chromedp.Do(ctx); err != nil { // starts it
		t.Fatal(err)
	}
	if err := chromedp.Listen(ctx, b.hear); err != nil {
		t.Fatal(err)
	}

	file := os.Getenv("INTERLOCK_AXE")
	if file == "" {
		found, _ := filepath.Glob("../../.bin/axe-core-*/axe.min.js")
		if len(found) > 0 {
			file = found[len(found)-1]
		}
	}
	if file != "" {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b.axe = string(source)
	}
	return b
}

// hear collects the errors and warnings of the console. An error status is expected where the
// test has asked for one.
func (b *browser) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.wrong = append(b.wrong, e.ExceptionDetails.Text+" "+e.ExceptionDetails.Exception.Description)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			for _, arg := range e.Args {
				b.wrong = append(b.wrong, string(e.Type)+": "+string(arg.Value))
			}
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.wrong = append(b.wrong, fmt.Sprintf("%s: %s (%s)", e.Entry.Level, e.Entry.Text, e.Entry.URL))
		}
	}
}

// console checks that the console has the errors that are expected since it was looked at
// last, each named by a part of it.
func (b *browser) console(expected ...string) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.wrong {
		i := slices.IndexFunc(expected, func(part string) bool { return strings.Contains(line, part) })
		if i < 0 {
			b.Errorf("on the console: %s", line)
			continue
		}
		expected = slices.Delete(expected, i, i+1)
	}
	b.wrong = nil
}

// do carries actions out within the test's patience.
func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	value(b, chromedp.Steps(actions...))
}

// value carries an action out within the test's patience, and returns its result.
func value[T any](b *browser, action chromedp.Action[T]) T {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		b.Fatalf("%v; the page is\n%s", err, b.text())
	}
	return v
}

// text is the text of the page.
func (b *browser) text() string {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText`))
	if err != nil {
		return err.Error()
	}
	return text
}

// until waits until an expression in the page is true, also while the page is left for
// another one.
func (b *browser) until(what, expression string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	for {
		met, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`!!(`+expression+`)`))
		switch {
		case met:
			return
		case ctx.Err() != nil:
			b.Fatalf("not so: %s: %v; the page is\n%s", what, err, b.text())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// is evaluates an expression in the page.
func is[T any](b *browser, expression string) T {
	b.Helper()
	return value(b, chromedp.Evaluate[T](expression))
}

// command sends a command of the protocol.
func command[P any](b *browser, command cdp.Command[P, cdp.Empty], params P) {
	b.Helper()
	if _, err := chromedp.Call(b.ctx, command, params); err != nil {
		b.Fatal(err)
	}
}

// looks takes pictures of the page, narrow and wide, dark and light, and has axe-core look
// at it.
func (b *browser) looks(name string) {
	b.Helper()
	for _, width := range []int64{360, 1280} {
		for _, scheme := range []string{"light", "dark"} {
			b.do(chromedp.EmulateViewport(width, 800))
			command(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
				{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
			}})
			picture := value(b, chromedp.FullScreenshot(100))
			file := filepath.Join(b.ArtifactDir(), fmt.Sprintf("%s-%d-%s.png", name, width, scheme))
			if err := os.WriteFile(file, picture, 0o600); err != nil {
				b.Fatal(err)
			}
			if wide := is[int64](b, `document.documentElement.scrollWidth`); wide > width {
				b.Errorf("%s: the page is %d wide in a window of %d", name, wide, width)
			}
			if (width == 360) == (scheme == "light") { // each width and each scheme once
				b.usable(fmt.Sprintf("%s, %d wide, %s", name, width, scheme))
			}
		}
	}
}

// usable has axe-core look at the page.
func (b *browser) usable(name string) {
	b.Helper()
	if b.axe == "" {
		return
	}
	if !is[bool](b, `window.axe !== undefined`) {
		is[bool](b, b.axe+"; true")
	}
	type found struct {
		ID, Impact, Help string
		Nodes            []string
	}
	report := value(b, chromedp.Evaluate[struct {
		Passes int
		Found  []found
	}](`axe.run(document, {preload: false, resultTypes: ['violations']}).then(r => ({
		Passes: r.passes.length,
		Found: r.violations.map(v => ({ID: v.id, Impact: v.impact, Help: v.help, Nodes: v.nodes.map(n => n.html + ' ' + n.failureSummary)})),
	}))`, chromedp.EvalAwaitPromise))
	if report.Passes < 10 {
		b.Errorf("%s: axe-core has looked at %d things only: the test has gone blind", name, report.Passes)
	}
	for _, v := range report.Found {
		if v.Impact == "serious" || v.Impact == "critical" {
			b.Errorf("%s: %s (%s): %s\n%s", name, v.ID, v.Impact, v.Help, strings.Join(v.Nodes, "\n"))
		} else {
			b.Logf("%s: %s (%s): %s", name, v.ID, v.Impact, v.Help)
		}
	}
}
