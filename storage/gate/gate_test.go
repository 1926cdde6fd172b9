package gate

import "testing"

// TestGate plays a life of a gate: the changes that it lets in, and what readers by map 7 or 8 may rely on.
func TestGate(t *testing.T) {
	var g Gate
	f := func(what string, enters, doubtAt7, doubtAt8 bool) {
		t.Helper()
		entered := g.Enter()
		if entered {
			g.Leave()
		}
		if entered != enters || g.Doubtful(7) != doubtAt7 || g.Doubtful(8) != doubtAt8 {
			t.Errorf("%s: enters %t, doubtful at 7 %t, at 8 %t", what, entered, g.Doubtful(7), g.Doubtful(8))
		}
	}
	f("new", true, false, false)
	g.HandOver()
	f("handing over", false, true, true)
	if g.Quiet() {
		t.Error("quiet while the gate may open again")
	}
	g.Open()
	f("the map gives it back meanwhile: the hand-over counts", false, true, true)
	g.TakeBack()
	f("nothing was proposed", true, false, false)
	g.HandOver()
	g.Doubt(7)
	f("the proposal got no answer", true, true, false)
	g.HandOver()
	g.TakeBack()
	f("another attempt that came to nothing leaves the doubt", true, true, false)
	g.Settle(6)
	f("something older is ruled out", true, true, false)
	g.Settle(7)
	f("it is ruled out", true, false, false)
	g.Seal()
	f("the map took it away", false, false, false)
	g.HandOver()
	g.TakeBack()
	f("a hand-over that ends does not open what the map sealed", false, false, false)
	if !g.Quiet() {
		t.Error("not quiet although it is sealed")
	}
	g.Join()
	if g.Idle() || g.Quiet() {
		t.Error("idle with a deletion under way")
	}
	g.Join()
	if g.Leave() || !g.Leave() || !g.Idle() {
		t.Error("two inside leave one by one")
	}
}
