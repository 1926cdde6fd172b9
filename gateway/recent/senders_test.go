package recent_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spillwaydb/spillway/gateway/recent"
)

func fresh(names ...string) *recent.Fresh {
	f := &recent.Fresh{}
	for _, n := range names {
		f.Add(n)
	}
	return f
}

func TestSendersSayWhoMadeTheSeriesOfAName(t *testing.T) {
	s := recent.NewSenders()
	telegraf := recent.Sender{Protocol: "influx1", Identity: "plant", Agent: "Telegraf/1.30", Network: "10.1.2.0/24"}
	prometheus := recent.Sender{Protocol: "rw2", Identity: "k8s", Agent: "Prometheus/3.1", Network: "loopback"}
	s.Note("a", telegraf, 10, fresh("cpu", "cpu", "mem"), noon)
	s.Note("a", telegraf, 10, fresh(), noon.Add(time.Second))
	s.Note("a", prometheus, 5, fresh("cpu"), noon.Add(2*time.Second))
	s.Note("b", prometheus, 7, fresh("secret"), noon)
	s.Note("c", prometheus, 0, fresh(), noon)
	l := s.Lists(noon, only("a"), true)
	if len(l.Tables) != 1 || l.TablesLeftOut != 0 {
		t.Fatalf("%+v", l)
	}
	a := l.Tables[0]
	if len(a.Senders) != 2 || a.Senders[0].Sender != prometheus || a.Senders[1].Sender != telegraf {
		t.Fatalf("the last sender comes first: %+v", a.Senders)
	}
	if u := a.Senders[1]; u.Requests != 2 || u.Rows != 20 || u.NewSeries != 3 || u.First != noon || u.Last != noon.Add(time.Second) {
		t.Errorf("%+v", u)
	}
	if len(a.Names) != 2 || a.Names[0].Name != "cpu" || a.Names[0].NewSeries != 3 || a.Names[0].Last != noon.Add(2*time.Second) || fmt.Sprint(a.Names[0].By) != "[{0 1} {1 2}]" || fmt.Sprint(a.Names[1].By) != "[{1 1}]" {
		t.Errorf("%+v", a.Names)
	}
	if l := s.Lists(noon, all, false); len(l.Tables) != 2 || l.Tables[0].Names != nil {
		t.Errorf("of all tables, names are left out, and so is a table without rows: %+v", l)
	}
}

// TestSendersAreBoundedAndCountWhatIsLeftOut: senders, names and tables without end, and names without end of one request.
func TestSendersAreBoundedAndCountWhatIsLeftOut(t *testing.T) {
	s := recent.NewSenders()
	long := strings.Repeat("x", 1000)
	s.Note("calm", recent.Sender{}, 1, fresh("calm"), noon.Add(time.Hour))
	for i := range 100 {
		var f recent.Fresh
		for k := range 600 {
			f.Add(fmt.Sprint("name", i, "_", k))
		}
		f.Add(long)
		f.Add("many")
		f.Add("many")
		s.Note("noisy", recent.Sender{Agent: fmt.Sprint(i, long), Identity: long}, 1, &f, noon.Add(time.Duration(i)*time.Second))
	}
	for i := range 300 {
		for k := range 40 {
			s.Note(fmt.Sprint("t", i), recent.Sender{}, 1, fresh(fmt.Sprint("n", k)), noon.Add(2*time.Hour))
		}
	}
	l := s.Lists(noon, all, true)
	names := 0
	for _, one := range l.Tables {
		names += len(one.Names)
		switch one.Table {
		case "calm":
			if len(one.Names) != 1 {
				t.Errorf("the calm table lost its name: %+v", one)
			}
		case "noisy":
			t.Error("the table that was written to least lately stays")
		}
		for _, u := range one.Senders {
			if len(u.Agent)+len(u.Identity) > 220 {
				t.Errorf("a text is not cut: %d bytes", len(u.Agent)+len(u.Identity))
			}
		}
	}
	if len(l.Tables) != 256 || l.TablesLeftOut != 46 || names > 8192 {
		t.Errorf("%d tables, %d left out, %d names", len(l.Tables), l.TablesLeftOut, names)
	}
}

func TestOneTablesSendersAndNamesAreBounded(t *testing.T) {
	s := recent.NewSenders()
	for i := range 100 {
		var f recent.Fresh
		for k := range 500 {
			f.Add(fmt.Sprint("name", i, "_", k))
		}
		f.Add("many")
		s.Note("noisy", recent.Sender{Agent: fmt.Sprint(i)}, 1, &f, noon.Add(time.Duration(i)*time.Second))
	}
	one := s.Lists(noon, all, true).Tables[0]
	if len(one.Senders) != 16 || one.SendersLeftOut != 84 || one.Senders[0].Agent != "99" {
		t.Errorf("%d senders, %d left out", len(one.Senders), one.SendersLeftOut)
	}
	if len(one.Names) != 1024 || one.NamesLeftOut != 100*500+1-1024 {
		t.Errorf("%d names, %d left out", len(one.Names), one.NamesLeftOut)
	}
	if n := one.Names[0]; n.Name != "many" || n.NewSeries != 100 || len(n.By) != 3 || n.By[0].Sender != 0 {
		t.Errorf("the name with most new series: %+v", n)
	}
	var f recent.Fresh
	for k := range 600 {
		f.Add(fmt.Sprint("other", k))
	}
	s.Note("wide", recent.Sender{}, 1, &f, noon)
	if wide := s.Lists(noon, only("wide"), true).Tables[0]; len(wide.Names) != 512 || wide.NamesLeftOut != 88 || wide.Senders[0].NewSeries != 600 {
		t.Errorf("of one request: %d names, %d left out", len(wide.Names), wide.NamesLeftOut)
	}
}

// TestNewSeriesAMinuteAreThoseOfTheLastMinute of a sender and of a name; they go with time, and the sum since the start stays.
func TestNewSeriesAMinuteAreThoseOfTheLastMinute(t *testing.T) {
	s := recent.NewSenders()
	from := recent.Sender{Agent: "a"}
	s.Note("t", from, 1, fresh("cpu", "cpu", "cpu", "cpu", "mem"), noon.Add(10*time.Second))
	for _, at := range []struct {
		after            time.Duration
		sender, cpu, mem float64
	}{
		{10 * time.Second, 5, 4, 1},
		{59 * time.Second, 5, 4, 1},
		{90 * time.Second, 2.5, 2, 0.5}, // half of the minute before
		{2 * time.Minute, 0, 0, 0},
		{time.Hour, 0, 0, 0},
	} {
		l := s.Lists(noon.Add(at.after), all, true).Tables[0]
		if u := l.Senders[0]; u.PerMinute != at.sender || u.NewSeries != 5 {
			t.Errorf("after %s: %+v, want %v a minute", at.after, u, at.sender)
		}
		if l.Names[0].PerMinute != at.cpu || l.Names[1].PerMinute != at.mem {
			t.Errorf("after %s: %+v, want %v and %v a minute", at.after, l.Names, at.cpu, at.mem)
		}
	}
	s.Note("t", from, 1, fresh("cpu"), noon.Add(time.Hour))
	if u := s.Lists(noon.Add(time.Hour), all, false).Tables[0].Senders[0]; u.PerMinute != 1 {
		t.Errorf("what came an hour ago counts: %+v", u)
	}
}
