package setting

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Reference writes a page in Markdown: a chapter for each first part of a key, a row for each setting. intros are sentences
// under the headings, by that part.
func Reference(w io.Writer, list []Setting, intros map[string]string) error {
	var b strings.Builder
	for len(list) > 0 {
		first, n := chapterOf(&list[0]), 1
		for n < len(list) && chapterOf(&list[n]) == first {
			n++
		}
		chapter(&b, first, list[:n], intros[first])
		list = list[n:]
	}
	_, err := io.WriteString(w, strings.TrimLeft(b.String(), "\n"))
	return err
}

// chapterOf is the first part of a key, or "" for a value without a section.
func chapterOf(s *Setting) string {
	first, _, below := strings.Cut(s.Key, ".")
	if !below && s.Scalar() {
		return ""
	}
	return first
}

func chapter(b *strings.Builder, name string, list []Setting, intro string) {
	title := "Without a section"
	if name != "" {
		title = "`" + name + "`"
	}
	fmt.Fprintf(b, "\n## %s\n\n", title)
	roles := list[0].For
	for i := range list {
		if !slices.Equal(list[i].For, roles) {
			roles = nil
		}
	}
	if len(roles) > 0 {
		intro = strings.TrimSpace(intro + " Of " + strings.Join(roles, " and ") + " only.")
	}
	if intro != "" {
		fmt.Fprintf(b, "%s\n\n", intro)
	}
	b.WriteString("| key | value | default | what it is |\n|---|---|---|---|\n")
	for i := range list {
		for _, s := range append([]Setting{list[i]}, list[i].Blocks()...) {
			fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", s.Key, s.values(), s.defaults(), cell(s.about(roles)))
		}
	}
}

func (s *Setting) values() string {
	text := s.Type()
	switch {
	case len(s.OneOf) > 0:
		text = "`" + strings.Join(s.OneOf, "`, `") + "`"
	case s.Min != "" && s.Max != "":
		text += ", " + s.Min + " to " + s.Max
	case s.Min != "":
		text += " from " + s.Min
	case s.Max != "":
		text += " to " + s.Max
	}
	return cell(text)
}

func (s *Setting) defaults() string {
	switch {
	case s.Auto != "":
		return cell(s.Auto)
	case s.Default != "":
		return "`" + cell(s.Default) + "`"
	case s.Switch():
		return "`false`"
	}
	return "none"
}

// about is the description of the setting, in a chapter about processes of the roles.
func (s *Setting) about(roles []string) string {
	text := s.Help
	if s.Price != "" {
		text += " *" + s.Price + "*"
	}
	if s.Shown && strings.ReplaceAll(s.Key, "_", "-") != s.Flag {
		text += " Flag `--" + s.Flag + "`."
	}
	if len(s.For) > 0 && !slices.Equal(s.For, roles) {
		text += " Of " + strings.Join(s.For, " and ") + " only."
	}
	switch {
	case s.Reload:
		text += " Read again by a running process."
	case s.Reread:
		text += " A running process reads the file again; another path needs a restart."
	}
	return text
}

// cell makes text fit into a cell of a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "|", "\\|"), "\n", " ")
}
