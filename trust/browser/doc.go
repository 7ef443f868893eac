// Package browser tests the page of `interlock ui` in a real browser: the tool is built
// and started as a process, with a real redis-server, and Chromium opens its page.
//
// The browser is the program that INTERLOCK_CHROMIUM names, else chromium or Chrome on
// PATH. Without one the tests fail. Chromium refuses to sandbox itself as root; there the
// tests run it without its sandbox, which is fine for a page of ours.
//
// axe-core looks at the pages too; scripts/axe.sh fetches it, and INTERLOCK_AXE names
// another file. Where it cannot be had the test says so and leaves that out.
//
// The test writes pictures of the pages: go test -artifacts -outputdir=DIR keeps them.
package browser
