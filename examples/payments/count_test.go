package main

import (
	"slices"
	"testing"
)

func TestCommandsAreCountedHoweverTheyAreWritten(t *testing.T) {
	stream := "*3\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nauth\r\n" + // a handshake
		"*4\r\n$7\r\nevalsha\r\n$3\r\nabc\r\n$1\r\n1\r\n$14\r\n*1\r\n$4\r\nping\r\n\r\n" + // one, whatever its arguments look like
		"*2\r\n$3\r\nget\r\n$0\r\n\r\n" +
		"*1\r\n$4\r\nping\r\n"
	const want = 3
	for size := 1; size <= len(stream); size++ {
		var r requests
		var got int64
		for chunk := range slices.Chunk([]byte(stream), size) {
			got += r.read(chunk)
		}
		if got != want {
			t.Fatalf("written %d bytes at a time: %d commands, want %d", size, got, want)
		}
	}
}
