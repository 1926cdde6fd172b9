package memory_test

import (
	"strings"
	"testing"

	"github.com/spillwaydb/spillway/protocols/memory"
)

func TestTextIsThePlaceOfAString(t *testing.T) {
	a := strings.Repeat("ab", 20)
	same, copied := a, strings.Clone(a)
	if memory.TextOf(a) != memory.TextOf(same) {
		t.Error("a string has two places")
	}
	for what, s := range map[string]string{"a copy": copied, "a beginning": a[:20], "an end": a[20:], "no string": ""} {
		if memory.TextOf(a) == memory.TextOf(s) {
			t.Errorf("%s has the place of the whole", what)
		}
	}
}
