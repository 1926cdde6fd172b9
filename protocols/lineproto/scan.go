package lineproto

import "bytes"

// Classes of bytes in names. Control bytes and DEL are allowed nowhere but in strings and comments.
const (
	stopMeasurement = 1 << iota // ends a measurement
	stopName                    // ends a tag's name, a tag's value or a field's name
)

var stops = func() (t [256]uint8) {
	for c := range t {
		if c < ' ' || c == 0x7f || c == ' ' || c == ',' {
			t[c] = stopMeasurement | stopName
		}
	}
	t['='] = stopName
	return t
}()

// scan finds the end of the token at p: the first byte of the class that is not escaped. In a measurement a backslash
// escapes comma and space, elsewhere the equals sign too; before any other byte it stands for itself.
func scan(s []byte, p int, class uint8) (end int, escaped bool) {
	for p < len(s) {
		c := s[p]
		switch {
		case c == '\\' && p+1 < len(s) && escapes(s[p+1], class):
			escaped = true
			p += 2
		case stops[c]&class != 0:
			return p, escaped
		default:
			p++
		}
	}
	return p, escaped
}

func escapes(c byte, class uint8) bool {
	return c == ' ' || c == ',' || c == '=' && class == stopName
}

// appendUnescaped undoes the escapes of a token of that class.
func appendUnescaped(dst, token []byte, class uint8) []byte {
	for i := 0; i < len(token); i++ {
		if token[i] == '\\' && i+1 < len(token) && escapes(token[i+1], class) {
			i++
		}
		dst = append(dst, token[i])
	}
	return dst
}

// stringEnd finds the quote that closes the string starting at p (behind its opening quote); -1 where none does.
func stringEnd(s []byte, p int) int {
	for i := p; ; i++ {
		n := bytes.IndexByte(s[i:], '"')
		if n < 0 {
			return -1
		}
		i += n
		back := i
		for back > p && s[back-1] == '\\' {
			back--
		}
		if (i-back)%2 == 0 {
			return i
		}
	}
}

// appendUnquoted undoes the escapes of a string's inside.
func appendUnquoted(dst, inside []byte) []byte {
	for i := 0; i < len(inside); i++ {
		c := inside[i]
		if c == '\\' && i+1 < len(inside) {
			if r := unquoted[inside[i+1]]; r != 0 {
				c = r
				i++
			}
		}
		dst = append(dst, c)
	}
	return dst
}

var unquoted = [256]byte{'"': '"', '\\': '\\', 'n': '\n', 'r': '\r', 't': '\t'}

// keyWindow is how far the first space of a line is looked for with the fast search. It bounds the cost of a line
// without a space: otherwise a body of such lines would be searched to its end once a line.
const keyWindow = 1024

// keyEnd finds where the key starting at p ends: the first space that no backslash stands before, or, in a long key, the
// first control byte.
func keyEnd(s []byte, p int) int {
	limit := min(len(s), p+keyWindow)
	i := p
	for {
		n := bytes.IndexByte(s[i:limit], ' ')
		if n < 0 {
			break
		}
		i += n
		if s[i-1] != '\\' {
			return i
		}
		i++
	}
	for ; i < len(s); i++ {
		if c := s[i]; c < ' ' || c == ' ' && s[i-1] != '\\' {
			return i
		}
	}
	return i
}

func skipSpaces(s []byte, p int) int {
	for p < len(s) && s[p] == ' ' {
		p++
	}
	return p
}
