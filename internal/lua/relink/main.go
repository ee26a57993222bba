// Command relink links the scripts of internal/lua/ and writes them to internal/lua/linked. It runs in the root of the
// repository.
package main

import (
	"log"
	"os"
	"path/filepath"

	"github.com/relock-go/relock/internal/lua/link"
)

func main() {
	log.SetFlags(0)
	const dir = "internal/lua/linked"
	library := link.Relock(os.DirFS("internal/lua"))
	if err := os.RemoveAll(dir); err != nil {
		log.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		log.Fatal(err)
	}
	for _, name := range library.Scripts() {
		if err := os.WriteFile(filepath.Join(dir, name+".lua"), []byte(library.Link(name)), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
