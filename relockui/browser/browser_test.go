package browser

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/relockui"
)

// soon is how long the browser may take on a busy machine.
const soon = 30 * time.Second

// A tab is a tab of the browser, and what went wrong in it.
type tab struct {
	*testing.T
	ctx context.Context
	url string
	mu  sync.Mutex // guards bad; a leaf
	bad []string   // dialogs, exceptions, and what the Content-Security-Policy has stopped
}

// openPage returns a browser for a page of relockui on rdb, which is served until the test has ended.
func openPage(t *testing.T, rdb redis.UniversalClient, opts ...relockui.Option) *tab {
	t.Helper()
	handler, err := relockui.New(rdb, opts...)
	require.NoError(t, err)
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		assert.NoError(t, handler.Close())
		server.Close()
	})
	return open(t, server.URL)
}

// service returns the Client of a service on the Redis of rdb.
func service(t *testing.T, rdb *redis.Client, label string) *relock.Client {
	t.Helper()
	c, err := relock.New(testredis.Client(t, rdb.Options().Addr), relock.WithLabel(label))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// open starts a browser, in which nothing may go wrong. Without one the test is skipped, or fails in CI.
func open(t *testing.T, url string) *tab {
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("there is no chromium on the PATH")
		}
		t.Skip("there is no chromium on the PATH")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	b := &tab{T: t, url: url}
	b.ctx, cancel = chromedp.NewContext(ctx, chromedp.WithListener(b.listen), chromedp.WithAllocatorOptions(
		chromedp.ExecPath(path), chromedp.NoSandbox, // which root needs, in a container
	))
	t.Cleanup(cancel)
	require.NoError(t, chromedp.Do(b.ctx)) // the tab ends with the context of the first call
	ask(b, log.Enable, cdp.Empty{})
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		assert.Empty(t, b.bad)
	})
	return b
}

// listen notes what should not happen. A dialog stays open, and everything after it fails.
func (b *tab) listen(event any) {
	switch e := event.(type) {
	case *page.EventJavascriptDialogOpening:
		b.note("dialog: " + e.Message)
	case *runtime.EventExceptionThrown:
		b.note("exception: " + e.ExceptionDetails.Text)
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError && e.Entry.Source != log.EntrySourceNetwork {
			b.note("log: " + e.Entry.Text)
		}
	}
}

func (b *tab) note(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bad = append(b.bad, text)
}

// run runs an action of the tab, and returns its result.
func run[T any](b *tab, action chromedp.Action[T]) T {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, soon)
	defer cancel()
	result, err := chromedp.Run(ctx, action)
	require.NoError(b, err)
	return result
}

// ask sends a command of the DevTools protocol.
func ask[P, R any](b *tab, command cdp.Command[P, R], params P) R {
	b.Helper()
	return run(b, func(ctx context.Context, t *chromedp.Target) (R, error) { return cdp.Call(ctx, t, command, params) })
}

// eval returns the value of an expression.
func eval[T any](b *tab, expression string) T {
	b.Helper()
	return run(b, chromedp.Evaluate[T](expression))
}

// await waits until an expression is true, also in the next page.
func (b *tab) await(expression string) {
	b.Helper()
	testredis.Await(b, expression, soon, func() bool {
		is, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](expression))
		return err == nil && is // an error means that the tab is loading a page
	})
}

// awaitThat waits until an expression has a value.
func (b *tab) awaitThat(expression, want string) {
	b.Helper()
	b.await(fmt.Sprintf("(%s) === %q", expression, want))
}

// visit loads a page and waits until it is live, if it is a page that changes.
func (b *tab) visit(path string) {
	b.Helper()
	run(b, chromedp.Navigate(b.url+path))
	b.await(`document.readyState === 'complete' && (!document.getElementById('live') || ` +
		`document.getElementById('state')?.textContent === 'Live')`)
}

// press presses a key.
func (b *tab) press(key string) {
	b.Helper()
	run(b, chromedp.KeyEvent(key))
}

// tabTo presses Tab until the element that has the focus fulfills an expression.
func (b *tab) tabTo(expression string) {
	b.Helper()
	for range 50 {
		if eval[bool](b, "(e => "+expression+")(document.activeElement)") {
			return
		}
		b.press(kb.Tab)
	}
	require.Fail(b, "the keyboard does not lead to it", expression)
}

// screen sets the size of the window and the colors that the user prefers.
func (b *tab) screen(width, height int64, scheme string) {
	b.Helper()
	ask(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 600,
	})
	ask(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
}

// picture stores a picture of the window in $RELOCK_SCREENSHOTS, if that is set, for people to look at.
func (b *tab) picture(name string) {
	b.Helper()
	dir := os.Getenv("RELOCK_SCREENSHOTS")
	if dir == "" {
		return
	}
	png := run(b, chromedp.CaptureScreenshot())
	require.NoError(b, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
}

const rows = `document.querySelectorAll('tbody tr').length`

// One test, because a browser takes seconds to start: the parts use the same locks and the same tab.
func TestPageInABrowser(t *testing.T) {
	ctx := context.Background()
	rdb := testredis.Client(t, testredis.Start(t).Addr())
	orders, billing := service(t, rdb, "orders-7d9c5b6f4-x2x9z"), service(t, rdb, "billing-1")
	evil := service(t, rdb, `<img src=x onerror=alert(2)>`)
	hold := func(c *relock.Client, name string) *relock.Hold {
		h, err := c.NewLock(name).Acquire(ctx)
		require.NoError(t, err)
		return h
	}
	for _, name := range []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, "javascript:alert(3)", "lock:" +
			strings.Repeat("unbroken", 40), "\u202egnp.exe\r\n",
	} {
		hold(evil, name)
	}
	for i := range 12 {
		hold(orders, fmt.Sprintf("lock:orders:%d", i))
	}
	stuck := hold(orders, "lock:invoices")
	permits := orders.NewSemaphore("lock:mailers", 5)
	for range 2 {
		_, err := permits.Acquire(ctx)
		require.NoError(t, err)
	}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	for n, c := range []*relock.Client{billing, evil} {
		go func() { _, _ = c.NewLock("lock:invoices").Acquire(waiting) }()
		testredis.Await(t, "it waits", soon, func() bool {
			i, err := c.Inspect(ctx, "lock:invoices")
			return err == nil && i.Waiting == n+1
		})
	}
	require.NoError(t, rdb.HSet(ctx, "java:report", "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10:42", 1).Err())
	read := testredis.Client(t, rdb.Options().Addr)
	var sent counter
	read.AddHook(&sent)
	b := openPage(t, read, relockui.WithForcedRelease(), relockui.WithTitle("Locks at redis.example:6379"))
	b.screen(1280, 800, "light")
	b.visit("/")
	const held = 5 + 12 + 1 + 1 + 1

	// What is stuck comes first, and each lock has a row.
	b.await(rows + fmt.Sprintf(" === %d", held))
	b.await(`document.querySelector('tbody tr')?.textContent.includes('lock:invoices') === true`)
	b.await(`document.querySelector('tbody tr td[data-name="Longest wait"]').textContent.match(/^\d+s$/) !== null`)
	time.Sleep(3 * time.Second) // for a picture in which they have waited
	b.picture("list-light")

	// Light and dark.
	background := `getComputedStyle(document.body).backgroundColor`
	assert.Equal(t, "rgb(255, 255, 255)", eval[string](b, background))
	b.screen(1280, 800, "dark")
	assert.Equal(t, "rgb(22, 22, 22)", eval[string](b, background))
	b.picture("list-dark")

	// A phone scrolls in one direction only.
	for _, scheme := range []string{"light", "dark"} {
		b.screen(375, 812, scheme)
		for name, path := range map[string]string{
			"list": "/", "lock": "/lock?name=lock:invoices", "long": "/lock?name=lock:" + strings.Repeat("unbroken", 40),
			"release": "/release?name=lock:mailers", "notice": "/lock?name=",
		} {
			b.visit(path)
			assert.LessOrEqual(t, eval[int](b, `document.documentElement.scrollWidth`), 375, path)
			b.picture(name + "-375-" + scheme)
		}
	}
	b.screen(1280, 800, "light")
	b.visit("/lock?name=lock:invoices")
	b.picture("lock-light")

	// A screen reader finds a table with a name, headers and links, and hears whether the page is live.
	b.visit("/")
	named := b.accessible()
	assert.Contains(t, named, "table: Locks that are held; those that others have waited for the longest come first")
	assert.Contains(t, named, "columnheader: Longest wait")
	assert.Contains(t, named, "link: lock:invoices")
	assert.Contains(t, named, "searchbox: Filter")
	assert.Contains(t, named, "button: Pause")
	assert.Contains(t, named, "status: ")

	// With the keyboard alone: filter, open a lock, look at its waiters.
	b.tabTo(`e.id === 'filter'`)
	b.press("BILLING-1") // who waits for it
	b.await(rows + " === 1")
	b.awaitThat("location.search", "?q=BILLING-1")
	b.tabTo(`e.tagName === 'A' && e.textContent === 'lock:invoices'`)

	// The page changes under the focus, and the focus stays.
	first := hold(orders, "lock:billing-1:a")
	b.await(rows + " === 2")
	assert.Equal(t, "lock:invoices", eval[string](b, `document.activeElement.textContent`))
	require.NoError(t, first.Release(ctx))
	b.await(rows + " === 1")
	assert.Equal(t, "lock:invoices", eval[string](b, `document.activeElement.textContent`))
	b.press(kb.Enter)
	b.await(`location.pathname === '/lock' && document.querySelectorAll('tbody').length === 2 && ` +
		`document.querySelectorAll('tbody')[1].rows.length === 2`)
	b.await(`document.getElementById('state')?.textContent === 'Live'`)

	// A pause is a pause.
	b.tabTo(`e.id === 'pause'`)
	b.press(kb.Enter)
	b.await(`document.getElementById('state')?.textContent === 'Paused' && ` +
		`document.getElementById('pause')?.textContent === 'Resume'`)
	b.press(kb.Enter)
	b.await(`document.getElementById('state')?.textContent === 'Live'`)

	// A tab in the background costs nothing.
	eval[bool](b, `Object.defineProperty(document, 'hidden', {value: true, configurable: true}) && `+
		`document.dispatchEvent(new Event('visibilitychange'))`)
	before := sent.Load()
	testredis.Await(t, "the page is not read any more", soon, func() bool {
		last := before
		before = sent.Load()
		time.Sleep(2 * time.Second) // two intervals
		return before == last && sent.Load() == before
	})
	eval[bool](b, `delete document.hidden && document.dispatchEvent(new Event('visibilitychange'))`)
	testredis.Await(t, "the page is read again", soon, func() bool { return sent.Load() > before })

	// A release by force takes a confirmation, and then the page of the lock shows who has it now.
	b.tabTo(`e.textContent === 'Release by force…'`)
	b.press(kb.Enter)
	b.await(`location.pathname === '/release' && document.readyState === 'complete'`)
	b.picture("release-light")
	b.tabTo(`e.tagName === 'BUTTON'`)
	b.press(kb.Enter) // without the confirmation, which the browser demands
	b.await(`document.querySelector('input[name=sure]')?.validity.valueMissing === true`)
	b.tabTo(`e.name === 'sure'`)
	b.press(" ")
	b.tabTo(`e.tagName === 'BUTTON'`)
	b.press(kb.Enter)
	b.await(`document.querySelector('h2')?.textContent === 'Released'`)
	b.picture("released-light")
	assert.ErrorIs(t, stuck.Release(ctx), relock.ErrLockLost)
	b.tabTo(`e.textContent === 'Look at the lock'`)
	b.press(kb.Enter)
	b.await(`location.pathname === '/lock' && document.querySelector('tbody')?.textContent.includes('billing-1') === true`)

	// A name and a label are never code.
	for _, name := range []string{`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, "javascript:alert(3)"} {
		b.visit("/")
		eval[bool](b, fmt.Sprintf(`[...document.querySelectorAll('tbody a')].find(a => `+
			`a.textContent.includes(%q)).click() === undefined`, name[2:10]))
		b.await(`location.pathname === '/lock' && document.getElementById('state')?.textContent === 'Live'`)
		assert.Equal(t, "<img src=x onerror=alert(2)>",
			eval[string](b, `document.querySelector('tbody th bdi').textContent.split(' on ')[0]`))
	}
}

// No row moves while one of them has the pointer or the focus, whatever happens to the locks. On a phone only those are
// listed that others wait for, until the user says otherwise.
func TestRowInUseDoesNotMove(t *testing.T) {
	ctx := context.Background()
	rdb := testredis.Client(t, testredis.Start(t).Addr())
	holder, waiter := service(t, rdb, "الطلبات"), service(t, rdb, "倉庫-サービス")
	holds := make(map[string]*relock.Hold)
	hold := func(name string) {
		h, err := holder.NewLock(name, relock.Fenced()).Acquire(ctx)
		require.NoError(t, err)
		holds[name] = h
	}
	wait := func(name string) (end context.CancelFunc) {
		waiting, end := context.WithCancel(ctx)
		t.Cleanup(end)
		go func() { _, _ = waiter.NewLock(name, relock.Fenced()).Acquire(waiting) }()
		return end
	}
	for _, name := range []string{"lock:b", "lock:c", "lock:d", "lock:在庫/東京"} {
		hold(name)
	}
	key := "relock_client:{" + holder.ID() + "}"
	testredis.Await(t, "the Client has written its own label", soon, func() bool {
		return rdb.HExists(ctx, key, "label").Val()
	})
	require.NoError(t, rdb.HSet(ctx, key, "label", "الطلبات 7", "host", "שרת-3").Err())
	b := openPage(t, testredis.Client(t, rdb.Options().Addr), relockui.WithInterval(200*time.Millisecond))
	b.screen(1280, 800, "light")
	b.visit("/")
	const link = `[...document.querySelectorAll('tbody a')].find(a => a.textContent === 'lock:c')`
	const order = `[...document.querySelectorAll('tbody tr')].map(r => ` +
		`r.querySelector('a').textContent.slice(5) + (r.className === 'left' ? '-' : '')).join(' ')`
	is := func(want string) { b.awaitThat(order, want) }
	is("b c d 在庫/東京")
	for _, use := range []string{"pointer", "focus"} {
		top := eval[float64](b, link+`.getBoundingClientRect().top`)
		if use == "pointer" {
			run(b, chromedp.MouseEvent(chromedp.MouseMoved,
				eval[float64](b, link+`.getBoundingClientRect().left + 5`), top+5))
		} else {
			eval[bool](b, link+`.focus() === undefined`)
		}
		end := wait("lock:d")
		hold("lock:a")
		require.NoError(t, holds["lock:b"].Release(ctx))
		is("b- c d 在庫/東京 a")
		b.await(`document.querySelector('tr.awaited a')?.textContent === 'lock:d'`)
		assert.Equal(t, top, eval[float64](b, link+`.getBoundingClientRect().top`), use)
		assert.True(t, eval[bool](b, `document.querySelector('tr.awaited strong') === null`), "it may be an election")
		b.picture("kept-" + use)
		require.NoError(t, holds["lock:a"].Release(ctx))
		is("b- c d 在庫/東京") // nothing is behind the row that goes
		hold("lock:a")
		is("b- c d 在庫/東京 a")
		if use == "pointer" {
			run(b, chromedp.MouseEvent(chromedp.MouseMoved, 600, 700))
		} else {
			eval[bool](b, `document.activeElement.blur() === undefined`)
		}
		is("d a c 在庫/東京")

		end()
		require.NoError(t, holds["lock:a"].Release(ctx))
		hold("lock:b")
		is("b c d 在庫/東京")
	}

	wait("lock:d")
	wait("lock:在庫/東京")
	b.screen(375, 812, "light")
	run(b, chromedp.Navigate(b.url+"/"))
	is("d 在庫/東京")
	b.picture("waiting-375-light")
	b.tabTo(`e.id === 'waiting'`)
	assert.Contains(t, b.accessible(), "switch: Only waiting")
	b.press(" ")
	is("d 在庫/東京 b c")
	assert.Equal(t, "?waiting=0", eval[string](b, "location.search"))
	b.visit("/?waiting=0")
	is("d 在庫/東京 b c")
	b.visit("/lock?name=lock:d")
	b.await(`document.querySelector('button[data-copy]') !== null`)
	eval[bool](b, `document.addEventListener('copy', () => { window.copied = getSelection().toString() }) === undefined`)
	eval[bool](b, `delete Navigator.prototype.clipboard`)
	b.tabTo(`e.dataset.copy !== undefined && e.closest('table') !== null`)
	b.press(kb.Enter) // without a clipboard, as on a page that is not served over TLS
	b.awaitThat(`window.copied || ''`, holder.ID()[:8])
	b.tabTo(`e.dataset.copy !== undefined && e.closest('h2') !== null`)
	b.press(kb.Enter)
	b.awaitThat(`window.copied || ''`, "lock:d")
}

// While Redis hangs the page says as of when it is, and it is live again soon after the hang, and not before.
func TestPageIsNotLiveOverOldData(t *testing.T) {
	ctx := context.Background()
	redisServer := testredis.Start(t)
	rdb := testredis.Client(t, redisServer.Addr())
	_, err := service(t, rdb, "orders-1").NewLock("lock:a").Acquire(ctx)
	require.NoError(t, err)
	b := openPage(t, rdb)
	b.screen(1280, 800, "light")
	for _, path := range []string{"/", "/lock?name=lock:a"} {
		b.visit(path)
		redisServer.Freeze()
		b.await(`/^As of \d+s ago: $/.test(document.getElementById('age').textContent) && ` +
			`document.getElementById('state').textContent !== 'Live'`)
		b.awaitThat(`document.getElementById('state').textContent`, "Redis does not answer")
		b.await(`/^"As of \d+s ago: Redis does not answer"$/.test(getComputedStyle(document.querySelector('main'), ` +
			`'::after').content)`)
		b.picture("hangs")
		eval[bool](b, `window.said = [], new MutationObserver(() => window.said.push(`+
			`document.getElementById('state').textContent)).observe(document.getElementById('state'), `+
			`{childList: true, characterData: true, subtree: true}) === undefined`)
		b.await(`/As of (1[6-9]|[2-9]\d)s ago/.test(document.getElementById('age').textContent)`)
		assert.False(t, eval[bool](b, `window.said.includes('Live')`), path)
		redisServer.Thaw()
		thawed := time.Now()
		b.awaitThat(`document.getElementById('state').textContent`, "Live")
		assert.Less(t, time.Since(thawed), 10*time.Second, path)
		assert.Empty(t, eval[string](b, `document.getElementById('age').textContent`))
	}
}

// No text runs into another one, the names of locks have room, and no column moves when a text changes.
func TestTablesHaveRoomForTheirTexts(t *testing.T) {
	ctx := context.Background()
	rdb := testredis.Client(t, testredis.Start(t).Addr())
	c, other := service(t, rdb, "orders-7d9c5b6f4-x2x9z"), service(t, rdb, "billing-5c8d7f9b6-abcde")
	for _, name := range []string{"lock:invoices:2026-11", "lock:customers:eu-central-1:42"} {
		_, err := c.NewLock(name).Acquire(ctx)
		require.NoError(t, err)
	}
	waiting, end := context.WithCancel(ctx)
	defer end()
	go func() { _, _ = other.NewLock("lock:invoices:2026-11").Acquire(waiting) }()
	b := openPage(t, testredis.Client(t, rdb.Options().Addr), relockui.WithForcedRelease())
	testredis.Await(t, "the wait and the label", soon, func() bool {
		i, err := c.Inspect(ctx, "lock:invoices:2026-11")
		return err == nil && i.Waiting == 1 && i.Holders[0].Label != "" && i.Waiters[0].Label != ""
	})
	const tight = `[...document.querySelectorAll('th, td')].filter(c => c.scrollWidth > c.clientWidth + 1 && ` +
		`getComputedStyle(c.closest('thead') || c).position !== 'absolute').map(c => c.textContent).join('; ')`
	set := func(column, text string) {
		eval[bool](b, fmt.Sprintf(`[...document.querySelectorAll('td[data-name=%q]')].forEach(c => c.textContent = %q) `+
			`=== undefined`, column, text))
	}
	const lefts = `[...document.querySelectorAll('thead th')].map(c => Math.round(c.getBoundingClientRect().left)).` +
		`join(' ')`
	for _, width := range []int64{1280, 1024, 900, 768, 375} {
		for _, scheme := range []string{"light", "dark"} {
			b.screen(width, 800, scheme)
			b.visit("/?waiting=0")
			b.picture(fmt.Sprintf("room-list-%d-%s", width, scheme))
			assert.Equal(t, width > 1120 || width < 704,
				eval[bool](b, `document.querySelector('td[data-name=Lease]').offsetWidth > 0`), width)
			eval[bool](b, `document.getElementById('pause').click() === undefined`)
			set("Waiting", "1,000, and 20 gone")
			set("Held for", "at least 100h59m59s")
			assert.Empty(t, eval[string](b, tight), width)
			assert.Greater(t, eval[int](b, `document.querySelector('tbody th').clientWidth`), 200, width)
			assert.LessOrEqual(t, eval[int64](b, `document.documentElement.scrollWidth`), width)

			b.visit("/lock?name=lock:invoices:2026-11")
			b.picture(fmt.Sprintf("room-lock-%d-%s", width, scheme))
			eval[bool](b, `document.getElementById('pause').click() === undefined`)
			before := eval[string](b, lefts)
			set("Lease grows", "no, not in the last 11s: its process has ended, is paused, cannot reach Redis, or asked for "+
				"a lease that is not renewed")
			set("Held for", "at least 100h59m59s")
			assert.Equal(t, before, eval[string](b, lefts), width)
			assert.Empty(t, eval[string](b, tight), width)
			assert.Equal(t, 1, eval[int](b, `(() => { const r = document.createRange(); `+
				`r.selectNodeContents(document.querySelector('td[data-name=As]')); return r.getClientRects().length })()`),
				"the word holder is in one line at %d", width)
			assert.LessOrEqual(t, eval[int64](b, `document.documentElement.scrollWidth`), width)

			b.visit("/release?name=lock:invoices:2026-11")
			b.picture(fmt.Sprintf("room-release-%d-%s", width, scheme))
			assert.True(t, eval[bool](b, `document.querySelector('input[name=sure]').getBoundingClientRect().right <= `+
				`document.querySelector('input[name=sure] + span').getBoundingClientRect().left`),
				"the text is beside its box at %d", width)
		}
	}
}

// A counter is a hook that counts the requests of a Redis client.
type counter struct{ atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.Add(1)
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.Add(1)
		return next(ctx, cmds)
	}
}

// accessible returns the elements of the accessibility tree, each as role and name.
func (b *tab) accessible() (all []string) {
	b.Helper()
	text := func(v *accessibility.Value) string {
		if v == nil {
			return ""
		}
		return strings.Trim(string(v.Value), `"`)
	}
	for _, n := range ask(b, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
		if !n.Ignored {
			all = append(all, text(n.Role)+": "+text(n.Name))
		}
	}
	return all
}
