package lead

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/protocols/fault"
)

func TestLivesEntry(t *testing.T) {
	f := func(l registry.Lives, golden string) {
		t.Helper()
		b := encodeLives(l)
		if string(b) != golden {
			t.Errorf("stored as %s", b)
		}
		if got, err := decodeLives(b); err != nil || !reflect.DeepEqual(got, l) {
			t.Errorf("read as %+v, %v", got, err)
		}
		for i := range b { // cut off, or a bit of it flipped: refused as Corrupt, or other lives of the bounds that there are
			if _, err := decodeLives(b[:i]); !fault.Is(err, fault.Corrupt) {
				t.Errorf("%s: %v", b[:i], err)
			}
			for bit := range 8 {
				c := bytes.Clone(b)
				c[i] ^= 1 << bit
				if _, err := decodeLives(c); err != nil && !fault.Is(err, fault.Corrupt) {
					t.Errorf("%s: %v", c, err)
				}
			}
		}
	}
	f(registry.Lives{}, `{"v":1,"known":{"n":0,"name":""}}`)
	f(registry.Lives{Known: registry.Life{N: 5, Name: "ab"}, Tried: []registry.Life{{N: 6, Name: "cd"}}}, `{"v":1,"known":{"n":5,"name":"ab"},"tried":[{"n":6,"name":"cd"}]}`)
	if _, err := decodeLives([]byte(`{"v":2}`)); !fault.Is(err, fault.Corrupt) {
		t.Errorf("of a later build: %v", err)
	}
}

func FuzzLivesEntry(f *testing.F) {
	f.Add(encodeLives(registry.Lives{Known: registry.Life{N: 5, Name: "ab"}, Tried: []registry.Life{{N: 6, Name: "cd"}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := decodeLives(b)
		if err != nil {
			if !fault.Is(err, fault.Corrupt) {
				t.Fatal(err)
			}
			return
		}
		if again, err := decodeLives(encodeLives(l)); err != nil || !reflect.DeepEqual(again.Known, l.Known) || len(again.Tried) != len(l.Tried) {
			t.Fatalf("%+v, then %+v %v", l, again, err)
		}
	})
}
