package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// A stockAPI is the service that has the stock. A service with an SQL database would use a fence.Table instead of the
// fields.
type stockAPI struct {
	mu      sync.Mutex // guards below
	highest int64      // the highest token
	stock   int
}

func (a *stockAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token, err := strconv.ParseInt(r.Header.Get("Fencing-Token"), 10, 64)
	if err != nil || token <= 0 {
		http.Error(w, "send the token of the lock as Fencing-Token", http.StatusPreconditionRequired)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if token < a.highest {
		http.Error(w, "a later holder of the lock was admitted", http.StatusPreconditionFailed)
		return
	}
	a.highest = token // a GET admits it, too
	if r.Method == http.MethodPut {
		body, _ := io.ReadAll(http.MaxBytesReader(w, r.Body, 100))
		stock, err := strconv.Atoi(string(body))
		if err != nil {
			http.Error(w, "the body is not a number", http.StatusBadRequest)
			return
		}
		a.stock = stock
	}
	fmt.Fprint(w, a.stock)
}

// An apiStock is a client of the service.
type apiStock struct{ url string }

func (s apiStock) look(ctx context.Context, token int64) (int, error) {
	return s.do(ctx, http.MethodGet, token, "")
}

func (s apiStock) write(ctx context.Context, token int64, stock int) error {
	_, err := s.do(ctx, http.MethodPut, token, strconv.Itoa(stock))
	return err
}

func (s apiStock) do(ctx context.Context, method string, token int64, body string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, method, s.url, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Fencing-Token", strconv.FormatInt(token, 10))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return 0, err
	case response.StatusCode == http.StatusPreconditionFailed:
		return 0, errStale
	case response.StatusCode != http.StatusOK:
		return 0, fmt.Errorf("%s: %s", response.Status, text)
	}
	return strconv.Atoi(string(text))
}
