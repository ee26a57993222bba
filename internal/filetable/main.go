// Command filetable writes the table of files of DEVELOPMENT.md: what each file is for, as the file itself says it.
//
//	go run ./internal/filetable [-check]
//
// It runs in the root of the repository. With -check it changes nothing, and fails if the table is not that of the
// files.
//
// Rules: a file says in the first sentence of its head what it is for, and a package in the first sentence of its
// documentation. A file without a head is an error. The table stands between the two comments in DEVELOPMENT.md.
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

const (
	page  = "DEVELOPMENT.md"
	begin = "<!-- The table of files: make files writes it. -->\n"
	end   = "<!-- The end of the table of files. -->\n"
)

func main() {
	check := flag.Bool("check", false, "write nothing, and fail if the table is out of date")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(check bool) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return fmt.Errorf("%s has no place for the table of files", page)
	}
	table, err := tableOf(".")
	if err != nil {
		return err
	}
	now := before + begin + table + end + after
	switch {
	case now == string(text):
		return nil
	case check:
		return fmt.Errorf("the table of files in %s is not that of the files: run make files", page)
	}
	return os.WriteFile(page, []byte(now), 0o644)
}

// tableOf returns the table for the repository in dir: a row for each file of the root and of the engine, and one for
// each other package in internal.
func tableOf(dir string) (string, error) {
	var b strings.Builder
	b.WriteString("\n| file | what it is for |\n|---|---|\n")
	for _, part := range []struct{ title, folder string }{
		{"package relock", "."}, {"internal/engine", "internal/engine"},
	} {
		files, err := filepath.Glob(filepath.Join(dir, part.folder, "*.go"))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "| **`%s`** | |\n", part.title)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			what, err := headOf(file)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "| `%s` | %s |\n", filepath.Base(file), what)
		}
	}
	b.WriteString("| **other packages** | |\n")
	packages, err := filepath.Glob(filepath.Join(dir, "internal", "*"))
	if err != nil {
		return "", err
	}
	for _, p := range packages {
		what, err := docOf(p)
		if err != nil {
			return "", err
		}
		if what != "" && filepath.Base(p) != "engine" {
			fmt.Fprintf(&b, "| `internal/%s` | %s |\n", filepath.Base(p), what)
		}
	}
	b.WriteString("\n")
	return b.String(), nil
}

// headOf returns the first sentence of the head of a file: of its first comment behind the package clause, or of the
// documentation of the package.
func headOf(file string) (string, error) {
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		return "", err
	}
	if tree.Doc != nil {
		return sentence(tree.Doc), nil
	}
	for _, c := range tree.Comments {
		if c.Pos() > tree.Name.End() && !isOfDeclaration(tree, c) {
			return sentence(c), nil
		}
	}
	return "", fmt.Errorf("%s does not say what it is for", file)
}

// isOfDeclaration reports whether c is the documentation of the first declaration, or behind it.
func isOfDeclaration(tree *ast.File, c *ast.CommentGroup) bool {
	if len(tree.Decls) == 0 {
		return false
	}
	first := tree.Decls[0]
	if f, ok := first.(*ast.FuncDecl); ok && c == f.Doc {
		return true
	}
	if g, ok := first.(*ast.GenDecl); ok && c == g.Doc {
		return true
	}
	return c.Pos() > first.Pos()
}

// docOf returns the first sentence of the documentation of the package in dir, or "" if there is no package.
func docOf(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return "", err
	}
	for _, file := range files {
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			return "", err
		}
		if tree.Doc != nil && !strings.HasSuffix(file, "_test.go") {
			return sentence(tree.Doc), nil
		}
	}
	if len(files) > 0 {
		return "", fmt.Errorf("%s does not say what it is for", dir)
	}
	return "", nil
}

func sentence(c *ast.CommentGroup) string { return new(doc.Package).Synopsis(c.Text()) }
