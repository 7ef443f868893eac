// Command chat shows one turn per conversation: an answer is streamed under the lock of its
// conversation, and one word in the rule says what happens to the next message of the client.
//
//	go run ./examples/chat
//
// This command needs only Go. It starts a Redis-compatible server inside the process and two
// chats, as two processes would. For each word it sends a message to the first chat, and, while
// the answer is streamed, another one to the second chat. It prints the client's answers. For the word
// gather it sends ten more messages to the first chat, which answers them in one turn.
//
//	go run ./examples/chat -serve localhost:8080 -redis localhost:6379 -next gather
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
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/gather"
	"github.com/interlock-go/interlock/core/redisstore"
	"github.com/interlock-go/interlock/httplock"
)

// next says what happens to the next message while an answer is streamed.
var next = map[string]core.GuardOption{
	"supersede": core.Newest(),          // the answer ends, and the next one begins
	"queue":     core.Wait(time.Minute), // the next answer follows
	"refuse":    core.Wait(0),           // the client gets 423
	"gather":    nil,                    // one answer follows, to all messages that came meanwhile
}

// chat answers messages.
type chat struct {
	pace   time.Duration // of the words
	linger time.Duration // of "gather": how long a turn waits for further messages; may be zero
}

// handler has the routes of the chat. word is a key of next.
func (c *chat) handler(locker *core.Locker, word string) http.Handler {
	if word == "gather" {
		return c.gathering(locker)
	}
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

// gathering is the handler for "gather". A section is a turn: it answers all messages that clients
// have sent to this process since the last turn began.
func (c *chat) gathering(locker *core.Locker) http.Handler {
	opts := []gather.Option{core.Wait(time.Minute), core.MaxHold(5 * time.Minute)}
	if c.linger > 0 {
		opts = append(opts, gather.Linger(c.linger))
	}
	turns := gather.New(locker, func(ctx context.Context, _ string, messages []string) ([]string, error) {
		answer := words(strings.Join(messages, " and "))
		select {
		case <-time.After(time.Duration(len(answer)) * c.pace):
			return slices.Repeat([]string{strings.Join(answer, " ")}, len(messages)), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}, opts...)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /chats/{id}/messages", func(w http.ResponseWriter, r *http.Request) {
		message, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<16))
		id, wrong := core.FormUUID.Canonical(r.PathValue("id"))
		key, badKey := core.Key("chat", id)
		if errors.Join(err, wrong, badKey) != nil {
			http.Error(w, "The message did not arrive, or the chat is none.", http.StatusBadRequest)
			return
		}
		answer, err := turns.Do(r.Context(), key, string(message))
		if err != nil {
			http.Error(w, "The message got no answer.", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, "data: %s\n\nevent: end\ndata: \n\n", answer)
	})
	return mux
}

// words is the model.
func words(message string) []string {
	return strings.Fields(strings.Repeat("you said "+message+" and ", 3) + "that is all")
}

func main() {
	log.SetFlags(0)
	addr := flag.String("serve", "", "serve a chat at this `address`, in place of the demonstration")
	server := flag.String("redis", "", "the `address` of Redis; empty starts one inside the process")
	word := flag.String("next", "supersede", "what happens to the next message: supersede, queue, refuse or gather")
	linger := flag.Duration("linger", 0, "how long a turn of gather waits for further messages")
	flag.Parse()
	if _, ok := next[*word]; !ok {
		log.Fatalf("unknown word %q", *word)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *addr, *server, *word, *linger); err != nil {
		log.Fatal(err)
	}
}

// run serves a chat, or shows the effect of the words.
func run(ctx context.Context, addr, server, word string, linger time.Duration) error {
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
	chats := &http.Server{Addr: addr, Handler: (&chat{100 * time.Millisecond, linger}).handler(locker, word), ReadTimeout: time.Minute}
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
			chats[i] = (&chat{pace: pace}).handler(locker, word)
		}
		first := make(chan string)
		go func() { first <- send(ctx, chats[0], "hello") }()
		time.Sleep(5*pace + pace/2)
		second := send(ctx, chats[1], "stop")
		_, _ = fmt.Fprintf(out, "%s\n  first   %s\n  second  %s\n", word, <-first, second)
	}
	return gathered(ctx, out, store, pace)
}

// gathered sends ten messages of one conversation during a turn.
func gathered(ctx context.Context, out io.Writer, store core.Store, pace time.Duration) error {
	locker, err := core.New(store)
	if err != nil {
		return err
	}
	defer closing(ctx, locker)
	chat := (&chat{pace: pace}).handler(locker, "gather")
	first, next := make(chan string), make(chan string, 10)
	go func() { first <- send(ctx, chat, "hello") }()
	time.Sleep(5 * pace)
	for i := range 10 {
		go func() { next <- send(ctx, chat, strconv.Itoa(i)) }()
		time.Sleep(pace / 10)
	}
	_, _ = fmt.Fprintf(out, "gather\n  first   %s\n", <-first)
	answers := map[string]int{}
	for range 10 {
		answers[<-next]++
	}
	for answer, n := range answers {
		_, _ = fmt.Fprintf(out, "  %d more  %s\n", n, answer)
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
