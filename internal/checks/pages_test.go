package checks_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A reader decides within a screen or two; longer texts have a page under docs.
func TestTheReadmeIsShort(t *testing.T) {
	atRoot(t)
	const most, mostWords, mostInList = 130, 900, 8
	text := read(t, "README.md")
	if lines, words := strings.Count(text, "\n"), len(strings.Fields(text)); lines > most || words > mostWords {
		t.Errorf("README.md has %d lines and %d words, at most %d and %d are allowed: put details into a page of docs, and link to it", lines, words, most, mostWords)
	}
	_, list, found := strings.Cut(text, "## Read on")
	list, _, _ = strings.Cut(strings.TrimSpace(list), "\n\n")
	if links := strings.Count(list, "]("); !found || links == 0 || links > mostInList {
		t.Errorf("the list of README.md has %d links, want 1 to %d", links, mostInList)
	}
}

// A reader opens three pages at most for a question, and reads each to its end. The rest
// belongs on another page, into a comment of the code, or into the log of commits.
func TestThePagesAreFewAndShort(t *testing.T) {
	atRoot(t)
	const mostPages, mostWords, mostOfAll = 30, 4000, 50_000
	pages, all := 0, 0
	for _, page := range documents(t) {
		if page != "README.md" && !strings.HasPrefix(page, "docs/") {
			continue
		}
		words := len(strings.Fields(read(t, page)))
		if all += words; page != "README.md" {
			pages++
		}
		t.Logf("%5d %s", words, page)
		if words > mostWords {
			t.Errorf("%s has %d words, at most %d are allowed: say each fact on one page only, and leave out what a reader of this page does not need", page, words, mostWords)
		}
	}
	t.Logf("%5d words on %d pages and in the README", all, pages)
	if pages > mostPages || all > mostOfAll {
		t.Errorf("docs has %d pages, at most %d are allowed; with the README they have %d words, at most %d", pages, mostPages, all, mostOfAll)
	}
}

// The goals of readers, and the sections that they read for them, beginning with the section of the
// README that leads to the others. A section has all below its heading, up to the next heading of
// its rank.
var journeys = map[string][]string{
	"a first lock": {
		"README.md#a-whole-program", "docs/first-service.md#a-first-service",
	},
	"payments": {
		"README.md#a-whole-program", "docs/idempotency.md#what-at-most-once-means", "docs/idempotency.md#effects-in-postgresql",
		"docs/idempotency.md#what-a-client-sees", "docs/idempotency.md#the-order-of-middleware", "docs/idempotency-clients.md#a-client",
	},
	"kubernetes":          {"README.md#read-on", "docs/kubernetes.md#on-kubernetes", "docs/operations.md#shutting-down"},
	"moving from redsync": {"README.md#read-on", "docs/moving.md#moving-from-another-library", "docs/use.md#start-and-end"},
	"on call":             {"README.md#read-on", "docs/runbook.md#runbook", "docs/tool.md#release"},
	"this or SQL": {
		"README.md#comparison-with-other-libraries", "docs/peers.md#when-something-else-is-better",
		"docs/guarantees.md#by-topology", "docs/guarantees.md#never-promised",
	},
}

func TestThreePagesAnswerAReader(t *testing.T) {
	atRoot(t)
	const mostPages, mostWords = 3, 2500
	for reader, sections := range journeys {
		pages, words := map[string]bool{}, 0
		for _, target := range sections {
			page, anchor, _ := strings.Cut(target, "#")
			n := len(strings.Fields(section(read(t, page), anchor)))
			if n == 0 {
				t.Errorf("%s: %s has no section %q", reader, page, anchor)
			}
			pages[page] = true
			words += n
		}
		t.Logf("%-20s %d pages, %d words", reader, len(pages), words)
		if len(pages) > mostPages || words > mostWords {
			t.Errorf("%s: a reader opens %d pages, at most %d are allowed, and reads %d words, at most %d", reader, len(pages), mostPages, words, mostWords)
		}
	}
}

// section returns the text below a heading, and the heading; empty if there is none.
func section(text, anchor string) string {
	var lines strings.Builder
	rank, fence := 0, false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			fence = !fence
		}
		if m := heading.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil && !fence {
			at := strings.IndexByte(line, ' ')
			if rank > 0 && at <= rank {
				break
			}
			if rank == 0 && slices.Contains(anchors(line), anchor) {
				rank = at
			}
		}
		if rank > 0 {
			lines.WriteString(line)
		}
	}
	return lines.String()
}

func TestASectionEndsAtTheNextOfItsRank(t *testing.T) {
	const text = "# A page\n\none two\n\n## First\n\nthree\n\n```sh\n# four\n```\n\n### Below\n\nfive\n\n## Second\n\nsix\n"
	for anchor, want := range map[string]int{"a-page": 18, "first": 10, "below": 3, "second": 3, "third": 0} {
		if got := len(strings.Fields(section(text, anchor))); got != want {
			t.Errorf("%s has %d words, want %d", anchor, got, want)
		}
	}
}

// The sentences about the figures, on the front page and below the table, and the cells that they
// are about: Interlock's divided by another library's, or by the least and the greatest of them.
func TestTheSentencesAgreeWithTheFigures(t *testing.T) {
	atRoot(t)
	table := figures(read(t, "docs/costs.md"))
	for _, c := range []struct{ page, sentence, row, way, other string }{
		{"README.md", `a lone caller gets (%) to (%) times as many locks`, "1 goroutine", "a network", ""},
		{"README.md", `and 256 goroutines, a key each, (%) to (%) times`, "256 goroutines", "a network", ""},
		{"README.md", `On loopback a lone caller gets (%) of the locks of redsync`, "1 goroutine", "loopback", "redsync"},
		{"docs/costs.md", `has (%) of the pairs of redsync on loopback`, "1 goroutine", "loopback", "redsync"},
		{"docs/costs.md", `over a network and (%) of them on loopback`, "16 goroutines", "loopback", "rueidislock"},
		{"docs/costs.md", `and 64 have (%) and`, "64 goroutines", "a network", "rueidislock"},
		{"docs/costs.md", `and 64 have [0-9.]+ and (%)`, "64 goroutines", "loopback", "rueidislock"},
		{"docs/costs.md", `the hand-over takes (%) of the time of rueidislock`, "release in one process", "a network", "rueidislock"},
	} {
		m := regexp.MustCompile(strings.ReplaceAll(c.sentence, "%", `[0-9]+\.[0-9]+`)).FindStringSubmatch(read(t, c.page))
		if m == nil {
			t.Errorf("%s has no sentence like %q", c.page, c.sentence)
			continue
		}
		var want []float64
		for other, cell := range table[c.row+", "+c.way] {
			if other != "interlock" && (other == c.other || c.other == "") {
				want = append(want, table[c.row+", "+c.way]["interlock"]/cell)
			}
		}
		if len(want) == 0 {
			t.Errorf("the table of docs/costs.md has no figures of %q %s", c.row, c.way)
			continue
		}
		got, fitting := m[1], strconv.FormatFloat(slices.Min(want), 'f', decimals(m[1]), 64)
		if len(m) > 2 {
			got, fitting = got+" to "+m[2], fitting+" to "+strconv.FormatFloat(slices.Max(want), 'f', decimals(m[2]), 64)
		}
		if got != fitting {
			t.Errorf("%s says %q, and the table of docs/costs.md gives %s", c.page, m[0], fitting)
		}
	}
}

// figures reads the table of docs/costs.md: by the first words of a workload and its way, the
// figure of each library. Durations are in seconds.
func figures(page string) map[string]map[string]float64 {
	found := map[string]map[string]float64{}
	units := map[string]float64{"": 1, "k": 1e3, "µs": 1e-6, "ms": 1e-3, "s": 1}
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 7 {
			continue
		}
		row := map[string]float64{}
		for i, library := range []string{"interlock", "redsync", "redislock", "rueidislock"} {
			number, unit, _ := strings.Cut(strings.TrimSpace(cells[3+i]), " ")
			if f, err := strconv.ParseFloat(number, 64); err == nil {
				row[library] = f * units[unit]
			}
		}
		workload, _, _ := strings.Cut(strings.TrimSpace(cells[0]), ",")
		if workload, _, _ = strings.Cut(workload, " to grant"); len(row) == 4 {
			found[workload+", "+strings.TrimSpace(cells[1])] = row
		}
	}
	return found
}

// decimals counts the digits after the point of a number.
func decimals(number string) int {
	_, digits, _ := strings.Cut(number, ".")
	return len(digits)
}

// The figures of docs/costs.md are of the present code, or say that they are not.
func TestTheFiguresSayIfTheirCodeIsOld(t *testing.T) {
	atRoot(t)
	const most = 40 // commits on the two packages that decide most figures
	_, part, _ := strings.Cut(read(t, "docs/costs.md"), "<!-- figures: begin")
	part, _, found := strings.Cut(part, "<!-- figures: end -->")
	measured := regexp.MustCompile(`Measured on ([0-9-]+) at commit ([0-9a-f]{7,40})\b`).FindStringSubmatch(part)
	if !found || measured == nil {
		t.Fatal("docs/costs.md does not say when and at which commit its figures were measured")
	}
	date, commit := measured[1], measured[2]
	if !strings.Contains(read(t, "README.md"), "[figures of "+date+"]") {
		t.Errorf("README.md does not name the date of the figures, %s", date)
	}
	out, err := exec.CommandContext(t.Context(), "git", "rev-list", "--count", commit+"..HEAD", "--",
		"core/internal/lock", "core/internal/rediswire").Output()
	if err != nil {
		t.Logf("git does not say how old commit %s is, as in a shallow clone: %v", commit, err)
		return
	}
	since, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	if since > most && !strings.Contains(part, "older than the present code") {
		t.Errorf("the figures of docs/costs.md are %d commits older than the code, at most %d are allowed: run make bench, or write behind the commit that it is older than the present code", since, most)
	}
}

// A page serves readers that it names, and a reader with a question finds the page.
func TestEachPageSaysWhoItIsForAndIsInTheIndex(t *testing.T) {
	atRoot(t)
	pages := map[string]string{}
	for _, page := range documents(t) {
		if strings.HasPrefix(page, "docs/") {
			pages[page] = read(t, page)
		}
	}
	if len(pages) < 15 {
		t.Errorf("only %d pages found in docs: the test has gone blind", len(pages))
	}
	for _, complaint := range unlisted(pages) {
		t.Error(complaint)
	}
}

const index = "docs/README.md"

// unlisted complains about pages that the index lacks, and about pages that do not say for
// whom they are.
func unlisted(pages map[string]string) (complaints []string) {
	listed := map[string]bool{}
	for _, target := range targets(pages[index]) {
		file, _, _ := strings.Cut(target, "#")
		listed[path.Join("docs", file)] = true
	}
	for page, text := range pages {
		if page == index {
			continue
		}
		paragraphs := strings.SplitN(text, "\n\n", 3)
		if len(paragraphs) < 3 || !strings.HasPrefix(paragraphs[0], "# ") || !strings.HasPrefix(paragraphs[1], "**For** ") {
			complaints = append(complaints, fmt.Sprintf(
				"%s does not say who it is for: begin it with a title, an empty line, and a line such as\n\t**For** operators who run a command on one host at a time.", page))
		}
		if !listed[page] {
			from := strings.TrimPrefix(page, "docs/")
			complaints = append(complaints, fmt.Sprintf(
				"%s is not in %s: add a line to the table of the task that it serves there, such as\n\t| the question of a reader | [the section](%s#section) |", page, index, from))
		}
	}
	return complaints
}

// A check that never complains would look the same as a tidy index.
func TestPagesThatLackSomethingAreFound(t *testing.T) {
	const good = "# A page\n\n**For** operators.\n\nText.\n"
	for name, c := range map[string]struct {
		page, index, want string
	}{
		"good":                {good, "| a question | [an answer](a.md#there) |", ""},
		"in no line":          {good, "| a question | [an answer](b.md) |", "is not in docs/README.md"},
		"for no one":          {"# A page\n\nText.\n\nMore.\n", "[an answer](a.md)", "does not say who it is for"},
		"only in a code span": {good, "`[an answer](a.md)`", "is not in docs/README.md"},
	} {
		t.Run(name, func(t *testing.T) {
			complaints := unlisted(map[string]string{path.Join("docs", "a.md"): c.page, index: c.index})
			got := strings.Join(complaints, "\n")
			if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
				t.Errorf("complaints %q, want %q", got, c.want)
			}
		})
	}
}

// TestLinksLeadSomewhere follows each link of a document to a file of the repository and to
// a heading of it, and each page of docs that other files name.
func TestLinksLeadSomewhere(t *testing.T) {
	atRoot(t)
	links := 0
	for _, from := range documents(t) {
		for _, target := range targets(read(t, from)) {
			target = strings.TrimPrefix(target, repository)
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			links++
			base := path.Dir(from)
			if strings.HasPrefix(target, "/") {
				base, target = ".", target[1:]
			}
			if complaint := lookup(base, from, target); complaint != "" {
				t.Errorf("%s: the link %q leads nowhere: %s", from, target, complaint)
			}
		}
	}
	if links < 150 {
		t.Errorf("only %d links found in the documents: the test has gone blind", links)
	}
	names := 0
	for _, from := range files(t, ".go", ".yaml", ".yml", ".json", ".sh", ".txt") {
		for _, m := range pageName.FindAllStringSubmatch(read(t, from), -1) {
			if strings.Contains(m[1], "://") && !strings.HasSuffix(m[1], repository) {
				continue // of another repository
			}
			names++
			if complaint := lookup(".", from, m[2]); complaint != "" {
				t.Errorf("%s names %s: %s", from, m[2], complaint)
			}
		}
	}
	if names < 50 {
		t.Errorf("only %d names of pages found: the test has gone blind", names)
	}
}

// repository is where a document of this repository is for a reader on another site.
const repository = "https://github.com/interlock-go/interlock/blob/main/"

// pageName is a page of docs in a text that is no Markdown, with its prefix.
var pageName = regexp.MustCompile(`([^\s"'` + "`" + `(]*?)\b(docs/[a-z][\w/-]*\.md(?:#[\w-]+)?)`)

// lookup says why a target leads nowhere; from is the document itself, for "#heading".
func lookup(base, from, target string) string {
	file, anchor, _ := strings.Cut(target, "#")
	if file == "" {
		file = from
	} else {
		file = path.Join(base, file)
	}
	if _, err := os.Stat(file); err != nil {
		return "there is no " + file
	}
	if anchor == "" || path.Ext(file) != ".md" {
		return ""
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	if known := anchors(string(text)); !slices.Contains(known, anchor) {
		return fmt.Sprintf("%s has no heading %q; it has %q", file, anchor, known)
	}
	return ""
}

// A check that follows no link would look the same as links that are all right.
func TestLinksAndAnchorsAreThoseOfGitHub(t *testing.T) {
	text := "# A `title`, and more\n\n## Twice\n\n## Twice\n\n```sh\n# no heading [no](link)\n```\n\n" +
		"[![badge](a.svg)](b.yml) and [two](c.md#twice-1), `[three](d.md)`, [`four`](<e f.md>)\n\n| <a id=\"row\"></a>row |\n\n[five]: g.md\n"
	if got, want := anchors(text), []string{"a-title-and-more", "twice", "twice-1", "row"}; !slices.Equal(got, want) {
		t.Errorf("anchors %q, want %q", got, want)
	}
	if got, want := targets(text), []string{"a.svg", "b.yml", "c.md#twice-1", "e f.md", "g.md"}; !slices.Equal(got, want) {
		t.Errorf("targets %q, want %q", got, want)
	}
	t.Chdir(t.TempDir())
	if err := os.WriteFile("a.md", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for target, good := range map[string]bool{"a.md": true, "a.md#twice-1": true, "#twice": true, "a.md#thrice": false, "b.md": false} {
		if got := lookup(".", "a.md", target); (got == "") != good {
			t.Errorf("%s: %q", target, got)
		}
	}
}

var (
	codeSpan  = regexp.MustCompile("`[^`\n]*`")
	linkEnd   = regexp.MustCompile(`\]\((?:<([^>\n]+)>|([^)\s]+))\)`)
	reference = regexp.MustCompile(`^\[[^\]]+\]: +(\S+)`)
	heading   = regexp.MustCompile(`^#{1,6} +(.*)`)
	anchorSet = regexp.MustCompile(`<a id="([^"]+)"></a>`)
	linkText  = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	dropped   = regexp.MustCompile(`[^\p{L}\p{N}\p{M} _-]`)
)

// targets returns where the links of a Markdown text lead.
func targets(text string) (found []string) {
	for _, line := range prose(text) {
		line = codeSpan.ReplaceAllString(line, "")
		for _, m := range linkEnd.FindAllStringSubmatch(line, -1) {
			found = append(found, m[1]+m[2])
		}
		if m := reference.FindStringSubmatch(line); m != nil {
			found = append(found, m[1])
		}
	}
	return found
}

// anchors returns the anchors that GitHub gives to the headings of a Markdown text, and the anchors
// in the text.
func anchors(text string) (found []string) {
	times := map[string]int{}
	for _, line := range prose(text) {
		if set := anchorSet.FindStringSubmatch(line); set != nil {
			found = append(found, set[1])
		}
		m := heading.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		anchor := linkText.ReplaceAllString(m[1], "$1")
		anchor = strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(strings.TrimSpace(anchor)), ""), " ", "-")
		n := times[anchor]
		times[anchor]++
		if n > 0 {
			anchor = fmt.Sprintf("%s-%d", anchor, n)
		}
		found = append(found, anchor)
	}
	return found
}

// prose returns the lines of a Markdown text outside of its code blocks.
func prose(text string) (lines []string) {
	inside := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inside = !inside
		} else if !inside {
			lines = append(lines, line)
		}
	}
	return lines
}

// documents returns the paths of all Markdown files of the repository.
func documents(t *testing.T) []string { return files(t, ".md") }

// files returns the paths of the repository's files with these extensions.
func files(t *testing.T, extensions ...string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != "." {
			return fs.SkipDir
		}
		if !d.IsDir() && slices.Contains(extensions, filepath.Ext(path)) {
			found = append(found, filepath.ToSlash(path))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
