package lease

import "testing"

func TestKeysNameWhatTheyAreOf(t *testing.T) {
	p := Partition{"a/b", 7}
	if got, ok := ParseRowKey(RowKey(p)); !ok || got != p {
		t.Errorf("lease row: %v %v", got, ok)
	}
	if got, ok := ParseBornKey(BornKey(p)); !ok || got != p {
		t.Errorf("born row: %v %v", got, ok)
	}
	if got, s, ok := ParseProhibitKey(ProhibitKey(p, "s1")); !ok || got != p || s != "s1" {
		t.Errorf("prohibition: %v %v %v", got, s, ok)
	}
	if s, ok := ParseBeatKey(BeatKey("s1")); !ok || s != "s1" {
		t.Errorf("heartbeat: %v %v", s, ok)
	}
	for _, key := range []string{"", Prefix, BornKey(p), ProhibitKey(p, ""), noPrefix + "a/1/s1", noPrefix + "s1", RowKey(p) + "/x"} {
		if _, _, ok := ParseProhibitKey(key); ok {
			t.Errorf("%q is a prohibition", key)
		}
		if _, ok := ParseRowKey(key); ok {
			t.Errorf("%q is a lease row", key)
		}
		if _, ok := ParseBornKey(key); ok && key != BornKey(p) {
			t.Errorf("%q is a born row", key)
		}
	}
}
