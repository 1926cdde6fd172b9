package deliver

import (
	"strings"
	"testing"
)

func TestAStringAndItsCopyHaveTwoPointers(t *testing.T) {
	a := strings.Repeat("ab", 20)
	same, copied := a, strings.Clone(a)
	if pointerTo(a) != pointerTo(same) {
		t.Error("a string has two pointers")
	}
	for what, s := range map[string]string{"a copy": copied, "a beginning": a[:20], "an end": a[20:], "no string": ""} {
		if pointerTo(a) == pointerTo(s) {
			t.Errorf("%s has the pointer of the whole", what)
		}
	}
}
