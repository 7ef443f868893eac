// Package ui is the web page of the tool: the locks of all processes that share a Redis,
// live, with their waiters, and a way to release one. docs/tool.md#the-page-in-a-browser describes it to its
// users.
//
// A [UI] reads while a page is open, and only then: one goroutine goes through the locks
// for all pages (loop.go), and each page gets its changes by server-sent events
// (events.go). The pages work without JavaScript too, by reloading.
//
// Data from Redis is hostile. Package show escapes unprintable characters,
// html/template the rest, and the Content-Security-Policy lets nothing run that is not
// embedded here (guard.go).
package ui
