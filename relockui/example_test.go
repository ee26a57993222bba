package relockui_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/relockui"
)

// The page is part of a server, behind a function that lets in only those who may see it.
func Example() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer rdb.Close()
	page, err := relockui.New(rdb,
		relockui.WithHosts("admin.example.com"),
		relockui.WithTitle("Locks of production"),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer page.Close()

	mux := http.NewServeMux()
	mux.Handle("/locks/", adminsOnly(http.StripPrefix("/locks", page)))

	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://admin.example.com/locks/", nil))
	fmt.Println("nobody in particular:", w.Code)
	// Output: nobody in particular: 401
}

func adminsOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, _, ok := r.BasicAuth(); !ok {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
