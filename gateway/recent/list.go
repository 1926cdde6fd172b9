package recent

import "strings"

// list is entries of tables, the oldest first, at most max. Not for concurrent use.
type list[T any] struct {
	max   int
	table func(T) string
	of    []T
}

// add appends an entry. A full list first gives up the oldest of the table with most entries.
func (l *list[T]) add(e T) {
	if len(l.of) >= l.max {
		l.giveUp()
	}
	l.of = append(l.of, e)
}

func (l *list[T]) giveUp() {
	counts := map[string]int{}
	for _, e := range l.of {
		counts[l.table(e)]++
	}
	most, victim := 0, 0
	for i := len(l.of) - 1; i >= 0; i-- { // the oldest among equals
		if n := counts[l.table(l.of[i])]; n >= most {
			most, victim = n, i
		}
	}
	l.remove(victim)
}

func (l *list[T]) remove(i int) {
	var none T
	copy(l.of[i:], l.of[i+1:])
	l.of[len(l.of)-1] = none
	l.of = l.of[:len(l.of)-1]
}

// clip bounds a text, in whole letters and without control characters, which come from binary answers.
func clip(text string, most int) string {
	text = strings.ToValidUTF8(text[:min(len(text), most)], "")
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, text))
}
