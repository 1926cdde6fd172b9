package pages

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Reader is the program, or the part of one, that reads a block.
type Reader string

// The readers of blocks.
const (
	Spillway   Reader = "spillway's configuration file"
	Tokens     Reader = "spillway's tokens file"
	Web        Reader = "spillway's web-config file"
	Prometheus Reader = "Prometheus"
	Telegraf   Reader = "Telegraf"
	Chart      Reader = "the Helm chart"
	Collector  Reader = "the OpenTelemetry Collector"
)

// Block is a block of a page in YAML or TOML.
type Block struct {
	Page   string // the file, from the root
	Line   int    // of its first line, from 1
	Reader Reader
	Text   string // with the newline at its end
}

func (b Block) String() string { return fmt.Sprintf("%s:%d", b.Page, b.Line) }

// readers are found by a key at the top of a block. A page of settings shows keys of Spillway that are not listed.
var readers = map[string]Reader{
	"remote_write": Prometheus, "scrape_configs": Prometheus, "global": Prometheus,
	"tokens":            Tokens,
	"tls_server_config": Web, "basic_auth_users": Web,
	"image":     Chart,
	"exporters": Collector,
}

// Blocks are all blocks of the README and of docs/*.md, page by page. root is the root of the repository. The error names a block that is no
// YAML.
func Blocks(root string) ([]Block, error) {
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		return nil, err
	}
	var all []Block
	for _, file := range append([]string{filepath.Join(root, "README.md")}, files...) {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		page, err := filepath.Rel(root, file)
		if err != nil {
			return nil, err
		}
		found, err := blocks(page, string(text))
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

func blocks(page, text string) (all []Block, err error) {
	language, b, n := "", Block{}, 0
	for line := range strings.Lines(text) {
		n++
		mark, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence && language == "":
			language, b = mark, Block{Page: page, Line: n + 1}
			if mark == "" {
				language = "none"
			}
		case fence:
			if slices.Contains([]string{"yaml", "yml", "toml"}, language) {
				if b.Reader, err = readerOf(language, b.Text); err != nil {
					return nil, fmt.Errorf("%s: %w", b, err)
				}
				all = append(all, b)
			}
			language = ""
		default:
			b.Text += line
		}
	}
	return all, nil
}

func readerOf(language, text string) (Reader, error) {
	if language == "toml" {
		return Telegraf, nil
	}
	var keys map[string]any
	if err := yaml.Unmarshal([]byte(text), &keys); err != nil {
		return "", err
	}
	for key := range keys {
		if r, ok := readers[key]; ok {
			return r, nil
		}
	}
	return Spillway, nil
}

// Commands are the command lines of a page's blocks of the language sh, block by block, without comments, continued lines joined.
func Commands(page string) ([][]string, error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	var all [][]string
	var block []string
	inside, begun := false, ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			if inside = line == "```sh"; len(block) > 0 {
				all, block = append(all, block), nil
			}
			continue
		}
		if !inside {
			continue
		}
		if i := comment.FindStringIndex(line); i != nil {
			line = strings.TrimSpace(line[:i[0]])
		}
		if head, ok := strings.CutSuffix(line, `\`); ok {
			begun += strings.TrimSpace(head) + " "
			continue
		}
		if line, begun = begun+line, ""; line != "" {
			block = append(block, line)
		}
	}
	if inside || begun != "" {
		return nil, fmt.Errorf("%s: its last block, or the last line of one, does not end", page)
	}
	return all, nil
}

var comment = regexp.MustCompile(`(^|\s)# `)
