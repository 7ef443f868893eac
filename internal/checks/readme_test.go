package checks_test

import (
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The program of the README is examples/hello, and its requests get the answers that the README
// shows. The program serves on a socket of the test in place of its port.
func TestTheReadmesProgramAnswersAsShown(t *testing.T) {
	atRoot(t)
	text := read(t, "README.md")
	_, programs := fenced(text)
	_, example, _ := strings.Cut(read(t, "examples/hello/main.go"), "package main\n")
	if len(programs) != 1 || programs[0] != "package main\n"+example {
		t.Fatalf("README.md has %d programs, want one, the text of examples/hello/main.go without its comment", len(programs))
	}

	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	file, err := socket.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	addr := socket.Addr().String()
	_ = socket.Close() // the program has the file
	defer func() { _ = file.Close() }()

	const port, listen = "localhost:8080", `http.ListenAndServe("localhost:8080", nil)`
	if strings.Count(programs[0], listen) != 1 {
		t.Fatalf("the program does not call %s once", listen)
	}
	dir := t.TempDir()
	program := strings.Replace(programs[0], listen, "serve()", 1)
	write(t, filepath.Join(dir, "main.go"), program)
	write(t, filepath.Join(dir, "serve.go"), `package main

import (
	"net"
	"net/http"
	"os"
)

func serve() error {
	socket, err := net.FileListener(os.NewFile(3, "socket"))
	if err != nil {
		return err
	}
	return http.Serve(socket, nil)
}
`)
	binary := filepath.Join(dir, "hello")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, filepath.Join(dir, "main.go"), filepath.Join(dir, "serve.go"))
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the program does not compile: %v\n%s", err, out)
	}
	hello := exec.CommandContext(t.Context(), binary)
	hello.Stdout, hello.Stderr = t.Output(), t.Output()
	hello.ExtraFiles = []*os.File{file}
	if err := hello.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = hello.Process.Kill()
		_ = hello.Wait()
	}()

	_, session, _ := strings.Cut(text, "```console\n$ ")
	session, _, _ = strings.Cut(session, "```")
	steps := strings.Split(session, "\n$ ")
	if len(steps) != 2 {
		t.Fatalf("README.md shows %d requests, want a payment and its repetition", len(steps))
	}
	for _, step := range steps {
		command, want, _ := strings.Cut(strings.TrimSpace(step), "\n")
		if got := curl(t, strings.ReplaceAll(command, port, addr)); strings.TrimSpace(got) != want {
			t.Errorf("%s\nprints %q, and README.md shows %q", command, got, want)
		}
	}
}

// write makes a file.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// curl sends the request of a command line, which may have -X, -H and one URL, and returns the
// body of the answer.
func curl(t *testing.T, command string) string {
	t.Helper()
	words := shellWords(command)
	if len(words) == 0 || words[0] != "curl" {
		t.Fatalf("%q is not a command of curl", command)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < len(words); i++ {
		switch word := words[i]; {
		case word == "-X" && i+1 < len(words):
			i++
			request.Method = words[i]
		case word == "-H" && i+1 < len(words):
			i++
			name, value, _ := strings.Cut(words[i], ":")
			request.Header.Set(name, strings.TrimSpace(value))
		case strings.HasPrefix(word, "-") || request.URL.Host != "":
			t.Fatalf("%q has %q, and this test knows -X, -H and one URL", command, word)
		default:
			if request.URL, err = request.URL.Parse("http://" + word); err != nil {
				t.Fatal(err)
			}
		}
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// shellWords splits a command line at spaces that are not between single quotes.
func shellWords(command string) (words []string) {
	for i, part := range strings.Split(command, "'") {
		if i%2 == 1 {
			words = append(words, part)
		} else {
			words = append(words, strings.Fields(part)...)
		}
	}
	return words
}

// The README shows an excerpt of the demonstration's output, which the page on a first service
// has whole.
func TestTheReadmeShowsTheOutputOfTheDemonstration(t *testing.T) {
	atRoot(t)
	_, excerpt, _ := strings.Cut(read(t, "README.md"), "\n\n```\n") // a block without a language
	excerpt, _, found := strings.Cut(excerpt, "\n```\n")
	page := read(t, "docs/first-service.md")
	if lines := strings.Count(excerpt, "\n") + 1; !found || lines < 3 {
		t.Fatalf("README.md has an excerpt of %d lines, want three", lines)
	}
	for line := range strings.Lines(excerpt) {
		if !strings.Contains(page, "\n"+strings.TrimSuffix(line, "\n")) {
			t.Errorf("no line of the output in docs/first-service.md begins with %q", line)
		}
	}
}
