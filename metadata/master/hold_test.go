package master

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// candidate process of the model: its clock has another rate and another start.
type process struct {
	Hold
	rate  float64
	start time.Duration
	write *pending // under way
	next  time.Duration
}

type pending struct {
	row     Holder
	rev     coord.Revision
	sent    time.Duration // of this clock
	arrives time.Duration // at the store, in true time
	answer  time.Duration // back again; 0: lost
	done    bool
	ok      bool
	given   coord.Revision
}

func (p *process) clock(now time.Duration) time.Duration {
	return p.start + time.Duration(float64(now)*p.rate)
}

// TestNoTwoActAsMaster: processes with clocks that differ by a tenth, with late or lost requests and answers, and with
// pauses. At no moment do two act as master; once all is well again, one does.
func TestNoTwoActAsMaster(t *testing.T) {
	var set Settings
	set.SetDefaults()
	rapid.Check(t, func(t *rapid.T) {
		var ps []*process
		for i := range rapid.IntRange(2, 3).Draw(t, "processes") {
			p := &process{rate: rapid.Float64Range(0.91, 1.09).Draw(t, "rate"), start: time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "start"))}
			p.Hold = NewHold(Holder{Holder: topology.ServerID(string(rune('a' + i))), Boot: "1"}, set)
			ps = append(ps, p)
		}
		var row coord.Row
		rev := coord.Revision(0)
		const tick = 50 * time.Millisecond
		storm := time.Duration(rapid.IntRange(0, 60).Draw(t, "storm")) * time.Second
		masters := 0
		for now := time.Duration(0); now < storm+20*time.Second; now += tick {
			calm := now > storm
			for _, p := range ps {
				if w := p.write; w != nil {
					if !w.done && now >= w.arrives {
						w.done = true
						if row.Revision == w.rev {
							rev++
							row = coord.Row{Key: Key, Value: w.row.Encode(), Revision: rev}
							w.ok, w.given = true, rev
						}
					}
					switch {
					case w.answer != 0 && now >= w.answer:
						if w.ok {
							p.Wrote(w.sent, p.clock(now), w.row, w.given)
						} else {
							p.Doubt()
						}
						p.write = nil
					case w.answer == 0 && w.done:
						p.Doubt()
						p.write = nil
					}
					continue
				}
				if now < p.next {
					continue
				}
				p.next = now + time.Second
				if !calm {
					p.next = now + time.Duration(rapid.SampledFrom([]int{300, 1000, 1000, 1000, 2500, 9000}).Draw(t, "pause"))*time.Millisecond
				}
				p.Saw(p.clock(now), row)
				next, at, ok := p.Want()
				if !ok {
					continue
				}
				w := &pending{row: next, rev: at, sent: p.clock(now), arrives: now, answer: now + tick}
				if !calm {
					w.arrives = now + time.Duration(rapid.SampledFrom([]int{0, 100, 3000, 8000}).Draw(t, "late"))*time.Millisecond
					w.answer = w.arrives + time.Duration(rapid.SampledFrom([]int{50, 500, 4000}).Draw(t, "answer"))*time.Millisecond
					if rapid.IntRange(0, 4).Draw(t, "lost") == 0 {
						w.answer = 0
					}
				}
				p.write = w
			}
			masters = 0
			for _, p := range ps {
				if p.MayAct(p.clock(now)) {
					masters++
				}
			}
			if masters > 1 {
				t.Fatalf("%d masters at %v", masters, now)
			}
		}
		if masters != 1 {
			t.Fatalf("nobody is master when all is well: %s", row.Value)
		}
	})
}

func TestTheRowOfTheMaster(t *testing.T) {
	h := Holder{Holder: "s1", Boot: "b1", N: 7}
	const golden = `{"v":1,"holder":"s1","boot":"b1","n":7}`
	if string(h.Encode()) != golden {
		t.Errorf("stored as %s", h.Encode())
	}
	if got, err := DecodeHolder([]byte(golden)); err != nil || got != h {
		t.Errorf("read as %+v %v", got, err)
	}
	for i := range golden {
		if _, err := DecodeHolder([]byte(golden[:i])); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v", golden[:i], err)
		}
	}
	if _, err := DecodeHolder([]byte(`{"v":2}`)); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a later version: %v", err)
	}
	// An unreadable row is no reason to have no master for ever.
	var set Settings
	set.SetDefaults()
	p := NewHold(h, set)
	for now := time.Duration(0); now < 6*time.Second; now += time.Second {
		p.Saw(now, coord.Row{Key: Key, Value: []byte("{"), Revision: 4})
		_, _, ok := p.Want()
		if ok != (now >= 4*time.Second) {
			t.Errorf("takes an unreadable row after %v: %v", now, ok)
		}
	}
}
