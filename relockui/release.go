package relockui

// The release of a lock by force.
//
// Rules: it is there only with WithForcedRelease. It takes two steps: a page that shows the holders and asks, and a
// POST from that page. Both refuse a lock that does not match the pattern of the page. The POST needs an Origin that is
// this page, a token that only this page has, and the confirmation. Of each holder the form has a seal: a code of its
// holder ID, made with a key that does not leave the process. Only the holders whose seals the form has lose the lock,
// and only if they still have it when Redis runs the script.

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relock-go/relock"
)

const (
	tokenTime = 10 * time.Minute
	mostForm  = 64 << 10 // bytes of a form
)

// A formView is the page that asks whether to release a lock.
type formView struct {
	Name    string // in percent-encoding, because a form cannot send any bytes
	Lock    *lockView
	Token   string
	Several bool
	Back    string
}

// A noticeView is a page that reports what has happened.
type noticeView struct {
	Name, Title, Text string
	Back              string
}

// code returns an authentication code of texts, for one purpose.
func (h *Handler) code(purpose string, texts ...string) string {
	mac := hmac.New(sha256.New, h.key[:])
	for _, text := range append([]string{purpose}, texts...) {
		_, _ = fmt.Fprintf(mac, "%d:%s", len(text), text) // which never fails
	}
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// seal stands for a holder of a lock in a form.
func (h *Handler) seal(name string, holder relock.Holder) string {
	return h.code("holder", name, holder.Field, strconv.Itoa(holder.Permits))
}

// token returns the token of a form that was shown at that time.
func (h *Handler) token(name string, at time.Time) string {
	seconds := strconv.FormatInt(at.Unix(), 10)
	return seconds + "." + h.code("token", name, seconds)
}

func (h *Handler) tokenIsGood(name, token string) bool {
	seconds, _, _ := strings.Cut(token, ".")
	n, err := strconv.ParseInt(seconds, 10, 64)
	at := time.Unix(n, 0)
	return err == nil && hmac.Equal([]byte(token), []byte(h.token(name, at))) && time.Since(at) < tokenTime
}

// mayRelease reports whether the page may release the lock.
func (h *Handler) mayRelease(name string) bool { return h.force && matches(h.pattern, name) }

// refuse answers a request to release a lock that does not match the pattern.
func (h *Handler) refuse(w http.ResponseWriter, name string) {
	h.notice(w, http.StatusForbidden, name, "Not released",
		"This page releases only locks that match its pattern, "+readable(h.pattern)+".")
}

// confirm answers with the form.
func (h *Handler) confirm(w http.ResponseWriter, r *http.Request) {
	name := r.FormValue("name")
	if !h.mayRelease(name) {
		h.refuse(w, name)
		return
	}
	i, err := h.inspect(r, name)
	if err != nil {
		h.fail(w, name, err)
		return
	}
	l := newLock(i)
	if len(l.Holders) == 0 {
		h.notice(w, http.StatusOK, name, "Nothing to release", "Nobody holds this lock.")
		return
	}
	v := newLockView(&l, h.sampler.look(&l), false, nil)
	for n := range v.Holders {
		v.Holders[n].Seal = h.seal(name, l.Holders[n])
	}
	h.show(w, http.StatusOK, document{Title: "Release " + readable(name), Form: &formView{
		Name: url.QueryEscape(name), Lock: v, Token: h.token(name, time.Now()), Several: len(v.Holders) > 1,
		Back: link("lock", name),
	}})
}

func (h *Handler) notice(w http.ResponseWriter, status int, name, title, text string) {
	h.show(w, status, document{Title: title, Notice: &noticeView{readable(name), title, text, link("lock", name)}})
}

// release releases the holds that the form names.
func (h *Handler) release(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, mostForm)
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(patience)) // not all servers have it
	if err := r.ParseForm(); err != nil {
		http.Error(w, "The form cannot be read.", http.StatusBadRequest)
		return
	}
	name, err := url.QueryUnescape(r.PostForm.Get("name"))
	if err != nil {
		http.Error(w, "The form cannot be read.", http.StatusBadRequest)
		return
	}
	seals := r.PostForm["holder"]
	switch {
	case !fromHere(r):
		http.Error(w, "Not released: the request does not come from this page. A proxy in front of it has to pass on the "+
			"headers Host and Origin.", http.StatusForbidden)
		return
	case !h.mayRelease(name):
		h.refuse(w, name)
		return
	case !h.tokenIsGood(name, r.PostForm.Get("token")):
		h.notice(w, http.StatusForbidden, name, "Not released",
			"The page on which you confirmed it is too old, or the program has been restarted since. Look at the lock again.")
		return
	case r.PostForm.Get("sure") != "yes" || len(seals) == 0:
		h.notice(w, http.StatusBadRequest, name, "Not released",
			"You have not chosen a holder, or not confirmed that it may lose the lock.")
		return
	}
	i, err := h.inspect(r, name)
	if err != nil {
		h.fail(w, name, err)
		return
	}
	i.Holders = slices.DeleteFunc(i.Holders, func(holder relock.Holder) bool {
		return !slices.Contains(seals, h.seal(name, holder))
	})
	freed, err := h.client.ForceUnlock(r.Context(), i)
	switch {
	case err != nil:
		h.logger.Error("relockui: a lock could not be released by force",
			"lock", readable(name), "from", r.RemoteAddr, "error", err)
		h.fail(w, name, err)
	case !freed:
		h.notice(w, http.StatusConflict, name, "Not released",
			"The holder that you saw does not hold the lock any more. Nobody else has lost it.")
	default:
		h.logger.Warn("relockui: a lock was released by force",
			"lock", readable(name), "holders", len(i.Holders), "from", r.RemoteAddr)
		h.notice(w, http.StatusOK, name, "Released", "The lock was released. Its holder was not asked, and may still be "+
			"working. A process that uses relock, and has held a lock for more than a second, is told by a message, usually "+
			"within milliseconds. Without that message, a holder notices when it next renews its lease or asks Redis, or when "+
			"its lease expires.")
	}
}

// fromHere reports whether a request comes from a page of this Handler. Every browser sends Origin with a POST. Behind
// a proxy that ends TLS the scheme is not known here, so only the hosts are compared.
func fromHere(r *http.Request) bool {
	origin, err := url.Parse(r.Header.Get("Origin"))
	site := r.Header.Get("Sec-Fetch-Site")
	return err == nil && strings.EqualFold(origin.Host, r.Host) && (site == "" || site == "same-origin")
}
