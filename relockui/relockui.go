// Package relockui is a web page that shows the locks of a Redis: who holds them, who waits for them, and for how long.
// The locks that others have waited for the longest come first.
//
// A [Handler] is an [http.Handler]. It needs the Redis client, and nothing of the services that use the locks:
//
//	page, err := relockui.New(rdb)
//	if err != nil {
//		return err
//	}
//	defer page.Close()
//	http.Handle("/locks/", http.StripPrefix("/locks", page))
//
// The command relockctl serve does the same from a shell.
//
// # Access
//
// The page has no authentication of its own: everyone who can send it a request can read the names of all locks, and
// the labels and hosts of the processes that use them. Put it behind something that authenticates, or serve it on a
// loopback address only. A request is refused unless its Host header is in a list (see [WithHosts]), so that a web site
// cannot read the page through the browser of a user who may (DNS rebinding).
//
// The page changes nothing in Redis, unless [WithForcedRelease] allows it to release locks by force.
//
// # Cost
//
// While no browser shows the page, no command is sent to Redis. While browsers do, however many they are, one sample is
// taken in each interval (see [WithInterval]), and then none for at least four times as long as Redis has worked for
// it. A time in which Redis does not answer at all hardly counts as work. A sample sends at most 50 SCAN to each
// master, and HRANDFIELD for each hash that they find and that is not yet known as a lock. For each lock it sends an
// EVALSHA, and an HMGET for each Client of relock that holds it or waits for it. At most 5,000 locks are listed. A
// keyspace of more than some 16,000 keys is gone through in several samples, so that a new lock appears later there.
package relockui

// The Handler: its options, which requests it accepts, and the pages that one request answers.
//
// Rules: what is read from Redis reaches the browser through html/template only. No page has an inline script or style,
// and the Content-Security-Policy forbids them. No holder ID leaves the process: see view.go.

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/send"
)

type options struct {
	hosts    []string
	interval time.Duration
	pattern  string
	title    string
	force    bool
	logger   *slog.Logger
}

// An Option configures a [Handler]: see [New].
type Option func(*options)

// WithHosts sets the hosts under which browsers reach the page, in addition to localhost, 127.0.0.1 and [::1]. A
// request with another Host header is refused. A host is a name or an address without a port.
func WithHosts(hosts ...string) Option {
	return func(o *options) { o.hosts = append(o.hosts, hosts...) }
}

// WithInterval sets the time between two samples while a user looks at the page. The default is 1s, and the minimum is
// 100ms.
func WithInterval(d time.Duration) Option {
	return func(o *options) { o.interval = d }
}

// WithPattern sets a pattern of Redis, such as "lock:orders:*": only locks with such a name are listed, and only they
// can be released with [WithForcedRelease]. It does not limit what can be read: the page of a single lock shows any
// lock. The default is "*".
func WithPattern(pattern string) Option {
	return func(o *options) { o.pattern = pattern }
}

// WithTitle sets a text that the page shows as its title, for example the address of the Redis. The default is "Locks".
func WithTitle(title string) Option {
	return func(o *options) { o.title = title }
}

// WithForcedRelease lets the page release locks by force, after a confirmation: see [relock.Client.ForceUnlock]. A
// request to do so has to come from the page itself, only the holders that it has shown lose the lock, and a lock that
// does not match [WithPattern] is refused. Each release is logged as a warning. By default the page is read-only.
func WithForcedRelease() Option {
	return func(o *options) { o.force = true }
}

// WithLogger sets the logger of forced releases, and of nothing else. The default is slog.Default().
func WithLogger(logger *slog.Logger) Option {
	return func(o *options) { o.logger = logger }
}

const (
	leastInterval = 100 * time.Millisecond
	longestLink   = 4096 // bytes of a name for which the page has links
	inspections   = 4    // how many requests may inspect a lock at the same time
	patience      = 10 * time.Second
	listTime      = 3 * time.Second // how long the list waits for a new sample
	freshTime     = 3 * time.Second // or three intervals: what is older is not live
)

// A Handler serves the page. It may be used by any number of goroutines at once, and under any path that ends with a
// slash: use [http.StripPrefix].
type Handler struct {
	options
	mux     *http.ServeMux
	client  *relock.Client
	sampler *sampler
	key     [32]byte      // of what the forms of this Handler contain
	turns   chan struct{} // one for each request that may inspect a lock

	writeTime time.Duration // mostWriteTime, except in tests
}

// New returns a Handler that shows the locks that rdb has. It sends no request. rdb is or embeds a *redis.Client
// or a *redis.ClusterClient, and stays open when the Handler is closed. The error is [relock.ErrInvalid] for a bad option,
// and for any other client.
func New(rdb redis.UniversalClient, opts ...Option) (*Handler, error) {
	o := options{hosts: []string{"localhost", "127.0.0.1", "::1"}, interval: time.Second, pattern: "*", title: "Locks"}
	for _, opt := range opts {
		opt(&o)
	}
	if o.logger == nil {
		o.logger = slog.Default()
	}
	for i, host := range o.hosts {
		o.hosts[i] = strings.ToLower(strings.Trim(host, "[]"))
	}
	if one, cluster := send.OptionsOf(rdb); one == nil && cluster == nil {
		return nil, fmt.Errorf("relockui: new: %w: the Redis client is a %T", relock.ErrInvalid, rdb)
	}
	switch {
	case o.interval < leastInterval:
		return nil, fmt.Errorf(
			"relockui: new: %w: WithInterval(%v): at least %v", relock.ErrInvalid, o.interval, leastInterval)
	case o.pattern == "":
		return nil, fmt.Errorf("relockui: new: %w: WithPattern: the pattern is empty", relock.ErrInvalid)
	case slices.Contains(o.hosts, ""):
		return nil, fmt.Errorf("relockui: new: %w: WithHosts: a host is empty", relock.ErrInvalid)
	}
	client, err := relock.New(rdb, relock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, fmt.Errorf("relockui: %w", err)
	}
	h := &Handler{
		options: o, mux: http.NewServeMux(), client: client,
		turns: make(chan struct{}, inspections), writeTime: mostWriteTime,
		sampler: newSampler(client, rdb, o.pattern, o.interval),
	}
	_, _ = rand.Read(h.key[:]) // which never fails
	h.mux.HandleFunc("GET /{$}", h.list)
	h.mux.HandleFunc("GET /lock", h.lock)
	h.mux.HandleFunc("GET /events", h.events)
	h.mux.HandleFunc("GET /page.css", asset("text/css; charset=utf-8", style))
	h.mux.HandleFunc("GET /page.js", asset("text/javascript; charset=utf-8", script))
	if o.force {
		h.mux.HandleFunc("GET /release", h.confirm)
		h.mux.HandleFunc("POST /release", h.release)
	}
	return h, nil
}

// Close ends all streams, and returns when no goroutine of the Handler is left. Requests that come later are answered
// with status 503. It does not close the Redis client. Further calls do nothing.
func (h *Handler) Close() error {
	h.sampler.close()
	return h.client.Close()
}

// ServeHTTP serves the page.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "+
		"img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "same-origin") // with no-referrer a form would have no Origin
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	if !h.knows(r.Host) {
		http.Error(w, "This page is not served for the host "+fmt.Sprintf("%.100q", r.Host)+
			". It has to be in the list of hosts: see WithHosts, or --hosts of relockctl serve.", http.StatusMisdirectedRequest)
		return
	}
	h.mux.ServeHTTP(w, r)
}

// knows reports whether host, with or without a port, is in the list.
func (h *Handler) knows(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return slices.Contains(h.hosts, strings.ToLower(strings.Trim(host, "[]")))
}

//go:embed page.css
var style []byte

//go:embed page.js
var script []byte

//go:embed page.html
var pageSource string

var pages = template.Must(template.New("page").Parse(pageSource))

func asset(contentType string, content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(content) // an error is the end of the connection
	}
}

// A document is what the template of a page gets.
type document struct {
	Title, Redis string
	Query        string
	Waiting      bool   // only locks that others wait for are listed
	Undecided    bool   // the user has not said whether to, so that page.js does on a phone
	Events       string // the address of the stream; "": the page does not change by itself
	Age          string // of what is shown: see ageText
	Fresh        int64  // the age in milliseconds from which it is old
	List         *listView
	Lock         *lockView
	Form         *formView
	Notice       *noticeView
}

// show writes a page.
func (h *Handler) show(w http.ResponseWriter, status int, d document) {
	d.Redis, d.Fresh = h.title, max(freshTime, 3*h.interval).Milliseconds()
	if d.Title == "" {
		d.Title = h.title
	}
	var text strings.Builder
	if err := pages.ExecuteTemplate(&text, "document", d); err != nil {
		http.Error(w, "The page cannot be shown: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text.String())) // an error is the end of the connection
}

// list answers with the page of all locks.
func (h *Handler) list(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), listTime)
	defer cancel()
	s, err := h.sampler.sample(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s, err = h.sampler.last(err), nil // the stream has what comes later
	}
	if err != nil {
		h.fail(w, "", err)
		return
	}
	c := choiceOf(r)
	h.show(w, http.StatusOK, document{
		Query: c.q, Waiting: c.waiting, Undecided: !r.Form.Has("waiting"), Events: "events?q=", List: newListView(s, c),
		Age: ageText(s.at, s.due),
	})
}

// lock answers with the page of one lock.
func (h *Handler) lock(w http.ResponseWriter, r *http.Request) {
	name := r.FormValue("name")
	i, err := h.inspect(r, name)
	if err != nil {
		h.fail(w, name, err)
		return
	}
	l := newLock(i)
	h.show(w, http.StatusOK, document{
		Title: readable(name) + " · " + h.title, Events: h.eventsOf(name),
		Lock: newLockView(&l, h.sampler.look(&l), h.mayRelease(name), nil), Age: ageText(time.Now(), time.Now()),
	})
}

// inspect inspects a lock for one request. Only a few requests do so at a time.
func (h *Handler) inspect(r *http.Request, name string) (relock.Inspection, error) {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	select {
	case h.turns <- struct{}{}:
		defer func() { <-h.turns }()
	case <-ctx.Done():
		return relock.Inspection{}, ctx.Err()
	}
	return h.client.Inspect(ctx, name)
}

// fail answers a request that Redis, or the Handler, could not answer.
func (h *Handler) fail(w http.ResponseWriter, name string, err error) {
	status, title := http.StatusBadGateway, "Redis cannot be read"
	switch {
	case errors.Is(err, relock.ErrClosed):
		status, title = http.StatusServiceUnavailable, "This page is closed"
	case errors.Is(err, relock.ErrInvalid):
		status, title = http.StatusBadRequest, "This is not the name of a lock"
	case errors.Is(err, relock.ErrNotALock):
		status, title = http.StatusNotFound, "This key is not a lock"
	}
	h.show(w, status, document{Title: title, Notice: &noticeView{Name: name, Title: title, Text: errorText(err)}})
}
