package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// madeUp is a report of all cells in two rounds.
func madeUp() *report {
	r := newReport("Rounds: made up.")
	for i, row := range rows {
		for j, library := range row.libraries {
			for round := range 2 {
				res := of(0)
				res.Shares = nil
				for g := range row.workers {
					res.Shares = append(res.Shares, int64(100+10*i+j+g%7+round))
				}
				for n := range 100 {
					res.Waits.add(time.Duration(n+1) * time.Duration(j+1) * 20 * time.Microsecond)
				}
				res.ByProcess = []int64{3, 4}
				res.CPU, res.RedisCPU, res.Commands = time.Duration(j+1)*time.Millisecond, time.Millisecond, 1000
				res.Held, res.Heap, res.Stack = row.keys, int64(row.keys*(200+100*j)), int64(row.keys*50)
				r.add(row.name, library, res)
			}
		}
	}
	return r
}

// draw draws a report's pictures and returns their texts by file, and the messages.
func draw(t *testing.T, r *report) (map[string]string, string) {
	t.Helper()
	dir := t.TempDir()
	var said bytes.Buffer
	if err := r.drawAll(dir, &said); err != nil {
		t.Fatal(err)
	}
	drawn := map[string]string{}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for decoder := xml.NewDecoder(bytes.NewReader(text)); ; {
			if _, err := decoder.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", f, err)
			}
		}
		if strings.Contains(string(text), "NaN") || strings.Contains(string(text), "Inf") {
			t.Errorf("%s has a number that is none:\n%s", f, text)
		}
		drawn[filepath.Base(f)] = string(text)
	}
	return drawn, said.String()
}

// The texts of each picture: the things that it compares, and the units.
var written = map[string][]string{
	"bench-latency.svg":    {interlock, redsync, redislock, rueidislock, "µs from the call to the lock", "idle cores", "busy cores"},
	"bench-throughput.svg": {interlock, redsync, redislock, rueidislock, ">1<", ">16<", ">256<", "a second", "goroutines"},
	"bench-fairness.svg":   {interlock, redsync, redislock, rueidislock, channel, "equal shares", "% of all grants", "starved"},
	"bench-hand-over.svg":  {interlock, redsync, redislock, rueidislock, ">1 ms<", ">50 %<", "one waiter", "eight keys"},
	"bench-held.svg":       {interlock, redsync, redislock, rueidislock, "bytes a lock", "% of a core", "CPU of Redis"},
}

func TestEveryPictureNamesWhatItCompares(t *testing.T) {
	drawn, said := draw(t, madeUp())
	if len(drawn) != len(written) || said != "" {
		t.Errorf("%d pictures, want %d: %s", len(drawn), len(written), said)
	}
	for file, texts := range written {
		for _, want := range texts {
			if !strings.Contains(drawn[file], want) {
				t.Errorf("%s lacks %q", file, want)
			}
		}
	}
	again, _ := draw(t, madeUp())
	for file := range drawn {
		if drawn[file] != again[file] {
			t.Errorf("%s is not the same twice", file)
		}
	}
}

func TestACellThatWasNotMeasuredIsNotDrawn(t *testing.T) {
	r := madeUp()
	for _, row := range r.cells {
		delete(row, redsync) // -only
		row[rueidislock] = &outcome{failed: 2}
	}
	delete(r.cells, "free-1-busy")
	drawn, said := draw(t, r)
	if len(drawn) != len(written) || said != "" {
		t.Errorf("%d pictures, want %d: %s", len(drawn), len(written), said)
	}
	for file, text := range drawn {
		if strings.Contains(text, redsync) || strings.Contains(text, rueidislock) || !strings.Contains(text, redislock) {
			t.Errorf("%s has redsync, which was not run, or rueidislock, which failed, or not redislock, which was", file)
		}
	}
	delete(r.cells, "held-10000")
	drawn, said = draw(t, r)
	if _, ok := drawn["bench-held.svg"]; ok || !strings.Contains(said, "no figures for bench-held.svg") {
		t.Errorf("a picture of nothing is drawn, or that is not said: %q", said)
	}
	if drawn, _ := draw(t, newReport("")); len(drawn) != 0 {
		t.Errorf("pictures of an empty report: %d", len(drawn))
	}
}

// If all goroutines of a library starved, there is no share to draw. The cell was run all the
// same.
func TestALibraryThatGrantedNothingIsSaidToStarve(t *testing.T) {
	r := madeUp()
	res := of(0)
	res.Shares = make([]int64, 1000)
	r.cells["one-key-1000"][redsync] = &outcome{rounds: []*result{res}}
	drawn, _ := draw(t, r)
	if !strings.Contains(drawn["bench-fairness.svg"], "0/s, 1000 starved") {
		t.Error("it is not")
	}
}

func TestSharesAreSplitByLuck(t *testing.T) {
	equal := slices.Repeat([]int64{7}, 1000)
	for i, got := range split(equal) {
		if want := []float64{1, 9, 40, 50}[i]; got < want-0.001 || got > want+0.001 {
			t.Errorf("equal shares: %v %% in part %d, want %v", got, i, want)
		}
	}
	one := make([]int64, 1000)
	one[500] = 3
	if got := split(one); got[0] != 100 || got[1]+got[2]+got[3] != 0 {
		t.Errorf("one has all: %v", got)
	}
	if got := split(make([]int64, 10)); got != nil {
		t.Errorf("none has any: %v", got)
	}
	if got := split([]int64{5, 5}); got[0]+got[1]+got[2]+got[3] != 100 {
		t.Errorf("of two: %v", got)
	}
}

func TestAReportIsTheSameFromItsFile(t *testing.T) {
	r := madeUp()
	r.add("zipf", redsync, nil)
	r.cells["zipf"][redsync].rounds[0].Error = "a \"quoted\" error"
	file := filepath.Join(t.TempDir(), "results.json")
	if err := r.save(file); err != nil {
		t.Fatal(err)
	}
	var out, log bytes.Buffer
	dir := t.TempDir()
	if code := run([]string{"-from", file, "-pictures", dir, "-page", ""}, &out, &log); code != 0 {
		t.Fatalf("-from ends with %d: %s", code, log.String())
	}
	if want := r.markdown(); out.String() != want {
		t.Errorf("the report is\n%s\nwant\n%s", out.String(), want)
	}
	drawn, _ := draw(t, r)
	for name, want := range drawn {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s differs, error %v", name, err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for what, bad := range map[string]string{
		"no cell none/interlock": strings.Replace(string(text), `"Row":"free-1"`, `"Row":"none"`, 1),
		"no bucket 5000":         strings.Replace(string(text), `"Waits":[`, `"Waits":[5000,1,`, 1),
		"pairs":                  strings.Replace(string(text), `"Waits":[`, `"Waits":[7,`, 1),
		"unexpected end":         string(text[:len(text)/2]),
	} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadReport(file); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("a bad file is read, or the error does not say %q: %v", what, err)
		}
	}
	if _, err := loadReport(file + ".none"); err == nil || !strings.Contains(err.Error(), "a run of all cells writes it") {
		t.Errorf("without a file: %v", err)
	}
}

// A run with -only, or a first look, is no replacement for the pictures of a whole run.
func TestAPartOfARunReplacesNothingUnlessAsked(t *testing.T) {
	var said bytes.Buffer
	if o, ok := parse(nil, &said); !ok || o.save == "" || o.pictures == "" {
		t.Errorf("a run of all cells keeps nothing: %+v", o)
	}
	if o, ok := parse([]string{"-only", "zipf"}, &said); !ok || o.save != "" || o.pictures != "" {
		t.Errorf("a run of some cells keeps %q and %q", o.save, o.pictures)
	}
	if o, ok := parse([]string{"-rounds", "1"}, &said); !ok || o.save != "" || o.pictures != "" {
		t.Errorf("a first look keeps %q and %q", o.save, o.pictures)
	}
	if o, ok := parse([]string{"-rounds", "1", "-from", "x"}, &said); !ok || o.pictures == "" {
		t.Error("-from draws nothing")
	}
	if o, ok := parse([]string{"-only", "zipf", "-save", "x", "-pictures", "y"}, &said); !ok || o.save != "x" || o.pictures != "y" {
		t.Errorf("what was asked for is %q and %q", o.save, o.pictures)
	}
}
