// Command chat shows one turn per conversation: an answer is streamed under the lock of its
// conversation, and one word in the rule says what happens to the next message of the client.
//
//	go run ./examples/chat
//
// This command needs only Go. It starts a Redis-compatible server inside the process and two
// chats, as two processes would. For each word it sends a message to the first chat, and, while
// the answer is streamed, another one to the second chat. It prints the client's answers.
//
//	go run ./examples/chat -serve localhost:8080 -redis localhost:6379 -next supersede
//
// This command serves a chat until it is stopped. Start it twice with different addresses, and
// the processes share the conversations:
//
//	curl -N -d hello localhost:8080/chats/6f9619ff-8b86-d011-b42d-00c04fc964ff/messages
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/httplock"
)

// next says what happens to the next message while an answer is streamed.
var next = map[string]core.GuardOption{
	"supersede": core.Newest(),          // the answer ends, and the next one begins
	"queue":     core.Wait(time.Minute), // the next answer follows
	"refuse":    core.Wait(0),           // the client gets 423
}

// chat answers messages.
type chat struct {
	pace time.Duration // of the words
}

// handler has the routes of the chat. word is a key of next.
func (c *chat) handler(locker *core.Locker, word string) http.Handler {
	turn := core.Serialize(locker, "chat/{id:uuid}", next[word],
		core.ReadBody(1<<16),        // a message that arrives slowly does not hold the chat
		core.MaxHold(5*time.Minute), // a model that hangs
	)
	mux := http.NewServeMux()
	mux.Handle("POST /chats/{id}/messages", httplock.Guard(turn)(http.HandlerFunc(c.answer)))
	return mux
}

// answer streams the words of an answer as server-sent events. It holds the lock of the
// conversation until it returns, so the context has to end it.
func (c *chat) answer(w http.ResponseWriter, r *http.Request) {
	message, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "The message did not arrive.", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	stream := http.NewResponseController(w)
	for _, part := range words(string(message)) {
		_, _ = fmt.Fprintf(w, "data: %s\n\n", part) // a client that has gone ends the context
		_ = stream.Flush()
		select {
		case <-time.After(c.pace):
		case <-r.Context().Done():
			if errors.Is(context.Cause(r.Context()), core.ErrSuperseded) {
				_, _ = fmt.Fprint(w, "event: superseded\ndata: a newer message has come\n\n")
			}
			return
		}
	}
	_, _ = fmt.Fprint(w, "event: end\ndata: \n\n")
}

// words is the model.
func words(message string) []string {
	return strings.Fields(strings.Repeat("you said "+message+" and ", 3) + "that is all")
}

func main() {
	log.SetFlags(0)
	addr := flag.String("serve", "", "serve a chat at this `address`, in place of the demonstration")
	server := flag.String("redis", "", "the `address` of Redis; empty starts one inside the process")
	word := flag.String("next", "supersede", "what happens to the next message: supersede, queue or refuse")
	flag.Parse()
	if _, ok := next[*word]; !ok {
		log.Fatalf("unknown word %q", *word)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *addr, *server, *word); err != nil {
		log.Fatal(err)
	}
}

// run serves a chat, or shows the effect of the words.
func run(ctx context.Context, addr, server, word string) error {
	if server == "" {
		embedded, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer embedded.Close()
		server = embedded.Addr()
	}
	rdb := redis.NewClient(&redis.Options{Addr: server})
	defer func() { _ = rdb.Close() }()
	store, err := redisstore.New(rdb)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	if addr == "" {
		return demonstrate(ctx, os.Stdout, store, 50*time.Millisecond)
	}
	locker, err := core.New(store)
	if err != nil {
		return err
	}
	defer closing(ctx, locker)
	chats := &http.Server{Addr: addr, Handler: (&chat{100 * time.Millisecond}).handler(locker, word), ReadTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = chats.Close() })
	if err := chats.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// closing closes a locker when its chat has ended.
func closing(ctx context.Context, locker *core.Locker) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = locker.Close(ctx)
}

// demonstrate sends two messages of one conversation for each word, to two chats.
func demonstrate(ctx context.Context, out io.Writer, store core.Store, pace time.Duration) error {
	for _, word := range []string{"supersede", "queue", "refuse"} {
		var chats [2]http.Handler
		for i := range chats {
			locker, err := core.New(store)
			if err != nil {
				return err
			}
			defer closing(ctx, locker)
			chats[i] = (&chat{pace}).handler(locker, word)
		}
		first := make(chan string)
		go func() { first <- send(ctx, chats[0], "hello") }()
		time.Sleep(5*pace + pace/2)
		second := send(ctx, chats[1], "stop")
		_, _ = fmt.Fprintf(out, "%s\n  first   %s\n  second  %s\n", word, <-first, second)
	}
	return nil
}

// send sends a message, and returns the client's answer.
func send(ctx context.Context, chat http.Handler, message string) string {
	r := httptest.NewRequest(http.MethodPost, "/chats/6f9619ff-8b86-d011-b42d-00c04fc964ff/messages", strings.NewReader(message)).WithContext(ctx)
	w := httptest.NewRecorder()
	chat.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		return fmt.Sprint(w.Code, " ", http.StatusText(w.Code))
	}
	var said []string
	end := "broken off"
	for line := range strings.Lines(w.Body.String()) {
		if event, ok := strings.CutPrefix(strings.TrimSpace(line), "event: "); ok {
			end = event
		} else if part, ok := strings.CutPrefix(strings.TrimSpace(line), "data: "); ok && end == "broken off" {
			said = append(said, part)
		}
	}
	return strings.Join(said, " ") + " (" + end + ")"
}
