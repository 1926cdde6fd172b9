package tablename

import (
	"net/url"
	"strings"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Default is the table of a request that names none.
const Default = "default"

// Headers that name a table, in the order in which they are asked.
const (
	Header      = "X-Spillway-Table"
	HeaderScope = "X-Scope-OrgID"
)

// prefix begins a path that names its table.
const prefix = "/t/"

// bytesMax bounds a table's name: it becomes part of keys and of file names.
const bytesMax = 128

// Of finds the table of a request and the path behind its prefix. path is as it was sent, still percent-encoded, and so
// is restPath, which begins with "/"; where the path names no table, restPath is path. header and query give a header's
// or URL parameter's value, "" when it is absent. The error is Invalid: the name that was given cannot be a table's.
//
// Strings are cut, not copied: table may share path's memory.
func Of(path string, header, query func(string) string) (table, restPath string, err error) {
	if strings.HasPrefix(path, prefix) {
		return fromPath(path)
	}
	table = first(header, Header, HeaderScope)
	if table == "" {
		table = first(query, "db", "bucket")
	}
	if table == "" {
		return Default, path, nil
	}
	return table, path, Check(table)
}

func fromPath(path string) (table, restPath string, err error) {
	table, restPath = path[len(prefix):], "/"
	if i := strings.IndexByte(table, '/'); i >= 0 {
		table, restPath = table[:i], table[i:]
	}
	if strings.IndexByte(table, '%') >= 0 {
		if table, err = url.PathUnescape(table); err != nil {
			return "", "", fault.Errorf(fault.Invalid, "the table in the path is not percent-encoded: %w", err)
		}
	}
	return table, restPath, Check(table)
}

func first(get func(string) string, names ...string) string {
	for _, name := range names {
		if v := get(name); v != "" {
			return v
		}
	}
	return ""
}

// Check says whether a table may have this name: 1 to 128 of letters, digits, '_', '.' and '-', and neither "." nor
// "..", which paths would swallow. The error is Invalid.
func Check(table string) error {
	switch {
	case table == "":
		return fault.Errorf(fault.Invalid, "empty table name")
	case len(table) > bytesMax:
		return fault.Errorf(fault.Invalid, "table name of %d bytes, at most %d are taken", len(table), bytesMax)
	case table == "." || table == "..":
		return fault.Errorf(fault.Invalid, "a table cannot be named %q", table)
	}
	for i := 0; i < len(table); i++ {
		if !allowed(table[i]) {
			return fault.Errorf(fault.Invalid, "table name %q: only letters, digits, '_', '.' and '-' are taken", table)
		}
	}
	return nil
}

func allowed(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '.' || c == '-'
}
