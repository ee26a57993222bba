package relockui

// The stream of server-sent events that keeps a page up to date.
//
// Rules: the first line of an event is the age of what it shows: see ageText. The others are the part of the page that
// changes, as HTML from the template that the page was made with. Each stream is written by the goroutine of its own
// request, and a write has a time limit: a browser that does not read loses its stream, and no other waits for it.
// Other web sites may not open a stream, because it has a cost.

import (
	"bytes"
	"errors"
	"net/http"
	"time"
)

// mostWriteTime is how long a browser may take to accept an event.
const mostWriteTime = 10 * time.Second

// eventsOf returns the address of the stream of one lock.
func (h *Handler) eventsOf(name string) string { return link("events", name) }

// events answers with the stream of a lock, or of all locks that were chosen.
func (h *Handler) events(w http.ResponseWriter, r *http.Request) {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		http.Error(w, "A stream is for the page itself.", http.StatusForbidden)
		return
	}
	name, c := r.FormValue("name"), choiceOf(r)
	leave, err := h.sampler.watch(name)
	if err != nil {
		w.Header().Set("Retry-After", "5")
		http.Error(w, errorText(err), http.StatusServiceUnavailable)
		return
	}
	defer leave()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx passes each event on at once
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // of the server, which would end the stream; not all servers have it
	if h.send(w, out, "retry: 2000\n\n") != nil {
		return
	}
	for s := h.sampler.next(r.Context(), nil); s != nil; s = h.sampler.next(r.Context(), s) {
		text, err := s.events.get(name, c, func() (string, error) { return h.event(s, name, c) })
		if err == nil && text != "" {
			err = h.send(w, out, "data: "+ageText(s.at, s.due)+"\n"+text)
		}
		if err != nil {
			return
		}
	}
}

// send writes text, within the time limit.
func (h *Handler) send(w http.ResponseWriter, out *http.ResponseController, text string) error {
	if err := out.SetWriteDeadline(time.Now().Add(h.writeTime)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := w.Write([]byte(text)); err != nil {
		return err
	}
	return out.Flush()
}

// event returns the event that brings a page up to date, without its first line, or "" if there is nothing to show yet.
func (h *Handler) event(s *sample, name string, c choice) (string, error) {
	var html bytes.Buffer
	var err error
	if name == "" {
		err = pages.ExecuteTemplate(&html, "list", newListView(s, c))
	} else {
		l, there := s.watched[name]
		if !there { // a user began to look at it after the sample had begun, or it is not a lock
			return "", nil // what the user sees is newer
		}
		err = pages.ExecuteTemplate(&html, "lock", newLockView(l, s.since, h.mayRelease(name), s.problem))
	}
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	text.WriteString("data: ")
	for _, b := range html.Bytes() {
		switch b {
		case '\n':
			text.WriteString("\ndata: ")
		case '\r': // which would end a line, too
		default:
			text.WriteByte(b)
		}
	}
	text.WriteString("\n\n")
	return text.String(), nil
}
