package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/cmd/interlock/internal/run"
	"github.com/interlock-go/interlock/core/fleet"
)

// ran is the result of a call of the tool.
type ran struct {
	code        int
	out, stderr string
}

// here carries a command line out in this process.
func here(args ...string) ran {
	var out, stderr bytes.Buffer
	code := execute(args, &out, &stderr)
	return ran{code, out.String(), stderr.String()}
}

// want carries a command line out, which must end with an exit code.
func want(t *testing.T, code int, args ...string) ran {
	t.Helper()
	r := here(args...)
	if r.code != code {
		t.Fatalf("interlock %q: exit code %d, want %d\n%s%s", args, r.code, code, r.out, r.stderr)
	}
	return r
}

func TestACommandLineThatIsWrongSendsNothing(t *testing.T) {
	away := func(args ...string) ran { return here(append([]string{"-addr", "127.0.0.1:1"}, args...)...) }
	for _, args := range [][]string{
		{},
		{"nothing"},
		{"ls", "a", "b"},
		{"ls", "-nothing"},
		{"ls", "-sort", "size"},
		{"ls", "-limit", "-1"},
		{"ls", "-watch", "-json"},
		{"ls", "-watch", "-every", "0s"},
		{"ls", "-rate", "1"},
		{"inspect"},
		{"inspect", ""},
		{"inspect", "a", "b"},
		{"wait"},
		{"wait", "k", "-timeout", "-1s"},
		{"release"},
		{"release", "k", "-token", "x"},
		{"doctor", "k"},
		{"lockers", "k"},
		{"completion"},
		{"completion", "tcsh"},
		{"-cluster", "-sentinel", "m", "ls"},
		{"-cluster", "-db", "1", "ls"},
		{"-addr", "a:1,b:2", "ls"},
		{"-cert", "f", "ls"},
		{"-cacert", "/does/not/exist", "ls"},
		{"-prefix", "a{", "ls"},
		{"-url", "http://x", "ls"},
		{"ui", "extra"},
		{"ui", "-listen", "nonsense"},
		{"ui", "-listen", ":0"}, // for other machines, without a token
		{"ui", "-listen", "0.0.0.0:0"},
		{"ui", "-listen", "[::]:0"},
		{"ui", "-listen", ":0", "-token", "short"},
		{"idem", "show", "p"},
		{"idem", "settle", "p", "k"},
		{"idem", "resolve", "p", "k"},
		{"idem", "resolve", "p", "k", "-not-carried-out", "-status", "200"},
		{"idem", "resolve", "p", "k", "-status", "200", "-body", "/does/not/exist"},
		{"idem", "resolve", "p", "k", "-status", "200", "-header", "nothing"},
	} {
		if r := away(args...); r.code != exitUsage || r.out != "" || !strings.Contains(r.stderr, "interlock") {
			t.Errorf("interlock %q: %+v", args, r)
		}
	}
	if r := here("-postgres", "postgres://127.0.0.1:1/d", "doctor", "-rights-of", "nobody"); r.code != exitUsage || !strings.Contains(r.stderr, "-rights-of is for Redis") {
		t.Errorf("-rights-of on PostgreSQL: %+v; want a wrong command line", r)
	}
	for _, args := range [][]string{{"ls"}, {"inspect", "k"}, {"release", "k", "-token", "1"}, {"doctor"}, {"lockers"}, {"wait", "k"}, {"idem", "show", "p", "k"}} {
		if r := away(args...); r.code != exitFailed || r.out != "" && args[0] != "ls" && args[0] != "lockers" || !strings.Contains(r.stderr, "refused") ||
			strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("interlock %q: %+v", args, r)
		}
	}
	for says, args := range map[string][]string{
		"no command after the key": {"k"},
		"no key":                   {},
		"no command":               {"--", "true"}, // which is the key
		"the key is empty":         {"", "--", "true"},
		"-what":                    {"-what", "k", "--", "true"},
		"500ms, 30s or 5m":         {"-wait", "soon", "k", "--", "true"},
		"at least 1s":              {"k", "-ttl", "10ms", "--", "true"},
		"at most half of the ttl":  {"-ttl", "10s", "-grace", "6s", "k", "--", "true"},
		"quote the command":        {"k", "-shell", "--", "echo", "a"},
	} {
		if r := away(append([]string{"run"}, args...)...); r.code != run.StatusUsage || r.out != "" || !strings.Contains(r.stderr, says) {
			t.Errorf("interlock run %q: %+v, want %q", args, r, says)
		}
	}
}

// The command follows the key, with or without two dashes.
func TestTheCommandLineOfRun(t *testing.T) {
	for _, c := range []struct {
		args         []string
		key, command string
	}{
		{[]string{"run", "k", "--", "c", "-x"}, "k", "c -x"},
		{[]string{"run", "k", "c", "-x"}, "k", "c -x"},
		{[]string{"run", "-wait", "5", "k", "-shell", "c"}, "k", "c"},
		{[]string{"run", "k", "c", "--", "x"}, "k", "c -- x"},
		{[]string{"run", "--", "-k", "-c", "x"}, "-k", "-c x"},
		{[]string{"run", "--", "-k", "--", "-c", "x"}, "-k", "-c x"},
		{[]string{"run", `C:\\new`, "c"}, `C:\new`, "c"},
		{[]string{"run", `a\x1bb`, "c"}, "a\x1bb", "c"},
	} {
		call := &call{conn: fromEnvironment(func(string) string { return "" })}
		if _, err := call.parse(c.args); err != nil {
			t.Errorf("%q is refused: %v", c.args, err)
			continue
		}
		if key, err := call.key(); err != nil || key != c.key || strings.Join(call.after, " ") != c.command {
			t.Errorf("%q: the key %q, the command %q, %v", c.args, key, call.after, err)
		}
	}
	for text, want := range map[string]time.Duration{"5": 5 * time.Second, "0": 0, "1m30s": 90 * time.Second} {
		if d, err := run.ParseDuration(text); err != nil || d != want {
			t.Errorf("%q: %v, %v", text, d, err)
		}
	}
}

func TestTheConnectionIsAsItIsNamed(t *testing.T) {
	options := func(args ...string) *redis.UniversalOptions {
		t.Helper()
		c := &call{conn: fromEnvironment(func(string) string { return "" })}
		if _, err := c.parse(append(args, "ls")); err != nil {
			t.Fatal(err)
		}
		o, err := c.conn.options()
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	for addr, want := range map[string]string{"h": "h:6379", "h:1": "h:1", "::1": "[::1]:6379", "[::1]": "[::1]:6379", "/tmp/redis.sock": "/tmp/redis.sock"} {
		if got := options("-addr", addr).Addrs[0]; got != want {
			t.Errorf("%s is %s, want %s", addr, got, want)
		}
	}
	o := options("-addr", "a,b:1", "-sentinel", "m", "-sentinel-user", "u", "-servername", "redis.internal")
	if !slices.Equal(o.Addrs, []string{"a:26379", "b:1"}) || o.SentinelUsername != "u" || o.TLSConfig.ServerName != "redis.internal" {
		t.Errorf("%+v", o)
	}
	// Each node has the name of its host in its certificate, and not the seed's.
	for _, several := range [][]string{{"-cluster"}, {"-sentinel", "m"}} {
		if o := options(append(several, "-url", "rediss://seed")...); o.TLSConfig == nil || o.TLSConfig.ServerName != "" {
			t.Errorf("%q: every server is asked for one name: %+v", several, o.TLSConfig)
		}
		if o := options(append(several, "-url", "rediss://seed", "-servername", "all")...); o.TLSConfig.ServerName != "all" {
			t.Errorf("%q: -servername is not obeyed", several)
		}
	}
	if o := options("-url", "rediss://h"); o.TLSConfig == nil || o.TLSConfig.ServerName != "h" {
		t.Errorf("a single server: %+v", o.TLSConfig)
	}
	if r := want(t, 0, "version"); !strings.HasPrefix(r.out, "interlock v") || !strings.Contains(r.out, runtime.Version()) {
		t.Errorf("%+v", r)
	}
}

// A server that takes connections and never answers: nothing is said of the lock, and that
// soon.
func TestAServerThatNeverAnswers(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	defer func(a, b time.Duration) { answersWithin, lastLook = a, b }(answersWithin, lastLook)
	answersWithin, lastLook = 200*time.Millisecond, 200*time.Millisecond
	for says, args := range map[string][]string{
		"no answer from the server in time":                      {"inspect", "k"},
		"not known whether the grant was released":               {"release", "k", "-token", "1"},
		"it is not known whether k is held":                      {"wait", "-timeout", "100ms", "k"},
		"no answer from the server in time, which is 200ms (":    {"doctor"},
		"no answer from the server in time, which is 200ms (loc": {"idem", "show", "p", "k"},
	} {
		r := here(append([]string{"-addr", silent.Addr().String()}, args...)...)
		if r.code != exitFailed || r.out != "" || !strings.Contains(r.stderr, says) || strings.Count(r.stderr, "interlock:") != 1 {
			t.Errorf("interlock %q: %+v, want %q", args, r, says)
		}
	}
}

// A server may carry out the request of a command that a signal has stopped.
func TestACommandThatIsStoppedSaysThatItsOutcomeIsNotKnown(t *testing.T) {
	for says, args := range map[string][]string{
		"stopped by a signal; it is not known whether the grant was released":  {"release", "k", "-token", "1"},
		"stopped by a signal; it is not known whether the lock was freed":      {"release", "k", "-kept"},
		"stopped by a signal; it is not known whether the record was resolved": {"idem", "resolve", "p", "k", "-not-carried-out"},
		"stopped by a signal": {"inspect", "k"},
	} {
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			if conn, err := silent.Accept(); err == nil {
				defer conn.Close()
				_, _ = conn.Read(make([]byte, 1)) // the command is under way
				stop()
			}
		}()
		var stderr bytes.Buffer
		c := &call{stdout: io.Discard, stderr: &stderr, conn: fromEnvironment(func(string) string { return "" })}
		if _, err := c.parse(append([]string{"-addr", silent.Addr().String()}, args...)); err != nil {
			t.Fatal(err)
		}
		if code := c.exit(c.carryOut(ctx)); code != exitStopped || !strings.Contains(stderr.String(), says+"\n") {
			t.Errorf("interlock %q: exit code %d, %q; want %d, %q", args, code, stderr.String(), exitStopped, says)
		}
		_ = silent.Close()
	}
}

func TestAnErrorSaysWhatToDo(t *testing.T) {
	for text, want := range map[string]string{
		"interlock: lock store unavailable: WRONGPASS invalid": "wrong password, or user: set INTERLOCK_PASSWORD, and INTERLOCK_USER or -user",
		"interlock: lock store not ready: MOVED 1 a:1":         "lock store not ready: MOVED 1 a:1 (a node of a Cluster wants the flag -cluster)",
		"k: interlock: lock store unavailable: i/o timeout":    "k: lock store unavailable: i/o timeout",
	} {
		if got := inWords(errors.New(text)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestATerminalGetsShortLines(t *testing.T) {
	long := strings.Repeat("k", 200)
	lock := fleet.Lock{Key: long, Holders: []fleet.Holder{{Locker: fleet.Locker{Listed: true, Host: long}}}}
	o := &listing{}
	if row := o.rowOf(&lock, true); utf8.RuneCountInString(row[0]) != keyWidth || utf8.RuneCountInString(row[1]) != holderWidth || !strings.HasSuffix(row[0], "…") {
		t.Errorf("%q", row)
	}
	if row := o.rowOf(&lock, false); row[0] != long {
		t.Errorf("a pipe: %q", row)
	}
	o.wide = true
	if row := o.rowOf(&lock, true); row[0] != long {
		t.Errorf("-wide: %q", row)
	}
}

func TestHelpDescribesEachCommand(t *testing.T) {
	r := want(t, 0, "-h")
	if again := want(t, 0, "help"); again != r {
		t.Errorf("help differs from -h")
	}
	for _, cmd := range commands {
		if !strings.Contains(r.out, cmd.name) || !strings.Contains(r.out, cmd.short) {
			t.Errorf("the list of commands lacks %s", cmd.name)
		}
		one := want(t, 0, cmd.name, "-h")
		if one.out != want(t, 0, "help", cmd.name).out || !strings.Contains(one.out, "usage: interlock "+cmd.name) ||
			!strings.Contains(one.out, "examples:") || len(cmd.examples) == 0 {
			t.Errorf("%s:\n%s", cmd.name, one.out)
		}
		// The examples are command lines that are read.
		for _, e := range cmd.examples {
			line, _, _ := strings.Cut(e[0], " |")
			line, _, _ = strings.Cut(line, " >")
			words, err := exec.Command("sh", "-c", `for w in "$@"; do :; done; printf '%s\n' `+line).Output()
			if err != nil {
				t.Fatal(err)
			}
			c := &call{conn: fromEnvironment(func(string) string { return "" })}
			if parsed, err := c.parse(strings.Split(strings.TrimSuffix(string(words), "\n"), "\n")); err != nil || parsed != cmd {
				t.Errorf("%s: %v", e[0], err)
			}
		}
	}
}

func TestCompletionIsOfTheCommandsAndTheirFlags(t *testing.T) {
	complete := func(words ...string) string {
		t.Helper()
		script := want(t, 0, "completion", "bash").out + fmt.Sprintf("\nCOMP_WORDS=(interlock %s); COMP_CWORD=%d; _interlock; echo \"${COMPREPLY[*]}\"",
			strings.Join(words, " "), len(words))
		out, err := exec.Command("bash", "-c", script).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	for line, want := range map[string]string{
		"ins": "inspect", "idem re": "resolve", "ls -wa": "-watch", "-addr x rel": "release", "release -tok": "-token", "completion f": "fish",
		"ls -sentinel-": "-sentinel-user",
	} {
		if got := complete(strings.Fields(line)...); got != want {
			t.Errorf("%q is completed to %q; want %q", line, got, want)
		}
	}
	for _, shell := range []string{"zsh", "fish"} {
		r := want(t, 0, "completion", shell)
		for _, cmd := range commands {
			if !strings.Contains(r.out, cmd.name) {
				t.Errorf("%s: no %s", shell, cmd.name)
			}
		}
		if path, err := exec.LookPath(shell); err == nil {
			cmd := exec.Command(path, "-n")
			cmd.Stdin = strings.NewReader(r.out)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", shell, err, out)
			}
		}
	}
}

// A header without rows says that no lock is held.
func TestAListThatFailsAtOnceHasNoHeader(t *testing.T) {
	if r := want(t, exitFailed, "-addr", "127.0.0.1:1", "ls"); r.out != "" {
		t.Errorf("it printed %q; want nothing", r.out)
	}
}

// The error of a Cluster names a single address of several that were asked.
func TestAnErrorNamesTheServersThatWereAsked(t *testing.T) {
	if r := want(t, exitFailed, "-cluster", "-addr", "127.0.0.1:1,127.0.0.1:2", "doctor"); !strings.Contains(r.stderr, "asked: Cluster 127.0.0.1:1,127.0.0.1:2") {
		t.Errorf("%q; want the topology", r.stderr)
	}
}

// An error quotes the key already.
func TestABackslashOfAKeyIsNotDoubledTwice(t *testing.T) {
	if r := want(t, 69, "-addr", "127.0.0.1:1", "run", "-wait", "0", `C:\\new`, "true"); !strings.Contains(r.stderr, `"C:\\new"`) {
		t.Errorf(`%q; want "C:\\new"`, r.stderr)
	}
}

func TestTheEnvironmentNamesTheTopologyAndTLS(t *testing.T) {
	env := map[string]string{
		"INTERLOCK_SENTINEL": "main", "INTERLOCK_SERVERNAME": "redis.test", "INTERLOCK_CACERT": "ca.pem",
		"INTERLOCK_CERT": "c.pem", "INTERLOCK_CERT_KEY": "k.pem", "INTERLOCK_CLUSTER": "0", "INTERLOCK_TLS": "yes",
	}
	c := fromEnvironment(func(name string) string { return env[name] })
	if c.sentinel != "main" || c.serverName != "redis.test" || c.caCert != "ca.pem" || c.cert != "c.pem" || c.key != "k.pem" || c.cluster || !c.tls {
		t.Errorf("the environment sets %+v; want a Sentinel with TLS, and no Cluster", c)
	}
}

// INTERLOCK_ADDR in the profile of a user made each call with -postgres a wrong command line.
func TestAServerOfAFlagReplacesTheServersOfTheEnvironment(t *testing.T) {
	all := map[string]string{
		"INTERLOCK_ADDR": "env:1", "INTERLOCK_URL": "redis://env", "INTERLOCK_SENTINEL": "env", "INTERLOCK_CLUSTER": "",
		"INTERLOCK_POSTGRES": "env", "INTERLOCK_ETCD": "env", "INTERLOCK_ZOOKEEPER": "env", "INTERLOCK_NATS": "env",
	}
	for _, c := range []struct {
		args []string
		want connection
	}{
		{[]string{"-postgres", "flag", "ls"}, connection{postgres: "flag"}},
		{[]string{"ls", "-etcd", "flag"}, connection{etcd: "flag"}},
		{[]string{"-zookeeper", "flag", "ls", "k", "-json"}, connection{zookeeper: "flag"}},
		{[]string{"-nats", "flag", "ls"}, connection{nats: "flag"}},
		{[]string{"-addr", "flag", "ls"}, connection{addr: "flag", url: "redis://env", sentinel: "env"}},
		{[]string{"-url", "redis://flag", "ls"}, connection{url: "redis://flag", sentinel: "env"}},
		{[]string{"-cluster", "ls", "-addr", "flag"}, connection{addr: "flag", url: "redis://env", cluster: true}},
	} {
		call := &call{conn: fromEnvironment(func(name string) string { return all[name] })}
		if _, err := call.parse(c.args); err != nil {
			t.Fatal(err)
		}
		got := connection{
			url: call.conn.url, addr: call.conn.addr, sentinel: call.conn.sentinel, cluster: call.conn.cluster,
			postgres: call.conn.postgres, etcd: call.conn.etcd, zookeeper: call.conn.zookeeper, nats: call.conn.nats,
		}
		if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", c.want) {
			t.Errorf("%q: %+v; want %+v", c.args, got, c.want)
		}
		if err := call.conn.choose(); err != nil {
			t.Errorf("%q: the store cannot be chosen: %v", c.args, err)
		}
	}
	call := &call{conn: fromEnvironment(func(name string) string { return all[name] })}
	if _, err := call.parse([]string{"ls"}); err != nil || call.conn.choose() == nil {
		t.Errorf("%v; want that an environment with five servers is refused", err)
	}
}

// slowly is the input of an operator who needs a minute.
type slowly struct{ io.Reader }

func (s slowly) Read(p []byte) (int, error) {
	time.Sleep(time.Minute)
	return s.Reader.Read(p)
}

// The time of an operator who types an answer was taken for the silence of the server.
func TestTheBodyOfAResolutionMayTakeLongToCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &call{stdout: io.Discard, stderr: io.Discard, conn: fromEnvironment(func(string) string { return "" })}
		if _, err := c.parse([]string{"idem", "resolve", "p", "k", "-status", "200", "-body", "-"}); err != nil {
			t.Fatal(err)
		}
		c.action = func(ctx context.Context, c *call) error {
			o := &settling{status: 200, protocol: "http", body: "-", stdin: slowly{strings.NewReader("paid")}}
			found, err := o.resolution(c.patience)
			if err != nil {
				return err
			}
			if _, answer, _ := found.Answer(); string(answer.Body) != "paid" {
				return fmt.Errorf("the body is %q; want paid", answer.Body)
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			<-ctx.Done() // a server that does not answer still ends the command
			return nil
		}
		began := time.Now()
		if err := c.carryOut(t.Context()); err != nil || time.Since(began) < 2*time.Minute+answersWithin {
			t.Errorf("%v after %v; want no error, and %v after the body had come", err, time.Since(began), answersWithin)
		}
	})
}
