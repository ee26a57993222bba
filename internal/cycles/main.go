// Command cycles measures how the files of a package depend on each other.
//
//	go run ./internal/cycles [-max N] [-of TYPE] PACKAGE
//
// It prints the size of the largest cycle of files, and other signs of a package that is hard to read. With -max it
// fails if that cycle has more than N files. The Makefile has the bound; lower it when the cycle has become smaller. It
// also fails if a function whose name ends with Locked calls one that unlocks the mutex.
//
// Rules: a file depends on another one if it names a function, method, type, field, variable or constant that the other
// one declares. Files of a cycle depend on each other, perhaps by way of further ones, so that none of them can be read
// without the others. Tests do not count.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	most := flag.Int("max", 0, "how many files the largest cycle may have; 0: any number")
	of := flag.String("of", "hold", "the type whose methods are counted")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: cycles [-max N] [-of TYPE] PACKAGE")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *of, *most); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(path, of string, most int) error {
	p, err := load(path)
	if err != nil {
		return err
	}
	fmt.Print(p.describe(of))
	if n := len(p.largestCycle()); most > 0 && n > most {
		return fmt.Errorf("the largest cycle of files in %s has %d files, and may have %d", path, n, most)
	}
	if wrong := p.misnamed(); len(wrong) > 0 {
		return fmt.Errorf("a function ...Locked keeps the mutex, but in %s %s", path, strings.Join(wrong, ", and "))
	}
	return nil
}

// A pkg is a package that was parsed and checked.
type pkg struct {
	fset  *token.FileSet
	files []*ast.File
	types *types.Package
	info  types.Info
}

// load compiles a package and what it imports.
func load(path string) (*pkg, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Export,Dir,GoFiles", path)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", path, err)
	}
	type listed struct {
		ImportPath, Export, Dir string
		GoFiles                 []string
	}
	exports := map[string]string{} // import path -> file with the export data
	var last listed                // -deps lists the package after everything that it imports
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list %s: %w", path, err)
		}
		exports[p.ImportPath], last = p.Export, p
	}
	sources := map[string][]byte{}
	for _, name := range last.GoFiles {
		if sources[name], err = os.ReadFile(filepath.Join(last.Dir, name)); err != nil {
			return nil, err
		}
	}
	return check(last.ImportPath, sources, func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
}

// check parses and checks the files of a package. open returns the export data of a package that it imports.
func check(path string, sources map[string][]byte, open importer.Lookup) (*pkg, error) {
	p := &pkg{fset: token.NewFileSet()}
	for name, source := range sources {
		f, err := parser.ParseFile(p.fset, name, source, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		p.files = append(p.files, f)
	}
	p.info = types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(p.fset, "gc", open)}
	var err error
	p.types, err = config.Check(path, p.fset, p.files, &p.info)
	return p, err
}

// describe returns the numbers of the package as text.
func (p *pkg) describe(of string) string {
	edges, n := p.dependencies(), 0
	for _, to := range edges {
		n += len(to)
	}
	cycle, c := p.largestCycle(), p.count(of)
	return fmt.Sprintf(`%s: %d files, %d lines
%d types, %d bool fields, %d methods of %s and %d of types that embed it
%d functions ...Locked, %d ...Unlocking
%d times a file depends on another one
the largest cycle has %d files: %s
`, p.types.Path(), len(p.files), c.lines, c.types, c.bools, c.methods, of, c.views, c.locked, c.unlocking, n,
		len(cycle), strings.Join(cycle, " "))
}

// file returns the name of the file with this position.
func (p *pkg) file(at token.Pos) string { return p.fset.File(at).Name() }

// dependencies returns the files on which each file depends.
func (p *pkg) dependencies() map[string][]string {
	edges := map[string][]string{}
	for _, f := range p.files {
		edges[p.file(f.Pos())] = nil
	}
	for id, object := range p.info.Uses {
		if object.Pkg() != p.types {
			continue
		}
		from, to := p.file(id.Pos()), p.file(object.Pos())
		if from != to && !slices.Contains(edges[from], to) {
			edges[from] = append(edges[from], to)
		}
	}
	return edges
}

// largestCycle returns the files of the largest cycle; none if there is no cycle.
func (p *pkg) largestCycle() (largest []string) {
	for _, cycle := range cycles(p.dependencies()) {
		if len(cycle) > max(len(largest), 1) {
			largest = cycle
		}
	}
	slices.Sort(largest)
	return largest
}

// counts are the numbers of declarations of a package.
type counts struct {
	lines, types, bools int
	methods, views      int // of the type that was asked about, and of those that embed it
	locked, unlocking   int // functions whose names end with Locked and Unlocking
}

func (p *pkg) count(of string) (c counts) {
	for _, f := range p.files {
		c.lines += p.fset.File(f.Pos()).LineCount()
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				c.types++
			case *ast.StructType:
				c.bools += p.boolsOf(n)
			case *ast.FuncDecl:
				c.function(p, n, of)
			}
			return true
		})
	}
	return c
}

// misnamed describes the functions that let the mutex go by a call of a function ...Unlocking, and whose own names say
// that they keep it.
func (p *pkg) misnamed() (wrong []string) {
	for _, f := range p.files {
		for _, d := range f.Decls {
			d, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasSuffix(d.Name.Name, "Locked") {
				continue
			}
			ast.Inspect(d, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && strings.HasSuffix(id.Name, "Unlocking") {
					wrong = append(wrong, d.Name.Name+" calls "+id.Name)
				}
				return true
			})
		}
	}
	return wrong
}

// boolsOf returns the number of fields of t that are of type bool.
func (p *pkg) boolsOf(t *ast.StructType) (n int) {
	for _, field := range t.Fields.List {
		for _, name := range field.Names {
			if types.Identical(p.info.Defs[name].Type(), types.Typ[types.Bool]) {
				n++
			}
		}
	}
	return n
}

func (c *counts) function(p *pkg, f *ast.FuncDecl, of string) {
	switch name := f.Name.Name; {
	case strings.HasSuffix(name, "Locked"):
		c.locked++
	case strings.HasSuffix(name, "Unlocking"):
		c.unlocking++
	}
	receiver := p.info.Defs[f.Name].(*types.Func).Signature().Recv()
	if receiver == nil {
		return
	}
	named, _ := deref(receiver.Type()).(*types.Named)
	switch {
	case named == nil:
	case named.Obj().Name() == of:
		c.methods++
	case embeds(named, of):
		c.views++
	}
}

// embeds reports whether t is a struct that embeds the type called of.
func embeds(t *types.Named, of string) bool {
	s, _ := t.Underlying().(*types.Struct)
	for i := 0; s != nil && i < s.NumFields(); i++ {
		embedded, _ := deref(s.Field(i).Type()).(*types.Named)
		if s.Field(i).Embedded() && embedded != nil && embedded.Obj().Name() == of {
			return true
		}
	}
	return false
}

func deref(t types.Type) types.Type {
	if p, ok := t.(*types.Pointer); ok {
		return p.Elem()
	}
	return t
}

// cycles returns the sets of nodes that lead to each other, by the algorithm of Tarjan.
func cycles(edges map[string][]string) [][]string {
	t := tarjan{edges: edges, index: map[string]int{}, low: map[string]int{}, on: map[string]bool{}}
	for node := range edges {
		if t.index[node] == 0 {
			t.visit(node)
		}
	}
	return t.found
}

type tarjan struct {
	edges      map[string][]string
	index, low map[string]int // of a node that was visited: its number, from 1, and the lowest number that it leads to
	stack      []string       // the nodes that were visited, and whose set is not found yet
	on         map[string]bool
	found      [][]string
}

func (t *tarjan) visit(node string) {
	n := len(t.index) + 1
	t.index[node], t.low[node], t.on[node] = n, n, true
	t.stack = append(t.stack, node)
	for _, to := range t.edges[node] {
		switch {
		case t.index[to] == 0:
			t.visit(to)
			t.low[node] = min(t.low[node], t.low[to])
		case t.on[to]:
			t.low[node] = min(t.low[node], t.index[to])
		}
	}
	if t.low[node] != n {
		return
	}
	at := slices.Index(t.stack, node)
	set := slices.Clone(t.stack[at:])
	t.stack = t.stack[:at]
	for _, other := range set {
		t.on[other] = false
	}
	t.found = append(t.found, set)
}
