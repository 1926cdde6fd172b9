package setting

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// DecodeYAML decodes a file of one YAML document into a pointer to a struct. Unknown and repeated keys are mistakes, and so is a second
// document, which would not be read. The error has all mistakes that the parser found, each with its line, in the words of the
// reference of settings instead of the types of the program.
func DecodeYAML(text []byte, into any) error {
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	err := d.Decode(into)
	if err == nil {
		err = fractions(text, reflect.TypeOf(into))
	}
	if errors.Is(err, io.EOF) {
		return nil // empty
	}
	for err == nil {
		var next yaml.Node
		failed := d.Decode(&next)
		if errors.Is(failed, io.EOF) {
			break
		}
		if failed != nil || len(next.Content) != 1 || next.Content[0].Tag != "!!null" { // templates end files with --- and nothing behind it
			err = errors.New("more than one YAML document: nothing behind the line --- would be read")
		}
	}
	var types *yaml.TypeError
	if n := tabbed(text); !errors.As(err, &types) && err != nil && n > 0 {
		return fmt.Errorf("line %d: a tab indents it: YAML is indented by spaces alone", n)
	}
	var hints map[string]string
	if types != nil {
		hints = hintsOf(text, reflect.TypeOf(into))
	}
	return inWords(err, hints)
}

// What the package yaml says of values that do not fit.
var (
	wrongValue = regexp.MustCompile("(?s)^(line [0-9]+: )cannot unmarshal !!([a-z]+)(?: `(.*)`)? into (.+)$")
	wrongKey   = regexp.MustCompile(`(?s)^(line [0-9]+: )field (.*) not found in type .+$`)
	twice      = regexp.MustCompile(`(?s)^(line [0-9]+: )(?:mapping key "(.*)" already defined at (line [0-9]+)|field (.*) already set in type .+)$`)
)

// fractions returns the numbers with a fraction that stand where whole ones are expected: the package yaml cuts it off.
func fractions(text []byte, into reflect.Type) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil || len(doc.Content) == 0 {
		return err
	}
	var found []error
	eachFraction(doc.Content[0], into, func(n *yaml.Node) {
		found = append(found, fmt.Errorf("line %d: %q stands where a whole number is expected", n.Line, n.Value))
	})
	return errors.Join(found...)
}

func eachFraction(n *yaml.Node, t reflect.Type, f func(*yaml.Node)) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch pointer := reflect.PointerTo(t); {
	case pointer.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) || pointer.Implements(reflect.TypeFor[yaml.Unmarshaler]()):
	case n.Kind == yaml.ScalarNode && n.Tag == "!!float" && t.Kind() >= reflect.Int && t.Kind() <= reflect.Uintptr:
		if v, err := strconv.ParseFloat(strings.ReplaceAll(n.Value, "_", ""), 64); err != nil || v != math.Trunc(v) {
			f(n)
		}
	case n.Kind == yaml.SequenceNode && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array):
		for _, c := range n.Content {
			eachFraction(c, t.Elem(), f)
		}
	case n.Kind == yaml.MappingNode && t.Kind() == reflect.Map:
		for i := 1; i < len(n.Content); i += 2 {
			eachFraction(n.Content[i], t.Elem(), f)
		}
	case n.Kind == yaml.MappingNode && t.Kind() == reflect.Struct:
		for i := 1; i < len(n.Content); i += 2 {
			if in := fieldOf(t, n.Content[i-1].Value); in != nil {
				eachFraction(n.Content[i], in, f)
			}
		}
	}
}

// fieldOf returns the type of the field that a key of YAML names; nil: there is none.
func fieldOf(t reflect.Type, key string) reflect.Type {
	for i := range t.NumField() {
		field := t.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		switch {
		case strings.Contains(options, "inline"):
			in := field.Type
			for in.Kind() == reflect.Pointer {
				in = in.Elem()
			}
			if in.Kind() != reflect.Struct {
				continue
			}
			if found := fieldOf(in, key); found != nil {
				return found
			}
		case name == key, name == "" && strings.ToLower(field.Name) == key:
			return field.Type
		}
	}
	return nil
}

func inWords(err error, hints map[string]string) error {
	var types *yaml.TypeError
	if errors.As(err, &types) {
		said := make([]string, len(types.Errors))
		for i, e := range types.Errors {
			said[i] = mistake(e, hints)
		}
		return errors.New(strings.Join(said, "\n"))
	}
	var moment *time.ParseError // yaml names no line of it
	if errors.As(err, &moment) {
		return fmt.Errorf("%q is no time; write 2026-12-31T12:00:00Z", moment.Value)
	}
	if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	return nil
}

// mistake says one mistake without types of the program, and what hints has for an unknown key. A text of a form that is not known here stays.
func mistake(text string, hints map[string]string) string {
	if m := wrongValue.FindStringSubmatch(text); m != nil {
		shown := m[3]
		if shown != "" {
			shown = `"` + shown + `"`
		}
		if word, ok := yamlKinds[m[2]]; ok {
			shown = word
		}
		if shown == "" {
			shown = "nothing"
		}
		return m[1] + shown + " stands where " + expected(m[4]) + " is expected"
	}
	if m := wrongKey.FindStringSubmatch(text); m != nil {
		return m[1] + `the key "` + m[2] + `" is not known here` + hints[at(m[1], m[2])]
	}
	if m := twice.FindStringSubmatch(text); m != nil {
		said := m[1] + `the key "` + m[2] + m[4] + `" stands here twice`
		if m[3] != "" {
			said += "; first in " + m[3]
		}
		return said
	}
	return text
}

// yamlKinds are the kinds of YAML that have no text to show.
var yamlKinds = map[string]string{"seq": "a list", "map": "a block of keys"}

// expected names what a user writes for a Go type, in the words of Setting.Type.
func expected(goType string) string {
	goType = strings.TrimLeft(goType, "*")
	switch {
	case strings.HasPrefix(goType, "[]"):
		return "a list"
	case strings.HasPrefix(goType, "uint"):
		return "a whole number that is not negative"
	case strings.HasPrefix(goType, "int"):
		return "a whole number"
	case strings.HasPrefix(goType, "float"):
		return "a number"
	case goType == "bool":
		return "true or false"
	case goType == "string":
		return "a text"
	case goType == "time.Time":
		return "a time such as 2026-12-31T12:00:00Z"
	case goType == "model.Duration":
		return "a time span such as 30s"
	}
	return "a block of keys"
}
