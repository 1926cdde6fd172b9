package setting

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// hintsMax bounds the keys that a mistake proposes.
const hintsMax = 3

// hints proposes known keys for the unknown ones of a file.
type hints struct {
	keys []string // of the whole file, apart by dots
	by   map[string]string
}

// hintsOf returns the known keys that were probably meant by each unknown one, by its line and name (at).
func hintsOf(text []byte, into reflect.Type) map[string]string {
	var doc yaml.Node
	if yaml.Unmarshal(text, &doc) != nil || len(doc.Content) == 0 {
		return nil
	}
	h := hints{keys: keysOf(into, "", nil), by: map[string]string{}}
	h.walk(doc.Content[0], into, "")
	return h.by
}

func at(line, key string) string { return line + key }

// walk looks for unknown keys in a node that is read into t and lies under path.
func (h *hints) walk(n *yaml.Node, t reflect.Type, path string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch {
	case readsItself(t):
	case n.Kind == yaml.SequenceNode && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array):
		for _, c := range n.Content {
			h.walk(c, t.Elem(), path)
		}
	case n.Kind == yaml.MappingNode && t.Kind() == reflect.Map:
		for i := 1; i < len(n.Content); i += 2 {
			h.walk(n.Content[i], t.Elem(), path)
		}
	case n.Kind == yaml.MappingNode && t.Kind() == reflect.Struct:
		for i := 1; i < len(n.Content); i += 2 {
			key := n.Content[i-1]
			if in := fieldOf(t, key.Value); in != nil {
				h.walk(n.Content[i], in, below(path, key.Value))
			} else if meant := h.meant(key.Value, n.Content[i], t, path); len(meant) > 0 {
				hint := "; did you mean " + strings.Join(meant, " or ") + "?"
				if block, last, dots := strings.Cut(key.Value, "."); dots && slices.Contains(meant, key.Value) {
					hint = fmt.Sprintf("; a dot stands for a block: write %s: {%s: …}", block, strings.ReplaceAll(last, ".", ": {")) + strings.Repeat("}", strings.Count(last, "."))
				}
				h.by[at(fmt.Sprintf("line %d: ", key.Line), key.Value)] = hint
			}
		}
	}
}

// meant returns the keys that are probably meant: with the same letters, whatever dots and lines are between them; with few other letters in the same block; or of the same name in another block.
func (h *hints) meant(key string, value *yaml.Node, t reflect.Type, path string) (out []string) {
	tries := []string{key}
	if value.Kind == yaml.MappingNode { // log: {level: debug}
		tries = nil
		for i := 0; i < len(value.Content); i += 2 {
			tries = append(tries, key+"."+value.Content[i].Value)
		}
		tries = append(tries, key)
	}
	add := func(k string) {
		if !slices.Contains(out, k) && len(out) < hintsMax {
			out = append(out, k)
		}
	}
	for _, try := range tries {
		for _, k := range h.keys {
			if letters(k) == letters(below(path, try)) || letters(k) == letters(try) {
				add(k)
			}
		}
	}
	if len(out) > 0 {
		return out
	}
	for _, k := range keysOf(t, "", nil) {
		if first, _, _ := strings.Cut(k, "."); distance(letters(first), letters(key)) <= max(1, len(key)/4) {
			add(below(path, first))
		}
	}
	if len(out) > 0 {
		return out
	}
	for _, try := range tries {
		last := letters(try[strings.LastIndex(try, ".")+1:])
		for _, k := range h.keys {
			if letters(k[strings.LastIndex(k, ".")+1:]) == last {
				add(k)
			}
		}
	}
	return out
}

func below(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// letters is a key in lower case without dots, lines and spaces.
func letters(key string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("._- ", r) {
			return -1
		}
		return r
	}, strings.ToLower(key))
}

// readsItself reports whether values of a type are read from text by their own code.
func readsItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) || p.Implements(reflect.TypeFor[yaml.Unmarshaler]())
}

// keysOf lists the keys of a struct and the blocks in it, apart by dots; those of lists and maps have no keys here. within are the types around it: a type within itself is listed once.
func keysOf(t reflect.Type, path string, within []reflect.Type) (out []string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || readsItself(t) || slices.Contains(within, t) {
		if path == "" {
			return nil
		}
		return []string{path}
	}
	within = append(slices.Clip(within), t)
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case !f.IsExported() && !f.Anonymous, name == "-":
		case strings.Contains(options, "inline"):
			out = append(out, keysOf(f.Type, path, within)...)
		default:
			if name == "" {
				name = strings.ToLower(f.Name)
			}
			out = append(out, keysOf(f.Type, below(path, name), within)...)
		}
	}
	return out
}

// distance is how many letters are to be changed, added or removed to make one word of another.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			next := diagonal
			if a[i] != b[j] {
				next = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}

// tabbed is the line that a tab indents, from 1; 0: there is none.
func tabbed(text []byte) int {
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if strings.Contains(line[:len(line)-len(strings.TrimLeft(line, " \t"))], "\t") {
			return n
		}
	}
	return 0
}
