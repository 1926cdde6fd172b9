package point

import "testing"

func TestSmearOfRowsTogether(t *testing.T) {
	f := func(a, b, want Smear) {
		t.Helper()
		if a.With(b) != want || b.With(a) != want {
			t.Errorf("%d with %d is %d, and %d the other way; want %d", a, b, a.With(b), b.With(a), want)
		}
	}
	f(SmearByTable, SmearByTable, SmearByTable)
	f(SmearOn, SmearOn, SmearOn)
	f(SmearOff, SmearOff, SmearOff)
	f(SmearOn, SmearByTable, SmearByTable)
	f(SmearOff, SmearByTable, SmearOff)
	f(SmearOff, SmearOn, SmearOff)
}

func TestResetForgetsTheWish(t *testing.T) {
	b := GetBatch(nil)
	b.Smear = SmearOff
	b.Put()
	if b.Smear != SmearByTable {
		t.Error("a batch from the pool has another request's wish")
	}
}
