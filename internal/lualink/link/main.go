// Command link links the scripts of lua/ and writes them to lua/linked. It runs in the root of the repository.
package main

import (
	"log"
	"os"
	"path/filepath"

	"github.com/relock-go/relock/internal/lualink"
)

func main() {
	log.SetFlags(0)
	const dir = "lua/linked"
	library := lualink.Relock(os.DirFS("lua"))
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
