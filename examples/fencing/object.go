package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// An object is what is stored.
type object struct {
	Stock int   `json:"stock"`
	Token int64 `json:"token"`
}

// An objectStock is an object in a store that has conditional writes.
type objectStock struct {
	url  string
	etag string // of the version that was read
}

func (s *objectStock) look(ctx context.Context, token int64) (int, error) {
	o, etag, err := s.get(ctx, token)
	if err != nil {
		return 0, err
	}
	s.etag = etag
	return o.Stock, s.put(ctx, object{o.Stock, token}) // admits the token
}

// write writes a new version, if the one that look has written is still there.
func (s *objectStock) write(ctx context.Context, token int64, stock int) error {
	return s.put(ctx, object{stock, token})
}

func (s *objectStock) get(ctx context.Context, token int64) (o object, etag string, err error) {
	header, body, err := s.do(ctx, http.MethodGet, "")
	if err != nil {
		return o, "", err
	}
	if err := json.Unmarshal(body, &o); err != nil {
		return o, "", err
	}
	if o.Token > token {
		return o, "", errStale
	}
	return o, header.Get("ETag"), nil
}

// put replaces the version that look has written. If another one is there, a later holder has written it, or an earlier
// one that was late: then the holder looks again.
func (s *objectStock) put(ctx context.Context, o object) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	header, _, err := s.do(ctx, http.MethodPut, string(body))
	if errors.Is(err, errChanged) {
		if _, _, stale := s.get(ctx, o.Token); stale != nil {
			return stale
		}
	}
	if err == nil {
		s.etag = header.Get("ETag")
	}
	return err
}

var errChanged = errors.New("the object has changed: look again")

func (s *objectStock) do(ctx context.Context, method, body string) (http.Header, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, s.url, strings.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	if method == http.MethodPut {
		request.Header.Set("If-Match", s.etag)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return nil, nil, err
	case response.StatusCode == http.StatusPreconditionFailed:
		return nil, nil, errChanged
	case response.StatusCode != http.StatusOK:
		return nil, nil, fmt.Errorf("%s: %s", response.Status, text)
	}
	return response.Header, text, nil
}

// An objectStore has one object, and does with If-Match what the stores of cloud providers do.
type objectStore struct {
	mu      sync.Mutex // guards below
	version int
	body    string
}

func (o *objectStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	etag := func() string { return strconv.Quote(strconv.Itoa(o.version)) }
	if r.Method == http.MethodPut {
		if r.Header.Get("If-Match") != etag() {
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1000))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		o.version, o.body = o.version+1, string(body)
	}
	w.Header().Set("ETag", etag())
	fmt.Fprint(w, o.body)
}
