package relockui

// The page as a browser gets it, from real servers. What only a browser can tell is tested in relockui/browser.

import (
	"bufio"
	"context"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

// ctx is the context of calls that nothing cancels.
var ctx = context.Background()

// soon is how long an immediate operation may take on a busy machine.
const soon = 15 * time.Second

func TestMain(m *testing.M) {
	logging.Disable() // of go-redis, which logs every server that a test kills
	testredis.ManyAtOnce()
	goleak.VerifyTestMain(testredis.Main(m, "relockui"),
		// go-redis checks once a second whether a server that was killed is back, until shortly after its Close.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// onEachServer runs test on a miniredis and on a real Redis; in the plain form on a miniredis only without a Redis. The
// test is parallel.
func onEachServer(t *testing.T, test func(b *bench)) {
	t.Parallel()
	t.Run("miniredis", func(t *testing.T) {
		if testredis.Available() {
			testredis.OnlyLong(t)
		}
		test(newBench(t, testredis.Mini(t).Addr()))
	})
	t.Run("redis", func(t *testing.T) { test(newBench(t, testredis.Start(t).Addr())) })
}

// A bench belongs to one test: a Redis, and a page that shows it.
type bench struct {
	*testing.T
	rdb *redis.Client // of the test

	page   *Handler
	server *httptest.Server
	sent   atomic.Int64 // commands that the page has sent to Redis, in pipelines too
	log    lockedBuffer
}

func newBench(t *testing.T, addr string) *bench {
	return &bench{T: t, rdb: testredis.Client(t, addr)}
}

// lockedBuffer is a buffer that a logger may write to while a test reads.
type lockedBuffer struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// serve starts the page, with an interval of 100ms.
func (b *bench) serve(opts ...Option) {
	b.Helper()
	b.serveOn(testredis.Client(b, b.rdb.Options().Addr), opts...)
}

// serveOn is like serve, for the Redis of rdb.
func (b *bench) serveOn(rdb redis.UniversalClient, opts ...Option) {
	b.Helper()
	rdb.AddHook(counter{&b.sent})
	opts = append([]Option{WithInterval(leastInterval), WithLogger(slog.New(slog.NewTextHandler(&b.log, nil)))}, opts...)
	var err error
	b.page, err = New(rdb, opts...)
	require.NoError(b, err)
	b.server = httptest.NewUnstartedServer(b.page)
	b.server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		assert.NoError(b, c.(*net.TCPConn).SetWriteBuffer(16<<10)) // so that a slow reader is noticed soon
		return ctx
	}
	b.server.Start()
	b.Cleanup(func() {
		assert.NoError(b, b.page.Close())
		b.server.Close()
	})
}

// A counter is a hook that counts commands.
type counter struct{ n *atomic.Int64 }

func (c counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// client returns a Client of a service.
func (b *bench) client(opts ...relock.Option) *relock.Client {
	b.Helper()
	opts = append([]relock.Option{relock.WithLogger(slog.New(slog.DiscardHandler)), relock.WithLabel("")}, opts...)
	c, err := relock.New(testredis.Client(b, b.rdb.Options().Addr), opts...)
	require.NoError(b, err)
	b.Cleanup(func() { _ = c.Close() })
	return c
}

// hold acquires a lock.
func (b *bench) hold(c *relock.Client, name string) *relock.Hold {
	b.Helper()
	h, err := c.NewLock(name).Acquire(ctx)
	require.NoError(b, err)
	return h
}

// many puts n locks into Redis, as if as many processes held them, called lock:0000 and so on.
func (b *bench) many(n int) {
	b.Helper()
	for from := 0; from < n; from += 500 {
		_, err := b.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := from; i < min(from+500, n); i++ {
				name := fmt.Sprintf("lock:%04d", i)
				p.HSet(ctx, name, uuid.NewString()+":7:1", 1)
				p.PExpire(ctx, name, time.Hour)
			}
			return nil
		})
		require.NoError(b, err)
	}
}

// get returns the answer to a GET.
func (b *bench) get(path string, header ...string) (status int, text string) {
	b.Helper()
	return b.do("GET", path, "", header...)
}

// do sends a request. header has names and values of headers; Host is one of them.
func (b *bench) do(method, path, body string, header ...string) (status int, text string) {
	b.Helper()
	r, err := http.NewRequest(method, b.server.URL+path, strings.NewReader(body))
	require.NoError(b, err)
	if body != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := b.server.Client().Do(r)
	require.NoError(b, err)
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	require.NoError(b, err)
	return answer.StatusCode, string(all)
}

// A stream is an open stream of events.
type stream struct {
	*bench
	events chan string // closed when the stream has ended
	end    context.CancelFunc
}

func (b *bench) stream(path string) *stream {
	b.Helper()
	ctx, cancel := context.WithCancel(ctx)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, b.server.URL+path, nil)
	require.NoError(b, err)
	answer, err := b.server.Client().Do(r) //nolint:bodyclose // the goroutine below closes it
	require.NoError(b, err)
	require.Equal(b, http.StatusOK, answer.StatusCode)
	require.Equal(b, "text/event-stream", answer.Header.Get("Content-Type"))
	s := &stream{b, make(chan string, 1000), cancel}
	go func() {
		defer answer.Body.Close()
		defer close(s.events)
		var event strings.Builder
		for lines := bufio.NewReader(answer.Body); ; {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				event.WriteString(data)
			} else if line == "\n" && event.Len() > 0 {
				s.events <- event.String()
				event.Reset()
			}
		}
	}()
	b.Cleanup(cancel)
	return s
}

// await waits for an event that contains text.
func (s *stream) await(text string) string {
	s.Helper()
	return s.awaitThat(text, func(event string) bool { return strings.Contains(event, text) })
}

func (s *stream) awaitThat(what string, is func(event string) bool) string {
	s.Helper()
	late := time.After(soon)
	for {
		select {
		case event, open := <-s.events:
			require.True(s, open, "the stream has ended before: %s", what)
			if is(event) {
				return event
			}
		case <-late:
			require.Fail(s, "no event has it", what)
		}
	}
}

func (b *bench) watchers() int {
	b.page.sampler.mu.Lock()
	defer b.page.sampler.mu.Unlock()
	return b.page.sampler.watchers
}

// words returns text without the elements that isolate words of different directions.
func words(text string) string { return strings.NewReplacer("<bdi>", "", "</bdi>", "").Replace(text) }

// A label and a host that are written from right to left do not change the places of each other, nor of what follows.
// The page of a lock has the beginning of the ID of each client, to search logs for.
func TestLabelHostAndClientAreApart(t *testing.T) {
	onEachServer(t, func(b *bench) {
		c := b.client(relock.WithLabel("x"))
		held := b.hold(c, "lock:a")
		key := "relock_client:{" + c.ID() + "}"
		testredis.Await(b, "the Client has written its own label", soon, func() bool {
			return b.rdb.HGet(ctx, key, "label").Val() == "x"
		})
		require.NoError(b, b.rdb.HSet(ctx, key, "label", "الطلبات 7", "host", "שרת-3").Err())
		b.serve()
		const isolated = "<bdi>الطلبات 7</bdi> on <bdi>שרת-3</bdi> <small><bdi>"
		for _, path := range []string{"/", "/lock?name=lock:a"} {
			_, text := b.get(path)
			assert.Contains(b, text, isolated, path)
		}
		_, text := b.get("/?q=" + url.QueryEscape("الطلبات 7 on שרת"))
		assert.Contains(b, text, isolated, "the filter finds what is shown")
		text = b.stream("/events?name=lock:a").await("Holders")
		assert.Contains(b, text, "<code>"+c.ID()[:8]+"</code>")
		assert.Contains(b, text, `data-copy="`+c.ID()[:8]+`"`)
		require.NoError(b, held.Release(ctx))
	})
}

func TestPageShowsHoldersAndWaiters(t *testing.T) {
	onEachServer(t, func(b *bench) {
		holder, waiter := b.client(relock.WithLabel("orders-1")), b.client(relock.WithLabel("orders-2"))
		free, held := b.hold(holder, "lock:free"), b.hold(holder, "lock:busy")
		got := make(chan *relock.Hold)
		go func() {
			h, _ := waiter.NewLock("lock:busy").Acquire(ctx)
			got <- h
		}()
		b.serve()
		testredis.Await(b, "the page shows the wait", soon, func() bool {
			_, text := b.get("/")
			return strings.Contains(text, "others wait for 1 of them") && strings.Contains(words(text), "orders-1 on ")
		})
		_, text := b.get("/")
		assert.Contains(b, text, "2 locks held")
		assert.Less(b, strings.Index(text, "lock:busy"), strings.Index(text, "lock:free"), "what others wait for comes first")
		testredis.Await(b, "the label of the waiter", soon, func() bool {
			_, text = b.get("/lock?name=lock:busy")
			return strings.Contains(words(text), "orders-2 on ")
		})
		holders, waiters, _ := strings.Cut(words(text), "Waiting, in order")
		assert.Contains(b, holders, "orders-1 on ")
		assert.Contains(b, waiters, "orders-2 on ")
		assert.Contains(b, waiters, "yes", "it can be reached")
		assert.NotContains(b, text, "Release by force")
		_, text = b.get("/lock?name=lock:none")
		assert.Contains(b, text, "Nobody holds this lock.")
		require.NoError(b, held.Release(ctx))
		require.NoError(b, (<-got).Release(ctx))
		require.NoError(b, free.Release(ctx))
	})
}

// 2,000 locks are one screen of rows, and the filter finds each of them.
func TestPageOfTwoThousandLocksHasOneScreenOfRows(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	b.many(2000)
	b.serve()
	b.stream("/events?q=").await("2,000 locks held") // it may take longer than a request waits
	_, text := b.get("/")
	assert.Contains(b, text, "2,000 locks held")
	assert.Equal(b, mostRows, strings.Count(text, `<tr role="row" data-key=`))
	assert.Contains(b, text, "1,900 more are not shown")
	assert.Less(b, len(text), 100_000, "bytes")
	_, text = b.get("/?q=LOCK:1999")
	assert.Contains(b, text, "1 of the 2,000 held locks matches")
	assert.Contains(b, text, `href="lock?name=lock%3A1999"`)
	_, text = b.get("/?q=nothing")
	assert.Contains(b, text, "No lock that is held matches the filter.")
}

// A page and a stream list what the switch says, and the page says whether the user has set it.
func TestSwitchChoosesWhatIsListed(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	b.many(3)
	b.serve()
	const none = "Nobody is known to wait for a lock."
	_, text := b.get("/")
	assert.Contains(t, text, "lock:0001")
	assert.Contains(t, text, " data-undecided>")
	for value, checked := range map[string]bool{"1": true, "0": false} {
		_, text = b.get("/?waiting=" + value)
		assert.NotContains(t, text, "data-undecided")
		assert.Equal(t, checked, strings.Contains(text, `value="1" autocomplete="off" checked>`))
		assert.Equal(t, checked, strings.Contains(text, none))
		assert.NotEqual(t, checked, strings.Contains(text, "lock:0001"))
		event := b.stream("/events?q=&waiting=" + value).await("3 locks held")
		assert.Equal(t, checked, strings.Contains(event, none))
	}
}

var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, `javascript:alert(1)`,
	`</main></table><h1>x`,
	"line\r\n\r\ndata: <b>evil</b>\n\n", "{{.Name}}", "\u202egnp.exe", "\x00\xff\xfe", "<!--", "&lt;b&gt;",
	strings.Repeat("<b>", 3000),
}

// What another program has written into Redis is text, wherever the page shows it.
func TestHostileNamesAndLabelsInjectNothing(t *testing.T) {
	onEachServer(t, func(b *bench) {
		evil := b.client(relock.WithLabel(`<img src=x onerror=alert(2)>`))
		for _, name := range hostile {
			h := b.hold(evil, name)
			defer h.Release(ctx)
		}
		require.NoError(b, b.rdb.HSet(ctx, "relock_client:{"+evil.ID()+"}", "label", "<b>\r\n\u202e", "host",
			"<script>alert(3)</script>").Err())
		b.serve(WithForcedRelease(), WithTitle("<i>title"))
		var texts []string
		add := func(path string) {
			status, text := b.get(path)
			texts = append(texts, text)
			assert.Less(b, status, 500, path)
		}
		add("/")
		add("/?q=" + url.QueryEscape(`"><script>alert(1)</script>`))
		add("/?q=" + url.QueryEscape(`<`))
		texts = append(texts, b.stream("/events?q=").await("12 locks held"))
		for _, name := range hostile {
			if len(name) > longestLink {
				continue
			}
			add("/lock?name=" + url.QueryEscape(name))
			add("/release?name=" + url.QueryEscape(name))
			texts = append(texts, b.stream("/events?name="+url.QueryEscape(name)).await("Holders"))
		}
		ours := regexp.MustCompile(`<(script src="page.js" defer|/?(script|b|i)>)`)
		for _, text := range texts {
			for _, tag := range []string{"<img", "<b>", "<i>", "<h1>x", "<!--", "onerror=alert(1)>\n", "href=\"javascript:",
				"\u202e", "\x00"} {
				assert.NotContains(b, text, tag)
			}
			assert.LessOrEqual(b, strings.Count(text, "<script"), 1, text)
			for _, tag := range ours.FindAllString(text, -1) {
				assert.Contains(b, []string{`<script src="page.js" defer`, "</script>"}, tag)
			}
			for _, attribute := range regexp.MustCompile(`<[^>]*\son\w+=`).FindAllString(text, -1) {
				assert.Fail(b, "an attribute that is code", attribute)
			}
		}
	})
}

// Nothing on a page, in a stream or in a form is an ID with which a program could release a hold.
func TestNoHolderIDIsShown(t *testing.T) {
	onEachServer(t, func(b *bench) {
		c, waits := b.client(), b.client()
		held := b.hold(c, "lock:a")
		const thread, permit = "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10:42", "abcdefghijklmnop"
		require.NoError(b, b.rdb.HSet(ctx, "lock:java", thread, 1).Err())
		require.NoError(b, b.rdb.Set(ctx, "lock:permits", 1, 0).Err())
		require.NoError(b, b.rdb.ZAdd(ctx, "{lock:permits}:timeout", redis.Z{
			Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: permit,
		}).Err())
		waiting, cancel := context.WithCancel(ctx)
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, _ = waits.NewLock("lock:a").Acquire(waiting)
		}()
		testredis.Await(b, "somebody waits", soon, func() bool {
			i, err := c.Inspect(ctx, "lock:a")
			return err == nil && i.Waiting == 1
		})
		b.serve(WithForcedRelease())
		var all strings.Builder
		for _, path := range []string{"/", "/lock?name=lock:a", "/lock?name=lock:java", "/lock?name=lock:permits",
			"/release?name=lock:a", "/release?name=lock:java", "/release?name=lock:permits"} {
			status, text := b.get(path)
			require.Equal(b, http.StatusOK, status, path)
			all.WriteString(text)
		}
		all.WriteString(b.stream("/events?q=").await("3 locks held"))
		all.WriteString(b.stream("/events?name=lock:permits").await("Holders"))
		for what, secret := range map[string]string{
			"the ID of a client": c.ID(), "that of a waiter": waits.ID(), "that of Java": thread[:36],
			"a permit": permit, "a permit in hexadecimal": fmt.Sprintf("%x", permit),
		} {
			assert.NotContains(b, all.String(), secret, what)
		}
		assert.Contains(b, all.String(), "client "+c.ID()[:8])
		assert.Contains(b, all.String(), "Java client "+thread[:8])
		assert.Contains(b, all.String(), "a Java service")
		cancel()
		<-gone
		require.NoError(b, held.Release(ctx))
	})
}

// Who watches sees a lock change hands, in the list and on its own page.
func TestWatcherSeesALockChangeHands(t *testing.T) {
	onEachServer(t, func(b *bench) {
		one, two := b.client(), b.client()
		first := b.hold(one, "lock:a")
		b.serve()
		list, detail := b.stream("/events?q="), b.stream("/events?name=lock:a")
		list.await("client " + one.ID()[:8])
		detail.await("client " + one.ID()[:8])
		require.NoError(b, first.Release(ctx))
		second := b.hold(two, "lock:a")
		for _, s := range []*stream{list, detail} {
			event := s.await("client " + two.ID()[:8])
			assert.NotContains(b, event, one.ID()[:8])
			assert.Contains(b, event, "seen for ", "for how long it was seen")
		}
		require.NoError(b, second.Release(ctx))
		list.await("No lock is held.")
		detail.await("Nobody holds this lock.")
	})
}

// The page of one lock counts for how long its holds were seen, also if the list was not shown before; and the list
// goes on from there.
func TestPageOfOneLockShowsForHowLongItIsHeld(t *testing.T) {
	onEachServer(t, func(b *bench) {
		held := b.hold(b.client(), "lock:a")
		b.serve(WithForcedRelease())
		const fresh, older = `data-name="Held for">seen for 0s<`, `data-name="Held for">seen for [1-9]`
		_, text := b.get("/lock?name=lock:a")
		assert.Contains(b, text, fresh, "it has just been seen")
		testredis.Await(b, "the time goes on", soon, func() bool {
			_, text := b.get("/lock?name=lock:a")
			return regexp.MustCompile(older).MatchString(text)
		})
		assert.Zero(b, b.samples(), "samples")
		_, text = b.get("/release?name=lock:a")
		assert.Regexp(b, `Held, as of \d\d:\d\d:\d\d UTC: seen for [1-9]`, text)
		_, text = b.get("/")
		assert.Regexp(b, older, text)
		stream := b.stream("/events?name=lock:a")
		assert.Regexp(b, older, stream.await("Held for"))
		stream.end()
		require.NoError(b, held.Release(ctx))
		held = b.hold(b.client(), "lock:a")
		_, text = b.get("/lock?name=lock:a")
		assert.Contains(b, text, fresh, "another hold")
		require.NoError(b, held.Release(ctx))
	})
}

// The looks of requests for many locks are not remembered for ever.
func TestLooksAreCapped(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Mini(t).Addr())
	b.many(mostLooks + 20)
	b.serve()
	for n := range mostLooks + 20 {
		b.get(fmt.Sprintf("/lock?name=lock:%04d", n))
	}
	b.page.sampler.mu.Lock()
	defer b.page.sampler.mu.Unlock()
	assert.Len(b, b.page.sampler.looks, mostLooks)
	assert.NotContains(b, b.page.sampler.looks, "lock:0000", "the oldest one")
}

// Nothing is sent to Redis while no browser shows the page, and with twenty of them as much as with one.
func TestSamplerRunsOnlyWhileSomebodyWatches(t *testing.T) {
	onEachServer(t, func(b *bench) {
		b.many(50)
		b.serve()
		assert.Zero(b, b.sent.Load(), "commands before anybody looks")
		b.get("/page.css")
		assert.Zero(b, b.sent.Load(), "commands for a file")

		perSample := func(watchers int) float64 {
			var all []*stream
			for range watchers {
				all = append(all, b.stream("/events?q="))
			}
			all[watchers-1].await("50 locks held")
			before, samples := b.sent.Load(), b.samples()
			testredis.Await(b, "many samples", 4*soon, func() bool { return b.samples() >= samples+20 })
			sent, n := b.sent.Load()-before, b.samples()-samples
			for _, s := range all {
				s.end()
			}
			testredis.Await(b, "the streams end", soon, func() bool { return b.watchers() == 0 })
			return float64(sent) / float64(n)
		}
		one, twenty := perSample(1), perSample(20)
		assert.InDelta(b, one, twenty, 0.2*one, "commands of a sample with 1 and with 20 people")

		b.settle()
		before := b.sent.Load()
		assert.Never(b, func() bool { return b.sent.Load() != before }, 10*leastInterval, leastInterval,
			"commands while nobody looks")
	})
}

// samples returns how many samples were taken, if no user waits for it in between: each is a pass through the keyspace.
func (b *bench) samples() int {
	b.page.sampler.mu.Lock()
	defer b.page.sampler.mu.Unlock()
	return b.page.sampler.taken
}

// settle waits until no sample is being taken.
func (b *bench) settle() {
	testredis.Await(b, "the last sample ends", soon, func() bool {
		b.page.sampler.mu.Lock()
		defer b.page.sampler.mu.Unlock()
		return b.page.sampler.running == nil
	})
}

// Requests for the page share a sample, so that a flood of them is no flood of commands.
func TestRequestsShareASample(t *testing.T) {
	onEachServer(t, func(b *bench) {
		b.many(50)
		b.serve(WithInterval(time.Minute))
		var all sync.WaitGroup
		for range 20 {
			all.Add(1)
			go func() {
				defer all.Done()
				b.get("/")
			}()
		}
		all.Wait()
		assert.Equal(b, 1, b.samples())
	})
}

// A browser that does not read its stream loses it, and delays no others.
func TestSlowReaderBlocksNobody(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	b.many(100)
	b.serve()
	b.page.writeTime = time.Second
	slow, err := net.Dial("tcp", b.server.Listener.Addr().String())
	require.NoError(t, err)
	defer slow.Close()
	require.NoError(t, slow.(*net.TCPConn).SetReadBuffer(4096))
	_, err = fmt.Fprintf(slow, "GET /events?q= HTTP/1.1\r\nHost: localhost\r\n\r\n")
	require.NoError(t, err)
	testredis.Await(t, "the slow one is there", soon, func() bool { return b.watchers() == 1 })
	quick := b.stream("/events?q=")
	quick.await("100 locks held")
	require.Equal(t, 2, b.watchers())
	testredis.Await(t, "the slow one loses its stream", 2*soon, func() bool {
		late := time.After(soon / 2)
		select {
		case <-quick.events:
		case <-late:
			require.Fail(t, "the quick one has to wait")
		}
		return b.watchers() == 1
	})
	quick.await("100 locks held")
}

// After Close no stream is open, no goroutine of the Handler is left (see TestMain), and nothing is served.
func TestCloseEndsEverything(t *testing.T) {
	onEachServer(t, func(b *bench) {
		b.many(10)
		b.serve()
		s, detail := b.stream("/events?q="), b.stream("/events?name=lock:0001")
		s.await("10 locks held")
		detail.await("Holders")
		require.NoError(b, b.page.Close())
		for _, s := range []*stream{s, detail} {
			for range s.events { // until it is closed
			}
		}
		testredis.Await(b, "the streams end", soon, func() bool { return b.watchers() == 0 })
		for _, path := range []string{"/", "/lock?name=a", "/events?q="} {
			status, _ := b.get(path)
			assert.Equal(b, http.StatusServiceUnavailable, status, path)
		}
		require.NoError(b, b.page.Close())
	})
}

// While Redis cannot be read the page shows what it knew, and says so.
func TestPageSaysThatRedisCannotBeRead(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	b := newBench(t, server.Addr())
	b.many(3)
	b.serve()
	s := b.stream("/events?q=")
	s.await("3 locks held")
	server.Kill()
	event := s.await("Redis cannot be read.")
	assert.Contains(t, event, "3 locks held")
	_, text := b.get("/")
	assert.Contains(t, text, "Redis cannot be read.")
	status, text := b.get("/lock?name=lock:0001")
	assert.Equal(t, http.StatusBadGateway, status)
	assert.Contains(t, text, "Redis cannot be read")
	server.Restart()
	s.await("No lock is held.")
}

// A Redis that does not answer delays the page by a few seconds only: it shows what it knew. It is old as soon as Redis
// does not answer, also if the page or its stream is new, and says so.
func TestPageHasTheAgeOfWhatItShows(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	b := newBench(t, server.Addr())
	b.many(3)
	b.serve()
	ages := regexp.MustCompile(`data-age="(\d+) -?\d+" data-fresh="3000"`)
	_, text := b.get("/")
	require.Regexp(t, ages, text)
	s := b.stream("/events?q=")
	assert.Regexp(t, `^\d+ -?\d+\n<p class="summary"`, s.await("3 locks held"))
	server.Freeze()
	defer server.Thaw()
	testredis.Await(t, "the page says that it is old", soon, func() bool {
		var status int
		status, text = b.get("/")
		assert.Equal(t, http.StatusOK, status)
		assert.Contains(t, text, "3 locks held")
		found := ages.FindStringSubmatch(text)
		require.NotNil(t, found, text)
		age, err := strconv.Atoi(found[1])
		require.NoError(t, err)
		return age >= 3000 && strings.Contains(text, "Redis has not answered in time.")
	})
	assert.Equal(t, "", ageText(time.Time{}, time.Time{}), "nothing was read yet")
}

// A sample that has not inspected a lock, because it is older than the page, does not say that no owner holds it.
func TestSampleWithoutTheLockSaysNothingOfIt(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	b.serve()
	for _, problem := range []error{nil, context.DeadlineExceeded} {
		text, err := b.page.event(&sample{problem: problem}, "lock:a", choice{})
		require.NoError(t, err)
		assert.Empty(t, text, problem)
	}
}

// Redis does not work while it hangs, so it need not rest from that.
func TestHangOfRedisIsNotFollowedByAPause(t *testing.T) {
	t.Parallel()
	const hang = 5 * time.Second
	server := testredis.Start(t)
	b := newBench(t, server.Addr())
	b.many(3)
	b.serveOn(testredis.Client(t, server.Addr(), func(o *redis.Options) { o.ReadTimeout = time.Minute }))
	s := b.stream("/events?q=")
	s.await("3 locks held")
	server.Freeze()
	samples, frozen := b.samples(), time.Now()
	testredis.Await(t, "it hangs for a while", 2*hang, func() bool { return time.Since(frozen) >= hang })
	server.Thaw()
	testredis.Await(t, "the sample that has waited", soon, func() bool { return b.samples() > samples })
	b.page.sampler.mu.Lock()
	next := time.Until(b.page.sampler.latest.next)
	b.page.sampler.mu.Unlock()
	assert.Less(t, next, hang)
}

// A sample has a bound: a large keyspace is gone through in several samples.
func TestScanOfALargeKeyspaceIsSpread(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	for from := 0; from < 60_000; from += 5000 {
		_, err := b.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := from; i < from+5000; i++ {
				p.Set(ctx, fmt.Sprint("other:", i), "", 0)
			}
			return nil
		})
		require.NoError(t, err)
	}
	b.many(20)
	require.NoError(t, b.rdb.ConfigResetStat(ctx).Err())
	b.serve(WithInterval(time.Second))
	_, text := b.get("/")
	assert.Contains(t, text, "has not been read to its end yet")
	stats := b.rdb.Info(ctx, "commandstats").Val()
	assert.Contains(t, stats, fmt.Sprintf("cmdstat_scan:calls=%d,", mostScans))
	b.stream("/events?q=").awaitThat("the whole keyspace", func(event string) bool {
		return strings.Contains(event, "20 locks held") && !strings.Contains(event, "to its end yet")
	})
}

// A broken is a hook under which every SCAN fails after so many.
type broken struct {
	counter
	left *atomic.Int64
}

func (b broken) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "scan" && b.left.Add(-1) < 0 {
			cmd.SetErr(io.ErrUnexpectedEOF)
			return io.ErrUnexpectedEOF
		}
		return next(ctx, cmd)
	}
}

// A scan that fails begins anew. What it has found before is listed, however often that happens.
func TestScanThatFailsKeepsWhatItHasFound(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	b.many(5000)
	rdb, left := testredis.Client(t, b.rdb.Options().Addr), new(atomic.Int64)
	rdb.AddHook(broken{counter{new(atomic.Int64)}, left})
	b.serveOn(rdb)
	s := b.page.sampler
	found := 0
	for step := range int64(4) { // each finds more than the one before it, and fails
		left.Store(step)
		require.ErrorIs(t, s.find(ctx, new(effort)), io.ErrUnexpectedEOF)
		if step > 0 {
			assert.Greater(t, len(s.known), found, "after %d SCAN requests", step)
		}
		found = len(s.known)
	}
	left.Store(0)
	require.Error(t, s.find(ctx, new(effort)))
	assert.Len(t, s.known, found, "nothing is forgotten")
}

// A page is served for known hosts only, so that no other name leads a browser to it.
func TestOtherHostsAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Mini(t).Addr())
	b.serve(WithHosts("Locks.example.com", "[fe80::1]"))
	for host, want := range map[string]int{
		"localhost": 200, "localhost:8080": 200, "127.0.0.1:1": 200, "[::1]:80": 200, "LOCALHOST": 200,
		"locks.example.com": 200, "locks.example.com:443": 200, "[fe80::1]": 200,
		"evil.example": 421, "evil.example:8080": 421, "localhost.evil.example": 421, "127.0.0.1.evil.example": 421,
		"192.0.2.1": 421, "locks.example.com.": 421, "x@localhost": 421,
	} {
		for _, path := range []string{"/", "/page.js", "/lock?name=a", "/none"} {
			status, _ := b.get(path, "Host", host)
			if path == "/none" && want == 200 {
				want = 404
			}
			assert.Equal(t, want, status, "%s%s", host, path)
		}
	}
	sent := b.sent.Load()
	b.get("/lock?name=a", "Host", "evil.example")
	assert.Equal(t, sent, b.sent.Load(), "commands for another host")
}

// Another site cannot open a stream, which has a cost, but may link to a page.
func TestOtherSitesMayNotOpenAStream(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Mini(t).Addr())
	b.serve()
	for _, site := range []string{"cross-site", "same-site"} {
		status, _ := b.get("/events?q=", "Sec-Fetch-Site", site)
		assert.Equal(t, http.StatusForbidden, status)
		status, _ = b.get("/", "Sec-Fetch-Site", site)
		assert.Equal(t, http.StatusOK, status)
	}
	assert.Zero(t, b.watchers())
}

func TestEveryAnswerForbidsForeignCode(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Mini(t).Addr())
	b.serve()
	for _, path := range []string{"/", "/lock?name=a", "/page.js", "/none"} {
		answer, err := b.server.Client().Get(b.server.URL + path)
		require.NoError(t, err)
		answer.Body.Close()
		policy := answer.Header.Get("Content-Security-Policy")
		assert.Contains(t, policy, "default-src 'none'", path)
		assert.Contains(t, policy, "frame-ancestors 'none'", path)
		assert.NotContains(t, policy, "unsafe", path)
		assert.Equal(t, "nosniff", answer.Header.Get("X-Content-Type-Options"), path)
		assert.Equal(t, "no-store", answer.Header.Get("Cache-Control"), path)
	}
}

// A form has what the page of a release asks for, as a browser sends it.
func (b *bench) form(name string) url.Values {
	b.Helper()
	status, text := b.get("/release?name=" + url.QueryEscape(name))
	require.Equal(b, http.StatusOK, status, text)
	form := url.Values{"sure": {"yes"}}
	for _, m := range regexp.MustCompile(`name="(name|token|holder)" value="([^"]*)"`).FindAllStringSubmatch(text, -1) {
		form.Add(m[1], html.UnescapeString(m[2]))
	}
	require.NotEmpty(b, form["holder"], text)
	return form
}

// post sends a form as the page does, with other headers in addition.
func (b *bench) post(form url.Values, header ...string) (status int, text string) {
	b.Helper()
	header = append([]string{"Origin", b.server.URL, "Sec-Fetch-Site", "same-origin"}, header...)
	return b.do("POST", "/release", form.Encode(), header...)
}

// Without the option there is no way to release a lock.
func TestPageIsReadOnlyByDefault(t *testing.T) {
	onEachServer(t, func(b *bench) {
		held := b.hold(b.client(), "lock:a")
		b.serve()
		_, text := b.get("/lock?name=lock:a")
		assert.NotContains(b, text, "Release by force")
		assert.Contains(b, text, "<code>relockctl unlock lock:a</code>", "how else")
		assert.Contains(b, text, "<code>relockctl serve --allow-unlock</code>")
		status, _ := b.get("/release?name=lock:a")
		assert.Equal(b, http.StatusNotFound, status)
		status, _ = b.post(url.Values{"name": {"lock:a"}, "sure": {"yes"}, "holder": {"x"}})
		assert.Equal(b, http.StatusNotFound, status)
		for _, method := range []string{"POST", "DELETE", "PUT"} {
			status, _ = b.do(method, "/lock?name=lock:a", "")
			assert.Equal(b, http.StatusMethodNotAllowed, status, method)
		}
		assert.NoError(b, held.Release(ctx))
	})
}

func TestForcedReleaseIsForTheHolderThatWasShown(t *testing.T) {
	onEachServer(t, func(b *bench) {
		one, two := b.client(), b.client()
		b.serve(WithForcedRelease())
		first := b.hold(one, "lock:a")
		_, text := b.get("/lock?name=lock:a")
		require.Contains(b, text, `href="release?name=lock%3Aa"`)
		form := b.form("lock:a")
		require.NoError(b, first.Release(ctx))
		second := b.hold(two, "lock:a")
		status, text := b.post(form)
		assert.Equal(b, http.StatusConflict, status)
		assert.Contains(b, text, "Not released")
		assert.NoError(b, second.Context().Err())
		require.NoError(b, second.Release(ctx), "it holds the lock")
		status, _ = b.post(form)
		assert.Equal(b, http.StatusConflict, status, "nobody holds it")

		third := b.hold(two, "lock:a")
		status, text = b.post(b.form("lock:a"))
		assert.Equal(b, http.StatusOK, status)
		assert.Contains(b, text, "Released")
		assert.Contains(b, text, "is told by a message, usually within milliseconds")
		assert.ErrorIs(b, third.Release(ctx), relock.ErrLockLost)
		assert.Contains(b, b.log.String(), "a lock was released by force")
		assert.Contains(b, b.log.String(), "lock:a")
	})
}

// The pattern limits what can be released, and not what can be read.
func TestForcedReleaseIsForLocksThatMatchThePattern(t *testing.T) {
	onEachServer(t, func(b *bench) {
		c := b.client()
		held, other := b.hold(c, "lock:a"), b.hold(c, "stock:a")
		b.serve(WithForcedRelease(), WithPattern("lock:*"))
		status, text := b.get("/lock?name=stock:a")
		assert.Equal(b, http.StatusOK, status)
		assert.NotContains(b, text, "Release by force")
		assert.NotContains(b, b.stream("/events?name=stock:a").await("Lease"), "Release by force")
		status, text = b.get("/release?name=stock:a")
		assert.Equal(b, http.StatusForbidden, status)
		assert.Contains(b, text, "match its pattern, lock:*")
		i, err := c.Inspect(ctx, "stock:a")
		require.NoError(b, err)
		status, text = b.post(url.Values{
			"name": {"stock:a"}, "token": {b.page.token("stock:a", time.Now())}, "sure": {"yes"},
			"holder": {b.page.seal("stock:a", i.Holders[0])},
		})
		assert.Equal(b, http.StatusForbidden, status)
		assert.Contains(b, text, "match its pattern, lock:*")
		require.NoError(b, other.Release(ctx))

		status, _ = b.post(b.form("lock:a"))
		assert.Equal(b, http.StatusOK, status)
		assert.ErrorIs(b, held.Release(ctx), relock.ErrLockLost)
	})
}

// Of several holders only those that were chosen lose what they have.
func TestForcedReleaseIsForTheHoldersThatWereChosen(t *testing.T) {
	onEachServer(t, func(b *bench) {
		one, two := b.client(), b.client()
		stuck, err := one.NewSemaphore("lock:s", 5).AcquireN(ctx, 2)
		require.NoError(b, err)
		b.serve(WithForcedRelease())
		form := b.form("lock:s")
		other, err := two.NewSemaphore("lock:s", 5).Acquire(ctx)
		require.NoError(b, err)
		all := b.form("lock:s")
		require.Len(b, all["holder"], 2)
		status, _ := b.post(form) // which has one holder
		assert.Equal(b, http.StatusOK, status)
		assert.ErrorIs(b, stuck.Release(ctx), relock.ErrLockLost)
		assert.NoError(b, other.Release(ctx))
	})
}

// Only the page itself can release a lock: no other site, no old page, and nothing that has not confirmed.
func TestForcedReleaseFromElsewhereIsRefused(t *testing.T) {
	onEachServer(t, func(b *bench) {
		c := b.client()
		held, other := b.hold(c, "lock:a"), b.hold(c, "lock:b")
		b.serve(WithForcedRelease(), WithHosts("evil.example"))
		stale := fmt.Sprint(time.Now().Add(-tokenTime - time.Second).Unix())
		theirs := b.form("lock:b")
		for what, try := range map[string]struct {
			header []string
			field  string   // of the form; "": it is sent as it is
			values []string // of the field
		}{
			"another site":        {header: []string{"Origin", "http://evil.example"}},
			"another port":        {header: []string{"Origin", "http://127.0.0.1:1"}},
			"an opaque origin":    {header: []string{"Origin", "null"}},
			"no origin":           {header: []string{"Origin", ""}},
			"a cross-site fetch":  {header: []string{"Sec-Fetch-Site", "cross-site"}},
			"a host that rebinds": {header: []string{"Host", "rebound.example"}},
			"a known host with the origin of the page": {header: []string{"Host", "evil.example"}},
			"no token":               {field: "token"},
			"a bad token":            {field: "token", values: []string{"1.x"}},
			"the token of another":   {field: "token", values: theirs["token"]},
			"a token that is old":    {field: "token", values: []string{stale + "." + b.page.code("token", "lock:a", stale)}},
			"a token of the future":  {field: "token", values: []string{"99999999999.x"}},
			"no confirmation":        {field: "sure"},
			"no holder":              {field: "holder"},
			"the holder of another":  {field: "holder", values: theirs["holder"]},
			"a form that is too big": {field: "holder", values: []string{strings.Repeat("x", mostForm)}},
			"a GET":                  {},
		} {
			form := b.form("lock:a")
			if try.field != "" {
				form[try.field] = try.values
			}
			var text string
			if what == "a GET" {
				_, text = b.get("/release?" + form.Encode())
			} else {
				var status int
				status, text = b.post(form, try.header...)
				assert.GreaterOrEqual(b, status, 400, what)
			}
			assert.NotContains(b, text, "Released", what)
			assert.NoError(b, held.Context().Err(), what)
			i, err := c.Inspect(ctx, "lock:a")
			require.NoError(b, err)
			require.True(b, i.Held(), what)
		}
		assert.NotContains(b, b.log.String(), "released by force")
		require.NoError(b, held.Release(ctx))
		require.NoError(b, other.Release(ctx))
	})
}

func TestBadOptionsAreInvalid(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	for what, bad := range map[string]struct {
		rdb  redis.UniversalClient
		opts []Option
	}{
		"interval":           {rdb, []Option{WithInterval(time.Millisecond)}},
		"pattern":            {rdb, []Option{WithPattern("")}},
		"host":               {rdb, []Option{WithHosts("a", "")}},
		"a Ring":             {rdb: ring},
		"no client":          {},
		"nil":                {rdb: (*redis.Client)(nil)},
		"a type with a Ring": {rdb: struct{ *redis.Ring }{ring}},
	} {
		_, err := New(bad.rdb, bad.opts...)
		assert.ErrorIs(t, err, relock.ErrInvalid, what)
	}
}

// A key that holds other data, or that has no name, is no lock.
func TestPageOfWhatIsNoLock(t *testing.T) {
	onEachServer(t, func(b *bench) {
		require.NoError(b, b.rdb.HSet(ctx, "user:1", "name", "bob").Err())
		b.serve()
		status, text := b.get("/lock?name=user:1")
		assert.Equal(b, http.StatusNotFound, status)
		assert.Contains(b, text, "This key is not a lock")
		assert.NotContains(b, text, "bob")
		status, _ = b.get("/lock?name=")
		assert.Equal(b, http.StatusBadRequest, status)
	})
}

// More people than that would be a flood: they are told to come back.
func TestWatchersAreCapped(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Mini(t).Addr())
	b.serve()
	var leave []func()
	for range mostWatchers {
		l, err := b.page.sampler.watch("")
		require.NoError(t, err)
		leave = append(leave, l)
	}
	status, _ := b.get("/events?q=")
	assert.Equal(t, http.StatusServiceUnavailable, status)
	for _, l := range leave {
		l()
	}
	b.stream("/events?q=").await("No lock is held.")
}

// In a Cluster the locks of all masters are listed, and each can be released.
func TestPageShowsTheLocksOfACluster(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 0)
	c, err := relock.New(cluster.Client(), relock.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	b := &bench{T: t}
	var held []*relock.Hold
	for i := range 20 {
		held = append(held, b.hold(c, fmt.Sprint("lock:", i)))
	}
	b.serveOn(cluster.Client(), WithForcedRelease())
	b.stream("/events?q=").await("20 locks held")
	status, text := b.post(b.form("lock:7"))
	assert.Equal(t, http.StatusOK, status, text)
	for i, h := range held {
		if err := h.Release(ctx); i == 7 {
			assert.ErrorIs(t, err, relock.ErrLockLost)
		} else {
			assert.NoError(t, err)
		}
	}
}
