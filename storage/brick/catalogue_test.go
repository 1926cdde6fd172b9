package brick

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/point"
)

func TestCatalogue(t *testing.T) {
	fs := vfs.NewMem()
	b, _ := open(t, fs, Settings{})
	commit := func(sync bool, f func(*Batch)) error { bt := b.NewBatch(); f(bt); return bt.Commit(sync) }
	if err := commit(true, func(t *Batch) {
		t.Set([]byte("p/1"), []byte("a"))
		t.Set([]byte("p/2"), []byte("b"))
		t.Set([]byte("q"), nil)
	}); err != nil {
		t.Fatal(err)
	}
	if err := commit(false, func(t *Batch) { t.Delete([]byte("p/1")); t.Set([]byte("p/\xff"), []byte("c")) }); err != nil {
		t.Fatal(err)
	}
	wantKind(t, commit(true, func(t *Batch) { t.Set([]byte{0, 1}, nil) }), fault.Invalid, "zero byte")
	wantKind(t, commit(true, func(t *Batch) { t.Delete(nil) }), fault.Invalid, "empty")
	dump := func(prefix string) (s string) {
		err := b.Scan([]byte(prefix), func(k, v []byte) error { s += fmt.Sprintf("%q=%s ", k, v); return nil })
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for range 2 {
		if got, want := dump("p/"), `"p/2"=b "p/\xff"=c `; got != want {
			t.Errorf("scan gives %s, want %s", got, want)
		}
		if got, want := dump(""), `"p/2"=b "p/\xff"=c "q"= `; got != want {
			t.Errorf("scan of all gives %s, want %s", got, want)
		}
		if v, ok, err := b.Get([]byte("p/2")); string(v) != "b" || !ok || err != nil {
			t.Errorf("get: %q %v %v", v, ok, err)
		}
		if _, ok, err := b.Get([]byte("p/1")); ok || err != nil {
			t.Errorf("get of a deleted key: %v %v", ok, err)
		}
		mustClose(t, b)
		b, _ = open(t, fs, Settings{})
	}
	mustClose(t, b)
}

func TestSegmentDirectories(t *testing.T) {
	fs := vfs.NewCrashableMem()
	b, _ := open(t, fs, Settings{})
	if err := b.MakeSegmentDir(0xabc); err != nil {
		t.Fatal(err)
	}
	if got := b.SegmentPath(0xabc, point.SegmentID{Epoch: 2, Seq: 5}); got != "/data/segments/0000000000000abc/2-5.seg" {
		t.Error(got)
	}
	after := fs.CrashClone(vfs.CrashCloneCfg{})
	if _, err := after.Stat(b.SegmentDir(0xabc)); err != nil {
		t.Errorf("the directory does not survive a crash: %v", err)
	}
	if err := errors.Join(b.SyncSegmentDir(0xabc), b.RemoveSegmentDir(0xabc), b.RemoveSegmentDir(0xabc)); err != nil {
		t.Error(err)
	}
	mustClose(t, b)
}
