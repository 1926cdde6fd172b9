package tablename

import (
	"net/url"
	"strings"

	"github.com/spillwaydb/spillway/protocols/fault"
)

// Default is the table of a request that names none.
const Default = "default"

// Headers that name a table.
const (
	Header      = "X-Spillway-Table"
	HeaderScope = "X-Scope-OrgID"
)

// Params are the query parameters that name a table, in Influx' words.
var Params = [...]string{"db", "bucket"}

// prefix begins a path that names its table.
const prefix = "/t/"

// bytesMax bounds a table's name: it becomes part of keys and of file names.
const bytesMax = 128

// By says which part of a request named its table.
type By uint8

const (
	ByDefault By = iota // none did: the table is Default
	ByParam             // db or bucket, as Influx clients send
	ByHeader            // X-Spillway-Table or X-Scope-OrgID
	ByPath              // /t/<table>/…
)

// Name is the table of a request. The zero Name names none yet.
type Name struct {
	Table string
	By    By     // the strongest of the parts that named it
	where string // the part that named it first, for the error
}

// Pinned reports whether the table was named by path or header, where proxies name the tenant. Then nothing in the
// request may reach another table. A parameter only chooses a database, as it does for Influx.
func (n Name) Pinned() bool { return n.By >= ByHeader }

// Agree adds a name that the part where of the request gives. It must be the same as the names before it: a proxy that
// enforces tenants checks one of them, and must not be bypassed by another. "" names nothing. The error is Invalid.
func (n *Name) Agree(table string, by By, where string) error {
	switch {
	case table == "":
		return nil
	case n.where == "":
		if err := Check(table); err != nil {
			return err
		}
		n.Table, n.where = table, where
	case n.Table != table:
		return fault.Errorf(fault.Invalid, "the request names two tables: %s says %q, %s says %q", n.where, n.Table, where, table)
	}
	n.By = max(n.By, by)
	return nil
}

// Of finds the table of a request and the path behind its prefix. path is as it was sent, still percent-encoded, and so
// is restPath, which begins with "/"; where the path names no table, restPath is path. header and param give all values
// of a header or URL parameter. The error is Invalid: a name cannot be a table's, or two names differ; restPath is good
// all the same.
//
// Strings are cut, not copied: table may share path's memory.
func Of(path string, header, param func(string) []string) (name Name, restPath string, err error) {
	inPath, restPath, prefixed := Cut(path)
	if prefixed {
		if err := name.path(inPath); err != nil {
			return Name{}, restPath, err
		}
	}
	for _, h := range [...]string{Header, HeaderScope} {
		for _, v := range header(h) {
			if err := name.Agree(v, ByHeader, h); err != nil {
				return Name{}, restPath, err
			}
		}
	}
	for _, p := range Params {
		for _, v := range param(p) {
			if err := name.Agree(v, ByParam, p); err != nil {
				return Name{}, restPath, err
			}
		}
	}
	if name.By == ByDefault {
		name.Table = Default
	}
	return name, restPath, nil
}

// path adds the name in the path, still percent-encoded.
func (n *Name) path(table string) (err error) {
	if strings.IndexByte(table, '%') >= 0 {
		if table, err = url.PathUnescape(table); err != nil {
			return fault.Errorf(fault.Invalid, "the table in the path is not percent-encoded: %w", err)
		}
	}
	if err := Check(table); err != nil {
		return err
	}
	return n.Agree(table, ByPath, "the path")
}

// Cut splits /t/<table>/rest without judging the name, which is still percent-encoded.
func Cut(path string) (table, restPath string, ok bool) {
	table, ok = strings.CutPrefix(path, prefix)
	if !ok {
		return "", path, false
	}
	if i := strings.IndexByte(table, '/'); i >= 0 {
		return table[:i], table[i:], true
	}
	return table, "/", true
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
