package intake

import (
	"fmt"
	"strconv"
	"strings"
)

// token is a word of InfluxQL. Words that were quoted are names or texts, never keywords.
type token struct {
	text   string
	quoted bool
}

// is reports whether t is one of the keywords, in any case.
func (t token) is(keywords ...string) bool {
	if t.quoted {
		return false
	}
	for _, k := range keywords {
		if strings.EqualFold(t.text, k) {
			return true
		}
	}
	return false
}

// statements cuts a query at its semicolons and each statement into tokens. The error is for the sender to read.
func statements(q string) ([][]token, error) {
	var all [][]token
	var now []token
	for i := 0; i < len(q); {
		switch c := q[i]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			i++
		case c == ';':
			if len(now) > 0 {
				all = append(all, now)
			}
			now = nil
			i++
		case c == '"' || c == '\'':
			text, next, ok := unquote(q, i)
			if !ok {
				return nil, fmt.Errorf("error parsing query: unterminated %c at char %d", c, i+1)
			}
			now = append(now, token{text, true})
			i = next
		case isWord(c):
			j := i
			for j < len(q) && isWord(q[j]) {
				j++
			}
			now = append(now, token{text: q[i:j]})
			i = j
		default:
			now = append(now, token{text: q[i : i+1]})
			i++
		}
	}
	if len(now) > 0 {
		all = append(all, now)
	}
	return all, nil
}

func isWord(c byte) bool {
	return c == '_' || c == '-' || c >= 0x80 || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func unquote(q string, i int) (text string, next int, ok bool) {
	var b strings.Builder
	for j := i + 1; j < len(q); j++ {
		switch c := q[j]; {
		case c == '\\' && j+1 < len(q):
			j++
			b.WriteByte(q[j])
		case c == q[i]:
			return b.String(), j + 1, true
		default:
			b.WriteByte(c)
		}
	}
	return "", len(q), false
}

// clauses reads the optional clauses after SHOW …: ON <db> and LIMIT <n>, in this order. Anything else is an error for the
// sender: ignoring a condition would answer another question.
func clauses(ts []token) (db string, limit int, err error) {
	if len(ts) >= 2 && ts[0].is("ON") {
		db, ts = ts[1].text, ts[2:]
	}
	if len(ts) >= 2 && ts[0].is("LIMIT") {
		if limit, err = strconv.Atoi(ts[1].text); err != nil || limit < 0 {
			return "", 0, fmt.Errorf("error parsing query: found %s, expected integer after LIMIT", ts[1].text)
		}
		ts = ts[2:]
	}
	if len(ts) > 0 {
		return "", 0, fmt.Errorf("%s is not supported here", ts[0].text)
	}
	return db, limit, nil
}
