// Command apilist compares the exported API of a package with a text file.
//
//	go run ./internal/apilist check FILE PACKAGE   fails on a change that can break a program that uses the package
//	go run ./internal/apilist write FILE PACKAGE   writes the API of this checkout to FILE
//
// Rules: FILE has one fact per line, sorted, so that a diff of FILE is a diff of the API. A line contains the types
// of parameters but not their names, because callers do not depend on them. A missing line is a breaking change. A
// new line breaks nothing, unless it is a method of an interface that existed before: a type of another module that
// implements the interface would no longer do so.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 4 || os.Args[1] != "check" && os.Args[1] != "write" {
		fmt.Fprintln(os.Stderr, "usage: apilist check|write FILE PACKAGE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(verb, file, path string) error {
	pkg, err := load(path)
	if err != nil {
		return err
	}
	now := list(pkg)
	if verb == "write" {
		return os.WriteFile(file, []byte(strings.Join(now, "\n")+"\n"), 0o644)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	broken, added := compare(strings.Split(strings.TrimSpace(string(text)), "\n"), now)
	for _, line := range added {
		fmt.Println("new:", line)
	}
	if len(broken) > 0 {
		return fmt.Errorf("the API of %s is not compatible with %s:\n%s", path, file, strings.Join(broken, "\n"))
	}
	fmt.Printf("the API of %s is compatible with %s\n", path, file)
	return nil
}

// load compiles a package and returns its exported API.
func load(path string) (*types.Package, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Export", path)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", path, err)
	}
	exports := map[string]string{} // import path -> file with the export data
	var last string                // -deps lists the package after everything that it imports
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ ImportPath, Export string }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list %s: %w", path, err)
		}
		exports[p.ImportPath], last = p.Export, p.ImportPath
	}
	open := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	return importer.ForCompiler(token.NewFileSet(), "gc", open).Import(last)
}

// list returns the exported API of pkg, one fact per line.
func list(pkg *types.Package) []string {
	l := &lister{pkg: pkg, facts: map[string]bool{}, listed: map[*types.TypeName]bool{}}
	for _, name := range pkg.Scope().Names() {
		if object := pkg.Scope().Lookup(name); object.Exported() {
			l.object(object)
		}
	}
	var facts []string
	for fact := range l.facts {
		facts = append(facts, fact)
	}
	slices.Sort(facts)
	return facts
}

type lister struct {
	pkg    *types.Package
	facts  map[string]bool
	listed map[*types.TypeName]bool
}

func (l *lister) add(format string, args ...any) { l.facts[fmt.Sprintf(format, args...)] = true }

func (l *lister) object(object types.Object) {
	name := object.Name()
	switch object := object.(type) {
	case *types.Const:
		l.add("const %s %s = %s", name, l.text(object.Type()), object.Val().ExactString())
	case *types.Var:
		l.add("var %s %s", name, l.text(object.Type()))
	case *types.Func:
		l.add("func %s%s", name, l.signature(object))
	case *types.TypeName:
		l.typeName(object)
	}
}

// typeName lists a type with its exported fields and methods, including those of the types that it embeds.
func (l *lister) typeName(object *types.TypeName) {
	if l.listed[object] {
		return
	}
	l.listed[object] = true
	name, t := object.Name(), object.Type()
	if object.IsAlias() {
		l.add("type %s = %s", name, l.text(types.Unalias(t)))
		return
	}
	switch under := t.Underlying().(type) {
	case *types.Interface:
		l.add("type %s interface", name)
		for method := range under.Methods() {
			if method.Exported() {
				l.add("type %s interface, method %s%s", name, method.Name(), l.signature(method))
			} else {
				l.add("type %s interface, sealed", name) // by a method that no other package can have
			}
		}
		return
	case *types.Struct:
		l.add("type %s%s struct", name, typeParams(t))
		if object.Exported() && types.Comparable(t) {
			l.add("type %s is comparable", name)
		}
		l.fields(name, t, under)
	default:
		l.add("type %s%s %s", name, typeParams(t), l.text(under))
	}
	byValue := types.NewMethodSet(t)
	for selection := range types.NewMethodSet(types.NewPointer(t)).Methods() {
		method := selection.Obj().(*types.Func)
		if !method.Exported() {
			continue
		}
		receiver := name
		if byValue.Lookup(l.pkg, method.Name()) == nil {
			receiver = "*" + name
		}
		l.add("method (%s) %s%s", receiver, method.Name(), l.signature(method))
	}
}

// fields lists the exported fields that can be selected on the type called name.
func (l *lister) fields(name string, whole types.Type, part *types.Struct) {
	for field := range part.Fields() {
		if field.Exported() {
			found, _, _ := types.LookupFieldOrMethod(whole, true, l.pkg, field.Name())
			if found == field {
				l.add("type %s struct, field %s %s", name, field.Name(), l.text(field.Type()))
			}
		}
		if !field.Embedded() {
			continue
		}
		inner := field.Type()
		if p, ok := inner.(*types.Pointer); ok {
			inner = p.Elem()
		}
		if inner, ok := inner.Underlying().(*types.Struct); ok {
			l.fields(name, whole, inner)
		}
	}
}

func typeParams(t types.Type) string {
	named, ok := t.(*types.Named)
	if !ok || named.TypeParams().Len() == 0 {
		return ""
	}
	_, params, _ := strings.Cut(types.TypeString(t, func(*types.Package) string { return "" }), "[")
	return "[" + params
}

func (l *lister) signature(f *types.Func) string {
	return strings.TrimPrefix(l.text(f.Type()), "func")
}

// text returns a type as it is written in a declaration. It also lists the packages and unexported types that occur
// in it.
func (l *lister) text(t types.Type) string {
	return types.TypeString(l.unnamed(t), func(p *types.Package) string {
		if p == l.pkg {
			return ""
		}
		l.add("import %s %q", p.Name(), p.Path())
		return p.Name()
	})
}

// unnamed returns t without the names of parameters.
func (l *lister) unnamed(t types.Type) types.Type {
	switch t := t.(type) {
	case *types.Named:
		// Users cannot name an unexported type, but they can use its methods.
		if object := t.Obj(); object.Pkg() == l.pkg && !object.Exported() {
			l.typeName(object)
		}
	case *types.Pointer:
		return types.NewPointer(l.unnamed(t.Elem()))
	case *types.Slice:
		return types.NewSlice(l.unnamed(t.Elem()))
	case *types.Array:
		return types.NewArray(l.unnamed(t.Elem()), t.Len())
	case *types.Map:
		return types.NewMap(l.unnamed(t.Key()), l.unnamed(t.Elem()))
	case *types.Chan:
		return types.NewChan(t.Dir(), l.unnamed(t.Elem()))
	case *types.Signature:
		if t.TypeParams().Len() == 0 {
			return types.NewSignatureType(nil, nil, nil, l.tuple(t.Params()), l.tuple(t.Results()), t.Variadic())
		}
	}
	return t
}

func (l *lister) tuple(t *types.Tuple) *types.Tuple {
	var vars []*types.Var
	for v := range t.Variables() {
		vars = append(vars, types.NewParam(token.NoPos, nil, "", l.unnamed(v.Type())))
	}
	return types.NewTuple(vars...)
}

// subject matches the declaration that a line is about. Two lines about the same declaration are a change, and not a
// removal and an addition.
var subject = regexp.MustCompile(
	`^(import .*|type \w+ is \w+|type \w+ interface, sealed|type \w+ \w+, \w+ \w+|method \(\*?\w+\) \w+|\w+ \w+)`,
)

func about(line string) string { return strings.Replace(subject.FindString(line), "(*", "(", 1) }

// ofInterface matches the interface to which a line adds a method, or which it seals.
var ofInterface = regexp.MustCompile(`^(type \w+ interface), (method|sealed)`)

// compare returns what in the new list breaks users of the old one, and what was added to it.
func compare(old, now []string) (broken, added []string) {
	subjects := map[string]string{}
	for _, line := range now {
		subjects[about(line)] = line
	}
	for _, line := range old {
		if slices.Contains(now, line) {
			continue
		}
		if changed, ok := subjects[about(line)]; ok {
			broken = append(broken, "changed: "+line, "     to: "+changed)
			delete(subjects, about(line))
		} else {
			broken = append(broken, "removed: "+line)
		}
	}
	for _, line := range now {
		if slices.Contains(old, line) || subjects[about(line)] != line {
			continue
		}
		of := ofInterface.FindStringSubmatch(line)
		switch {
		case of == nil || !slices.Contains(old, of[1]) || slices.Contains(old, of[1]+", sealed"):
			added = append(added, line)
		default:
			broken = append(broken, "new in an interface that others may implement: "+line)
		}
	}
	return broken, added
}
