package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/interlock-go/interlock/cmd/interlock/internal/ui"
	"github.com/interlock-go/interlock/internal/display"
)

var uiCommand = &command{
	name:  "ui",
	short: "serve a page with the locks of all processes",
	long: `Serves a page that shows the locks of all processes, live: their holders and waiters,
and one lock's page, where a grant can be released. It prints the page's address and
serves it until it is stopped with SIGINT or SIGTERM.

The page is for this machine alone, unless -listen says otherwise; then it needs a token,
which it asks for. It speaks plain HTTP: from elsewhere, use a tunnel (ssh -L). Each user
of this machine can open a page without a token.

The token is better given in INTERLOCK_UI_TOKEN, where other users of the machine cannot
read it.`,
	examples: [][2]string{
		{"ui", "on a free port of 127.0.0.1"},
		{"ui -listen 127.0.0.1:7070 -open", "on this port, and open it in a browser"},
		{"-addr redis:6379 ui -read-only", "without the means to release a lock"},
		{`ui -listen :7070 -token "$(openssl rand -hex 16)"`, "for other machines too"},
	},
	setup: func(fs *flag.FlagSet) action {
		f := &uiFlags{}
		fs.StringVar(&f.listen, "listen", "127.0.0.1:0", "`host:port` to listen on; port 0 is a free one")
		// No default that the help would show.
		fs.Func("token", "`text` of at least 16 characters that the page asks for; needed unless -listen is of this machine alone",
			func(s string) error { f.token = s; return nil })
		fs.StringVar(&f.hosts, "host", "", "`names` with commas by which a proxy asks for the page, besides the host of -listen")
		fs.BoolVar(&f.open, "open", false, "open the page in a browser")
		fs.BoolVar(&f.readOnly, "read-only", false, "offer no releases")
		return func(ctx context.Context, c *call) error { return c.ui(ctx, f) }
	},
}

// uiFlags are the flags of the command ui.
type uiFlags struct {
	listen, token  string
	hosts          string
	open, readOnly bool
}

// ui serves the page until ctx ends.
func (c *call) ui(ctx context.Context, f *uiFlags) error {
	if err := c.want(0, 0); err != nil {
		return err
	}
	if f.token == "" {
		f.token = os.Getenv("INTERLOCK_UI_TOKEN")
	}
	host, _, err := net.SplitHostPort(f.listen)
	switch {
	case err != nil:
		return usageError("ui: -listen %q: %w; it is host:port, like 127.0.0.1:7070", f.listen, err)
	case f.token == "" && !ui.Local(host):
		return usageError("ui: -listen %s lets other machines in: give a -token of at least 16 characters, or listen on 127.0.0.1", f.listen)
	}
	locks, err := c.fleet()
	if err != nil {
		return err
	}
	pages, err := ui.New(ui.Config{
		Fleet: locks, Source: c.conn.source(), Hosts: append(ui.Hosts(host), strings.FieldsFunc(strings.ToLower(f.hosts), func(r rune) bool { return r == ',' })...), Token: f.token, ReadOnly: f.readOnly,
	})
	if err != nil {
		return usageError("ui: %w", err)
	}
	ln, err := net.Listen("tcp", f.listen)
	if err != nil {
		pages.Close()
		return err
	}
	address := addressOf(host, ln.Addr())
	if c.json {
		err = json.NewEncoder(c.stdout).Encode(map[string]string{"address": address})
	} else {
		_, err = fmt.Fprintln(c.stdout, address)
	}
	if err != nil {
		pages.Close()
		return errors.Join(err, ln.Close())
	}
	if f.open {
		if err := openBrowser(address); err != nil {
			_, _ = fmt.Fprintln(c.stderr, "interlock: no browser was opened:", display.Text(err.Error()))
		}
	}
	return pages.Serve(ctx, ln)
}

// addressOf is the address of a page for a browser of this machine.
func addressOf(host string, listens net.Addr) string {
	_, port, _ := net.SplitHostPort(listens.String())
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port) + "/"
}

// openBrowser opens an address, which has no secret in it.
func openBrowser(address string) error {
	var cmd *exec.Cmd
	switch runtime.GOOS {
	case "darwin":
		cmd = exec.Command("open", address)
	case "windows":
		cmd = exec.Command("rundll32", "url.dll,FileProtocolHandler", address)
	default:
		cmd = exec.Command("xdg-open", address)
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }()
	return nil
}

// source says in a few words which server it is, without a password.
func (c *connection) source() string {
	if c.other() {
		return display.Text(c.elsewhere())
	}
	o, err := c.options()
	if err != nil {
		return ""
	}
	text := strings.Join(o.Addrs, ",")
	switch {
	case c.cluster:
		text = "Cluster " + text
	case c.sentinel != "":
		text = c.sentinel + " by " + text
	}
	if o.DB != 0 {
		text += fmt.Sprintf(" db %d", o.DB)
	}
	if c.prefix != "interlock" {
		text += " prefix " + c.prefix
	}
	return display.Text(text)
}
